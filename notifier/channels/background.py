"""An event loop in a thread of its own, for channels that talk to many hosts at once. Made at first use, by process."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Generic, TypeVar

P = TypeVar("P")
R = TypeVar("R")


class Background(Generic[P]):
    """Runs coroutines on `parts`, which are made in the loop. Any number of threads may call; a fork has its own."""

    def __init__(self, make: Callable[[], P]) -> None:
        self._make = make
        self._pid = 0
        self._lock = threading.Lock()

    def run(self, work: Callable[[P], Coroutine[None, None, R]], timeout_s: float) -> R:
        """What `work(parts)` returns. Raises TimeoutError after `timeout_s`; then it is cancelled."""
        self._start()
        future = asyncio.run_coroutine_threadsafe(work(self._parts), self._loop)
        try:
            return future.result(timeout_s)
        finally:
            future.cancel()  # a time limit of the task came up meanwhile; else this does nothing

    def _start(self) -> None:
        if self._pid == os.getpid():
            return
        with self._lock:
            if self._pid == os.getpid():
                return
            self._loop = asyncio.new_event_loop()
            threading.Thread(target=self._loop.run_forever, name="notifier-outbound", daemon=True).start()
            self._parts = asyncio.run_coroutine_threadsafe(self._made(), self._loop).result()
            self._pid = os.getpid()

    async def _made(self) -> P:
        return self._make()
