"""Counts what the ledger has booked, of messages and of rows, in the process that booked it."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Protocol

from notifier import channels, hooks, logs, metrics, tracing
from notifier.licence import End, Reason
from notifier.notification import WEBSOCKET, Notification

# Labels that are counted under their own name. Others may come from outside: from a message's channel, for one.
REASONS = frozenset(Reason) | {"row_refused", "opted_out", "cancelled", "erased", "reconciled", "retired", "by_hand"}
OTHER = "other"

log = logging.getLogger(__name__)


class Item(Protocol):
    """A message or a row; `accepted_us` is 0 where it is not known."""

    @property
    def notification(self) -> Notification: ...
    @property
    def accepted_us(self) -> int: ...


def of_reply(script: str, items: Sequence[Item], extras: Sequence[Any], reply: Sequence[Any], via: str) -> None:
    """What a script booked, see hooks.booked; the hooks hear of it too. `via` is message or row."""
    booked, now_us = hooks.booked(script, extras, reply), int(reply[0])
    counts: Counter[tuple[str, str, str]] = Counter()
    for place, what, reason in booked:
        channel = items[place].notification.channel
        counts[channel, what, reason] += 1
        if what == End.DELIVERED and (accepted_us := items[place].accepted_us):
            _latency(channel, via).observe(max(0.0, (now_us - accepted_us) / 1e6))
        elif what == End.PARKED:
            logs.say(log, logging.INFO, f"parked ({reason})", logs.of(items[place].notification.identity))
    if script == "deny":
        _overflowed(sum(what == End.DROPPED for _, what, _ in booked))
    for (channel, what, reason), count in counts.items():
        if what == "deferred":
            _deferred(channel, reason).inc(count)
        else:
            _ended(channel, what, reason).inc(count)
    if booked and (tracing.wanted() or hooks.wanted()):
        notifications = [item.notification for item in items]
        tracing.booked(notifications, booked, via)
        hooks.report(notifications, booked)


def of_accepts(notifications: Sequence[Notification], statuses: Sequence[str], begun_ns: int) -> None:
    """What accept said: every one is accepted, and those it dropped or knew already have ended with that.

    `begun_ns`: when it was asked, see tracing.now_ns.
    """
    tracing.accepted(notifications, statuses, begun_ns)
    _overflowed(sum(status == "dropped" for status in statuses))
    counts = Counter((n.channel, status) for n, status in zip(notifications, statuses, strict=True))
    for (channel, status), count in counts.items():
        _accepted(channel).inc(count)
        if status == "dropped":
            _ended(channel, End.DROPPED, "max_waiting").inc(count)
        elif status == "duplicate":
            _ended(channel, End.DUPLICATE, "").inc(count)


def _overflowed(dropped: int) -> None:
    if dropped:
        metrics.degraded("max_waiting", f"{dropped} notifications dropped: too many wait")


# A metric's child is looked up once: prometheus_client's own way to it costs more than counting.


@lru_cache(1_024)
def _accepted(channel: str) -> Any:
    return metrics.ACCEPTED.labels(_known(channel))


@lru_cache(1_024)
def _deferred(channel: str, reason: str) -> Any:
    return metrics.DEFERRED.labels(_known(channel), _reason(reason))


@lru_cache(1_024)
def _ended(channel: str, end: str, reason: str) -> Any:
    return metrics.ENDED.labels(_known(channel), str(end), _reason(reason))


@lru_cache(1_024)
def _latency(channel: str, via: str) -> Any:
    return metrics.LATENCY.labels(_known(channel), via)


def _known(channel: str) -> str:
    return channel if channel in channels.known() else OTHER


def _reason(reason: str) -> str:
    return reason if not reason or reason in REASONS else OTHER


# There from the start: what begins at 1 has not grown, to Prometheus.
for _why in ("rate_limited", "max_waiting", "row_refused", "reconciled", "retired"):
    metrics.ENDED.labels(WEBSOCKET, str(End.DROPPED), _why)
