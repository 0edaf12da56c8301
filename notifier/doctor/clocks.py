"""How far the servers' clocks are from this machine's."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from typing import NamedTuple

import psycopg2
from redis import RedisError
from sqlalchemy import make_url

from notifier.doctor.finding import Finding, ok, problem, warning
from notifier.redis.client import connect
from notifier.settings import Settings

TIMEOUT_S = 1.0
SUSPICIOUS_S, WRONG_S = 2.0, 60.0


class Offset(NamedTuple):
    """Server time less this machine's, and how exactly that is known: half the round trip. Seconds."""

    ahead_s: float
    within_s: float


def clocks(settings: Settings) -> Iterator[Finding]:
    """One finding a server that answers; that others do not is said elsewhere."""
    offsets: dict[str, Offset] = {}
    for name, ask in (
        ("state", lambda: _redis(settings.redis_url)),
        ("limiter", lambda: _redis(settings.limiter_url)),
        ("database", lambda: _postgres(settings.database_url)),
    ):
        with suppress(RedisError, OSError, psycopg2.Error):
            offsets[name] = measured(ask)
    yield from judge(offsets)


def judge(offsets: Mapping[str, Offset]) -> Iterator[Finding]:
    """What these mean."""
    why = "ttl and not_before are judged by state Redis's clock, tokens by the gateway's: they end early or late"
    for name, (ahead_s, within_s) in offsets.items():
        off_s = max(0.0, abs(ahead_s) - within_s)
        check, what = f"clock.{name}", f"{abs(ahead_s):,.1f} s {'ahead of' if ahead_s > 0 else 'behind'} this machine"
        if off_s > WRONG_S:
            yield problem(check, what, why, "synchronise the clocks of both machines (chrony, ntpd)")
        elif off_s > SUSPICIOUS_S:
            yield warning(check, what, why, "synchronise the clocks of both machines (chrony, ntpd)")
        else:
            yield ok(check, f"within {max(0.001, abs(ahead_s)) * 1000:,.0f} ms of this machine")


def measured(ask: Callable[[], Callable[[], float]]) -> Offset:
    """`ask` connects, and gives what tells the time: connecting is not part of the round trip."""
    tell = ask()
    before_s = time.time()
    there_s = tell()
    after_s = time.time()
    return Offset(there_s - (before_s + after_s) / 2, (after_s - before_s) / 2)


def _redis(url: str) -> Callable[[], float]:
    client = connect(url, TIMEOUT_S)
    client.ping()

    def tell() -> float:
        with closing(client):
            seconds, micros = client.time()
        return seconds + micros / 1e6

    return tell


def _postgres(url: str) -> Callable[[], float]:
    parts = make_url(url).set(drivername="postgresql")
    connection = psycopg2.connect(parts.render_as_string(hide_password=False), connect_timeout=2)

    def tell() -> float:
        with closing(connection), connection.cursor() as cursor:
            cursor.execute("SELECT extract(epoch FROM clock_timestamp())::float8")
            (seconds,) = cursor.fetchone() or (0.0,)
        return float(seconds)

    return tell
