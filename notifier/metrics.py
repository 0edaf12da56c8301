"""Prometheus metrics, and the one way in which a fallback is made loud."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from prometheus_client import Counter, Histogram

ACCEPTED = Counter("notifier_accepted", "Notifications accepted by this process.", ["channel"])
ENDED = Counter("notifier_ended", "Ends booked at the first try, from a message.", ["channel", "end"])
DEFERRED = Counter("notifier_deferred", "Denials that were deferred.", ["channel", "reason"])
GRANTS = Counter("notifier_grants", "Grants to this process, by source: local, shared, grace.", ["source"])
REPUBLISHED = Counter("notifier_republished", "Messages that a broker had lost, published again.")
DEGRADED = Counter("notifier_degraded", "Fallbacks taken.", ["what"])
LATENCY = Histogram(
    "notifier_delivery_seconds",
    "From accept to delivery at the first try.",
    buckets=(0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10),
)

log = logging.getLogger("notifier")
_QUIET_S = 10.0
_last: dict[str, float] = {}


def degraded(what: str, detail: object, *, clock: Callable[[], float] = time.monotonic) -> bool:
    """Count a fallback and warn about it, at most once in ten seconds each. True where it warned."""
    DEGRADED.labels(what).inc()
    now_s = clock()
    if now_s - _last.get(what, -_QUIET_S) < _QUIET_S:
        return False
    _last[what] = now_s
    log.warning("degraded: %s: %s", what, detail)
    return True
