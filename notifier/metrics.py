"""What a process counts and measures for Prometheus, and the one way in which a fallback is made loud.

No label holds a user's id, a category or anything else that grows with traffic.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from prometheus_client import Counter, Gauge, Histogram

from notifier import logs, metrics_dir

metrics_dir.prepare()

ACCEPTED = Counter("notifier_accepted", "Notifications accepted by this process.", ["channel"])
ENDED = Counter("notifier_ended", "Ends that this process has booked.", ["channel", "end", "reason"])
DEFERRED = Counter("notifier_deferred", "Denials of messages that were deferred.", ["channel", "reason"])
LATENCY = Histogram(
    "notifier_delivery_seconds",
    "From accept to delivery, by whether a message or a replayed row was delivered.",
    ["channel", "via"],
    buckets=(0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 60, 600, 3_600),
)
GRANTS = Counter("notifier_grants", "Grants of the limiter to this process.", ["source"])
DENIALS = Counter(
    "notifier_denials", "Denials of the limiter, by level; cached: those this process remembered.", ["level"]
)
LOANS = Gauge("notifier_loans_open", "Local grants not yet charged to the shared bucket.", multiprocess_mode="livesum")
LIMITERS = Gauge(
    "notifier_limiter_processes",
    "Processes whose limiter is in touch with its Redis, goes on in grace, or is cut off and defers everything.",
    ["state"],
    multiprocess_mode="livesum",
)
BREAKERS = Gauge(
    "notifier_channel_breakers_open",
    "Breakers open now: other sides of a channel that are not called, each in one process.",
    ["channel"],
    multiprocess_mode="livesum",
)
REPUBLISHED = Counter("notifier_republished", "Messages that a broker had lost, published again.")
DEGRADED = Counter("notifier_degraded", "Fallbacks taken.", ["what"])

_FALLBACKS = """
    address_refused beat broker_lost dead_letter_refused fallback_replay ledger limiter_redis max_waiting preferences
    publish requeued row_refused send_in state_redis unreadable_message
"""
for _what in _FALLBACKS.split():
    DEGRADED.labels(_what)  # there from the start: what begins at 1 has not grown, to Prometheus

log = logging.getLogger("notifier")
_QUIET_S = 10.0
_last: dict[str, float] = {}


def degraded(
    what: str, detail: object, *, about: Mapping[str, Any] | None = None, clock: Callable[[], float] = time.monotonic
) -> bool:
    """Count a fallback and warn about it, at most once in ten seconds each. True where it warned.

    `about`: whom the line is about, see logs.of.
    """
    DEGRADED.labels(what).inc()
    now_s = clock()
    if now_s - _last.get(what, -_QUIET_S) < _QUIET_S:
        return False
    _last[what] = now_s
    logs.say(log, logging.WARNING, f"degraded: {what}: {detail}", about or {}, what=what)
    return True
