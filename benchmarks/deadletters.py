"""Dead letters: denials written in batches, a large backlog of one user beside others, a claim from a large table."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg2
from sqlalchemy import text

from benchmarks.row import Row, median, percentile, rounded, row
from notifier.deadletters.migrate import upgrade
from notifier.deadletters.replay import Replay, ReplayReport
from notifier.deadletters.store import BATCH, Store
from notifier.lab.servers import Servers
from notifier.ledger import Ledger
from notifier.licence import Deferred, Denial
from notifier.limit import Limit
from notifier.limits.limiter import Limiter
from notifier.notification import Notification
from notifier.redis.state import connect_state
from notifier.settings import Settings
from notifier.wire import Message

COMMAND = "python -m benchmarks deadletters"
PERIOD_S = 1.0  # beat's
OTHERS = 100

ONE_EACH = """
    INSERT INTO dead_letters (user_id, channel, notification_id, seq, epoch, starts, category, body, priority,
        collapse_key, reason, state, attempts, retry_at, accepted_at)
    VALUES (%s, 'websocket', %s, %s, 'e', 0, 'default', %s, 'normal', '', 'rate_limited', 'waiting', 0, now(), now())
"""
FILL = """
    INSERT INTO dead_letters (user_id, channel, notification_id, seq, epoch, starts, category, body, priority,
        collapse_key, reason, state, attempts, retry_at, accepted_at)
    SELECT 'user-' || n % :users, 'websocket', 'id-' || n, n, 'e', 0, 'default', '[1]', 'normal', '', 'rate_limited',
        'waiting', 0, now() - n * interval '1 ms', now()
    FROM generate_series(1, :rows) AS n
"""


@contextmanager
def servers(**changes: Any) -> Iterator[Settings]:
    """Durable servers of our own, and settings that name them."""
    with tempfile.TemporaryDirectory(prefix="notifier-bench-") as home:
        started = Servers()
        started.start(Settings(data_dir=Path(home)), durable=True, say=lambda _: None)
        try:
            urls = {name.removeprefix("NOTIFIER_").lower(): url for name, url in started.urls.items()}
            settings = Settings(**urls, **changes)
            upgrade(settings.database_url)
            yield settings
        finally:
            started.stop()
            started.remove()


def rows(quick: bool) -> list[Row]:
    """All of this module."""
    with servers(user_limit="500/s burst 500", max_waiting=1_000_000, max_deferred=1_000_000) as settings:
        return [
            written(settings, 500 if quick else 2_000),
            *backlog(settings, 5_000 if quick else 50_000),
            claim(settings, 100_000 if quick else 1_000_000),
        ]


def written(settings: Settings, number: int) -> Row:
    """Rows a second in batches, over rows a second with a statement and a commit each. Both durable."""
    with psycopg2.connect(settings.database_url.replace("+psycopg2", "")) as connection, connection.cursor() as cursor:
        started_s = time.perf_counter()
        for n in range(number):
            cursor.execute(ONE_EACH, ("user", f"one-{n}", n, '{"text":"hello"}'))
            connection.commit()
        one_each = number / (time.perf_counter() - started_s)
    connection.close()
    store = Store(settings.database_url)
    batches = [_deferred(k, number) for k in range(10)]
    store.counts()
    started_s = time.perf_counter()
    for batch in batches:
        store.insert(batch)
    in_batches = len(batches) * BATCH / (time.perf_counter() - started_s)
    _empty(store)
    store.close()
    detail: dict[str, Any] = {"batches_per_s": rounded(in_batches), "one_each_per_s": rounded(one_each)}
    return row("denials written, over a row and commit each", in_batches / one_each, ">= 10", COMMAND, **detail)


def backlog(settings: Settings, number: int) -> list[Row]:
    """`number` rows of one user and 100 of others fall due at once; the replay runs once a second, as beat does it."""
    client = connect_state(settings.redis_url, 5.0)
    ledger, limiter, store = Ledger(client, settings), Limiter.from_settings(settings), Store(settings.database_url)
    replay = Replay(store, ledger, limiter, settings)
    _deny(ledger, ["noisy"] * number)
    _deny(ledger, [f"other-{k}" for k in range(OTHERS)])
    while ledger.peek_deferred(1):
        replay.spill()
    store.run(lambda c: c.execute(text("UPDATE dead_letters SET retry_at = now()")), scan=True)
    total, periods, others_out_after = ReplayReport(), 0, 0
    started_s = time.monotonic()
    while store.counts().waiting:
        total += replay.run()
        periods += 1
        if not others_out_after and not _waiting_others(store):
            others_out_after = periods
        time.sleep(max(0.0, started_s + periods * PERIOD_S - time.monotonic()))
    took_s = time.monotonic() - started_s
    limit: Limit = settings.user_limit
    expected_s = (number - limit.burst) / limit.rate
    limiter.close()
    store.close()
    detail: dict[str, Any] = {
        "rows": number,
        "claimed": total.claimed,
        "delivered": total.replayed,
        "paced": total.paced,
    }
    return [
        row("replay: claims for each delivered row", total.claimed / total.replayed, "<= 1.5", COMMAND, **detail),
        row("replay: periods until the others are out", others_out_after, "<= 2", COMMAND, others=OTHERS),
        row("replay: time taken over the limit's own", took_s / expected_s, "", COMMAND, took_s=rounded(took_s)),
    ]


def claim(settings: Settings, number: int) -> Row:
    """Milliseconds to claim 500 of `number` due rows of 10,000 users."""
    store = Store(settings.database_url)
    _empty(store)
    store.run(lambda c: c.execute(text(FILL), {"users": 10_000, "rows": number}), scan=True)
    times_ms = []
    for _ in range(20):
        started_s = time.perf_counter()
        found = len(store.claim(int(time.time() * 1e6) + 10**6))
        times_ms.append((time.perf_counter() - started_s) * 1_000)
        assert found == BATCH, found
    _empty(store)
    store.close()
    detail: dict[str, Any] = {"rows": number, "p95_ms": rounded(percentile(times_ms, 0.95))}
    return row("claim of 500 rows, ms", rounded(median(times_ms)), "", COMMAND, ratio=False, **detail)


def _deferred(batch: int, number: int) -> list[Deferred]:
    now_us = int(time.time() * 1e6)
    return [
        Deferred(
            notification=Notification.create("user", {"text": "hello"}),
            seq=number + batch * BATCH + n,
            epoch="e",
            starts=0,
            accepted_us=now_us,
            expires_us=0,
            reason="rate_limited",
            retry_at_us=now_us,
            parked=False,
            attempts=0,
            error="",
        )
        for n in range(BATCH)
    ]


def _deny(ledger: Ledger, users: list[str]) -> None:
    for start in range(0, len(users), BATCH):
        sent = [Notification.create(user, {"text": "hello"}) for user in users[start : start + BATCH]]
        queued = [
            Message(n, accepted_us=a.accepted_us, epoch=a.epoch)
            for n, a in zip(sent, ledger.accept(sent), strict=True)
            if a.status == "queued"
        ]
        ledger.deny(queued, [Denial(1, 0, "rate_limited")] * len(queued))


def _waiting_others(store: Store) -> bool:
    found = text("SELECT EXISTS (SELECT 1 FROM dead_letters WHERE user_id LIKE 'other-%')")
    return bool(store.run(lambda c: c.execute(found).scalar_one(), scan=True))


def _empty(store: Store) -> None:
    store.run(lambda c: c.execute(text("TRUNCATE dead_letters")), scan=True)
