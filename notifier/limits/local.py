"""The local bucket: one process's micro-bursts, on the monotonic clock."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable


class LocalBucket:
    """A token bucket in memory, for the threads of one process.

    Several processes that each hold one grant the sum of them: it bounds nothing across processes. `Limiter` does,
    by charging what it grants from here to the shared bucket.

    `capacity` is in tokens, `fill_rate` in tokens per second (0: never refilled), `clock` in seconds and monotonic.
    """

    __slots__ = ("_clock", "_lock", "_updated_s", "capacity", "fill_rate", "tokens")

    def __init__(self, capacity: float, fill_rate: float, clock: Callable[[], float] = time.monotonic) -> None:
        if not (capacity > 0 and math.isfinite(capacity)):
            raise ValueError(f"capacity must be a finite number of tokens over 0, not {capacity!r}")
        if not (fill_rate >= 0 and math.isfinite(fill_rate)):
            raise ValueError(f"fill_rate must be a finite number of tokens per second, 0 or more, not {fill_rate!r}")
        self.capacity = capacity
        self.fill_rate = fill_rate
        self._clock = clock
        self.tokens = float(capacity)  # as of the last take
        self._updated_s = clock()
        self._lock = threading.Lock()

    def consume(self, tokens: float = 1) -> bool:
        """Take `tokens` if they are there now. More than the capacity are never there."""
        if not (tokens > 0 and math.isfinite(tokens)):
            raise ValueError(f"tokens must be a finite number over 0, not {tokens!r}")
        with self._lock:
            return self.take(self._clock(), tokens)

    def take(self, now_s: float, tokens: float = 1) -> bool:
        """consume without the lock, at a time already read: for a caller that holds a lock of its own."""
        if now_s > self._updated_s:
            self.tokens = min(self.capacity, self.tokens + (now_s - self._updated_s) * self.fill_rate)
            self._updated_s = now_s
        if self.tokens < tokens:
            return False
        self.tokens -= tokens
        return True
