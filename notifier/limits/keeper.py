"""The limiter's background thread, one a process, started at first use."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

logger = logging.getLogger(__name__)


class Keeper:
    """Calls `tend` again and again: after the seconds it returns, or at once when woken."""

    def __init__(self, tend: Callable[[], float]) -> None:
        self._tend = tend
        self._wake = threading.Event()
        self._stopped = False
        self._start = threading.Lock()
        self._thread: threading.Thread | None = None

    def wake(self) -> None:
        """Tend now."""
        if self._thread is None:
            with self._start:
                if self._thread is None and not self._stopped:
                    self._thread = threading.Thread(target=self._run, name="notifier-limiter", daemon=True)
                    self._thread.start()
        self._wake.set()

    def stop(self) -> None:
        """End the thread."""
        self._stopped = True
        self._wake.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout=2)

    def _run(self) -> None:
        pause_s = 0.0
        while not self._stopped:
            self._wake.wait(pause_s)
            self._wake.clear()
            if self._stopped:
                return
            try:
                pause_s = self._tend()
            except Exception:  # must live as long as the process: loans are charged from here
                logger.exception("the limiter's background thread goes on after an error")
                pause_s = 0.5
