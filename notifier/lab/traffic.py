"""The senders of the demo: one user who is far over the limit, and many who keep well within it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from notifier.errors import NotAccepted
from notifier.lab.account import Sent
from notifier.limit import Limit
from notifier.notification import Identity

Send = Callable[[str, Any], str]
BURST_EVERY_S = 2.0
LEAST_BURST, MOST_BURST = 20, 200
QUIET_EVERY_S = 1.0


class Traffic:
    """`sent` is the senders' own list: what they were told is accepted. `refused` counts what was not."""

    def __init__(self, send: Send, noisy: str, quiet: Sequence[str], limit: Limit) -> None:
        """`send(user_id, payload)` returns the notification's id; `limit` is the one to be exceeded, and kept."""
        self.sent: list[Sent] = []
        self.refused = 0
        self._send = send
        self._noisy, self._quiet = noisy, list(quiet)
        finite = not (limit.off or limit.blocks)
        self._burst = min(MOST_BURST, max(LEAST_BURST, 4 * limit.burst)) if finite else LEAST_BURST
        self._quiet_every_s = max(QUIET_EVERY_S, 1.25 / limit.rate) if finite else QUIET_EVERY_S
        self._ending = threading.Event()
        self._threads = [threading.Thread(target=run, daemon=True) for run in (self._run_noisy, self._run_quiet)]

    def start(self) -> None:
        """Send until stop()."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Returns when the last call has returned."""
        self._ending.set()
        for thread in self._threads:
            thread.join()

    def _run_noisy(self) -> None:
        number = 0
        while True:
            for _ in range(self._burst):
                number += 1
                self._one(self._noisy, {"text": "somebody likes this", "number": number})
            if self._ending.wait(BURST_EVERY_S):
                return

    def _run_quiet(self) -> None:
        """Each user in turn, evenly spread."""
        number = 0
        while True:
            for user_id in self._quiet:
                if self._ending.wait(self._quiet_every_s / len(self._quiet)):
                    return
                self._one(user_id, {"text": f"hello {user_id}", "number": number})
            number += 1

    def _one(self, user_id: str, payload: Any) -> None:
        at_s = time.monotonic()
        try:
            notification_id = self._send(user_id, payload)
        except NotAccepted:
            self.refused += 1
        else:
            self.sent.append(Sent(Identity(user_id, "websocket", notification_id), payload, at_s))
