"""What is asked of the limiter, and what it says."""

from __future__ import annotations

import math
from typing import NamedTuple

from notifier.licence import Denial, Reason

_REASONS = {"quota": Reason.QUOTA, "unavailable": Reason.LIMITER_UNAVAILABLE}


class Request(NamedTuple):
    """One notification that would like to go to a user now."""

    user_id: str
    channel: str = "websocket"
    category: str = "default"
    priority: str = "normal"


class Verdict(NamedTuple):
    """A decision. Asked again after exactly `retry_after` seconds (> 0 on denials), it is granted if nobody else asks.

    `level` is what denied: user, channel, quota or unavailable. `source` is who decided: local, shared or grace.
    `granted_at_us` is the grant's time on the limiter's Redis (for local grants this process's estimate of it), in
    microseconds since the epoch. `interval_s` is the time one token takes at the level that denied, 0 where unknown,
    inf where none ever pass: what waits behind this denial may follow at that pace.
    """

    granted: bool
    retry_after: float
    level: str | None
    source: str
    granted_at_us: int = 0
    interval_s: float = 0.0

    def denial(self, interval_us: int) -> Denial:
        """As the ledger takes it; `interval_us` between two grants of the user, where the verdict does not say."""
        return Denial(
            wait_us=max(1, math.ceil(self.retry_after * 1e6)),
            interval_us=int(self.interval_s * 1e6) or interval_us,
            reason=_REASONS.get(self.level or "user", Reason.RATE_LIMITED),
        )
