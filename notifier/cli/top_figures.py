"""The figures of `notifier top`: what there is at two moments, and what has grown in between. No I/O but `look`."""

from __future__ import annotations

import math
import time
import urllib.request
from collections import defaultdict
from collections.abc import Mapping, Sequence
from http.client import HTTPException
from typing import Any, NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from notifier.exposition import BOOKED
from notifier.survey import OK, Books, Survey, Surveyor

TIMEOUT_S = 2.0
MOST_BYTES = 10_000_000
_NO_METRICS = (OSError, HTTPException, ValueError, IndexError)  # the last two: what the parser makes of other things


class Look(NamedTuple):
    """One moment. `counted` are the samples of processes, added up over all that were scraped."""

    at_s: float
    survey: Survey
    counted: dict[tuple[str, frozenset[tuple[str, str]]], float]
    problems: dict[str, str]  # of each address that could not be scraped


class Figures(NamedTuple):
    """What --json prints. Rates are per second over `window_s`; what is not known is None, or missing in a mapping."""

    window_s: float
    rates: dict[str, float]  # of the books: accepted, each end, deferrals, replayed, republished
    totals: dict[str, int]
    latency_s: dict[str, float | None]  # p50, p99 of what no limit held up
    queued: dict[str, int]
    queue_age_s: dict[str, float | None]
    oldest_queued_s: float | None
    waiting: int | None
    deferred: int | None
    parked: int | None
    rows: dict[str, float] | None  # waiting, parked, oldest_waiting_s, oldest_parked_s, overdue_s
    replayed_s_ago: float | None
    grants: dict[str, float]  # rates
    denials: dict[str, float]
    loans: int | None
    limiters: dict[str, int]  # processes: in_touch, grace, cut_off
    breakers_open: dict[str, int]
    clients: dict[str, int]
    sent: float | None  # rate
    fallbacks: dict[str, float]  # taken within the window
    servers: dict[str, str]
    scraped: dict[str, str]  # "ok", or why an address could not be


def look(surveyor: Surveyor, urls: Sequence[str]) -> Look:
    """Ask the servers, and scrape. Raises nothing because something is away."""
    counted: dict[tuple[str, frozenset[tuple[str, str]]], float] = defaultdict(float)
    problems = {}
    for url in urls:
        try:
            with urllib.request.urlopen(url, timeout=TIMEOUT_S) as reply:  # noqa: S310  its scheme was checked
                text = reply.read(MOST_BYTES).decode()
            for family in text_string_to_metric_families(text):
                for sample in family.samples:
                    counted[sample.name, frozenset(sample.labels.items())] += sample.value
        except _NO_METRICS as error:
            reason = getattr(error, "reason", error)
            problems[url] = str(getattr(reason, "strerror", None) or reason) or type(error).__name__
    return Look(time.monotonic(), surveyor.look(), dict(counted), {url: problems.get(url, OK) for url in urls})


def figures(before: Look, now: Look) -> Figures:
    """What is now, and the rates since `before`, which is earlier."""
    seconds = max(1e-6, now.at_s - before.at_s)
    books, counts = now.survey.books, now.survey.books.counts if now.survey.books else None
    totals = {what: int(getattr(counts, what)) for what in BOOKED} if counts else {}
    buckets = _grown(before, now, "notifier_delivery_seconds_bucket", "le", via="message")
    rows = now.survey.rows
    return Figures(
        window_s=round(seconds, 3),
        rates=booked(before.survey.books, books),
        totals=totals,
        latency_s={"p50": quantile(0.5, buckets), "p99": quantile(0.99, buckets)},
        queued={str(queue): size for queue, size in counts.queued.items()} if counts else {},
        queue_age_s=books.queue_age_s if books else {},
        oldest_queued_s=counts.oldest_queued_s if counts else None,
        waiting=counts.waiting if counts else None,
        deferred=counts.deferred if counts else None,
        parked=counts.parked if counts else None,
        rows=rows._asdict() if rows else None,
        replayed_s_ago=books.replayed_s_ago if books else None,
        grants=_rates(before, now, "notifier_grants_total", "source", seconds),
        denials=_rates(before, now, "notifier_denials_total", "level", seconds),
        loans=_whole(now, "notifier_loans_open"),
        limiters=_by(now, "notifier_limiter_processes", "state"),
        breakers_open={
            name: size for name, size in _by(now, "notifier_channel_breakers_open", "channel").items() if size
        },
        clients=_by(now, "notifier_gateway_clients", "transport"),
        sent=next(iter(_rates(before, now, "notifier_gateway_sent_total", None, seconds).values()), None),
        fallbacks={what: n for what, n in _grown(before, now, "notifier_degraded_total", "what").items() if n},
        servers=now.survey.servers,
        scraped=now.problems,
    )


def booked(before: Books | None, now: Books | None) -> dict[str, float]:
    """Per second in between; {} where they are not known, or the same."""
    if before is None or now is None or now.at_s <= before.at_s:
        return {}
    growth = {what: getattr(now.counts, what) - getattr(before.counts, what) for what in BOOKED}
    return {what: round(max(0, grown) / (now.at_s - before.at_s), 2) for what, grown in growth.items()}


def quantile(share: float, buckets: Mapping[str, float]) -> float | None:
    """As Prometheus' histogram_quantile finds it, in cumulative counts by upper bound; None where there are none."""
    bounds = sorted((float(bound), count) for bound, count in buckets.items())
    if not bounds or not bounds[-1][1]:
        return None
    rank, lower, below = share * bounds[-1][1], 0.0, 0.0
    for upper, count in bounds:
        if count >= rank:
            if math.isinf(upper):
                return lower  # beyond the last bound: it is all that is known
            return lower + (upper - lower) * (rank - below) / (count - below) if count > below else upper
        lower, below = upper, count
    return lower


def _of(moment: Look, name: str, label: str | None, **where: str) -> dict[str, float]:
    found: dict[str, float] = defaultdict(float)
    for (sample, labels), value in moment.counted.items():
        named: dict[str, Any] = dict(labels)
        if sample == name and all(named.get(key) == wanted for key, wanted in where.items()):
            found[named.get(label, "") if label else ""] += value
    return dict(found)


def _grown(before: Look, now: Look, name: str, label: str | None, **where: str) -> dict[str, float]:
    """By how much each has grown. A process may have left or come anew: never less than nothing."""
    earlier = _of(before, name, label, **where)
    return {key: max(0.0, value - earlier.get(key, 0.0)) for key, value in _of(now, name, label, **where).items()}


def _rates(before: Look, now: Look, name: str, label: str | None, seconds: float) -> dict[str, float]:
    return {key: round(growth / seconds, 2) for key, growth in sorted(_grown(before, now, name, label).items())}


def _by(moment: Look, name: str, label: str) -> dict[str, int]:
    return {key: int(value) for key, value in sorted(_of(moment, name, label).items())}


def _whole(moment: Look, name: str) -> int | None:
    return next((int(value) for value in _of(moment, name, None).values()), None)
