"""The store under large tables, other people's locks, restarts, and connections that run out."""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import text

from notifier.deadletters import queries
from notifier.deadletters.line import Pace, free_places
from notifier.deadletters.schema import Kept
from notifier.deadletters.sql import LIMITS
from notifier.deadletters.store import VANISHED_S, Store
from notifier.embedded.postgres import Postgres
from notifier.errors import DatabaseUnavailable
from notifier.licence import Deferred
from notifier.notification import Identity, Notification
from tests.support import eventually

FILL = """
    INSERT INTO dead_letters (user_id, channel, notification_id, seq, epoch, starts, category, body, priority,
        collapse_key, reason, state, attempts, retry_at, expires_at, accepted_at)
    SELECT 'user-' || n % :users, 'websocket', 'id-' || n, n, 'e', 0, 'default', '{}', 'normal', '',
        'rate_limited', CASE WHEN n % 20 = 0 THEN 'parked' ELSE 'waiting' END, 0,
        now() + (n - :due) * interval '1 second', NULL, now()
    FROM generate_series(1, :rows) AS n
"""


def item(user_id: str, number: int, **changes: Any) -> Deferred:
    notification = Notification.create(user_id, {"n": number}, notification_id=f"{user_id}-{number}")
    now_us = int(time.time() * 1e6)
    values: dict[str, Any] = {
        "notification": notification,
        "seq": number,
        "epoch": "e",
        "starts": 0,
        "accepted_us": now_us,
        "expires_us": 0,
        "reason": "rate_limited",
        "retry_at_us": now_us,
        "parked": False,
        "attempts": 0,
        "error": "",
    }
    return Deferred(**(values | changes))


@pytest.fixture
def store(postgres_url: str) -> Any:
    with_rows = Store(postgres_url)
    yield with_rows
    with_rows.close()


def plan(store: Store, statement: Any, **values: Any) -> str:
    """How PostgreSQL would run it now."""
    sql = statement.text if hasattr(statement, "text") else statement.element.text
    return store.run(lambda c: "\n".join(row[0] for row in c.execute(text(f"EXPLAIN {sql}"), values)))


KEYS = {"users": ["user-1"] * 500, "channels": ["websocket"] * 500, "ids": [f"id-{n}" for n in range(500)]}
NOW_US = int(time.time() * 1e6)


@pytest.mark.parametrize("statistics", ["young", "current", "flood"])
@pytest.mark.parametrize(
    ("name", "values", "index"),
    [
        ("PICK", {"now": NOW_US, "limit": 500, "window": 5_000}, "dead_letters_due"),
        ("WALK", {"user": "", "channel": "", "limit": 500}, "dead_letters_user"),
        (
            "PICK_OF_USERS",
            {"users": ["user-1"], "channels": ["websocket"], "now": NOW_US, "limit": 500, "each": 10},
            "dead_letters_user",
        ),
        (
            "LOWEST",
            {"users": ["user-1"], "channels": ["websocket"], "numbers": [5], "now": NOW_US},
            "dead_letters_user",
        ),
        ("CLAIM", {**KEYS, "untils": [NOW_US] * 500, "seconds": 30}, "dead_letters_pkey"),
        ("CLAIM_RAN_OUT", {"seconds": 30}, "dead_letters_claimed"),
        ("DELETE", KEYS, "dead_letters_pkey"),
        ("LINE", {"users": ["user-1"], "channels": ["websocket"], "now": NOW_US}, "dead_letters_user"),
        ("MOVE", {**KEYS, "retries": [NOW_US] * 500}, "dead_letters_pkey"),
        (
            "UPDATE",
            {
                **KEYS,
                "state": "waiting",
                "reasons": ["order"] * 500,
                "retries": [0] * 500,
                "attempts": [0] * 500,
                "errors": [""] * 500,
                "digests": [""] * 500,
                "seqs": [0] * 500,
            },
            "dead_letters_pkey",
        ),
        ("EXISTING", KEYS, "dead_letters_pkey"),
        ("RETIRED", {"seconds": 60, "limit": 500}, "dead_letters_parked"),
    ],
)
def test_each_statement_uses_its_index(
    store: Store, name: str, values: dict[str, Any], index: str, statistics: str
) -> None:
    with store._get_engine().connect() as flood:
        flood.execute(text(FILL), {"users": 50, "rows": 20_000, "due": 10_000})
        if statistics == "flood":  # taken in the middle of one: no rows, in many pages
            store.run(lambda c: c.execute(text("ANALYZE dead_letters")), scan=True)
        flood.commit()
    if statistics == "current":
        store.run(lambda c: c.execute(text("ANALYZE dead_letters")), scan=True)
    found = plan(store, getattr(queries, name), **values)
    assert f"using {index}" in found, found
    assert "Seq Scan on dead_letters" not in found, found
    wrong = {"dead_letters_due", "dead_letters_user", "dead_letters_claimed", "dead_letters_parked"} - {index}
    assert not any(f"using {other}" in found for other in wrong), found
    if index == "dead_letters_pkey":  # each key looked up, not all rows compared with all keys
        assert "Index Cond: ((user_id = " in found, found
        assert "Join Filter" not in found, found


def test_two_claimers_never_share_a_row(store: Store, postgres_url: str) -> None:
    store.run(lambda c: c.execute(text(FILL), {"users": 40, "rows": 5_000, "due": 10_000}))
    claimed: list[Identity] = []
    failures: list[BaseException] = []

    def claim() -> None:
        mine = Store(postgres_url)
        try:
            while rows := mine.claim(NOW_US + 10**9, 200):
                claimed.extend(row.identity for row in rows)
        except BaseException as error:
            failures.append(error)
        finally:
            mine.close()

    threads = [threading.Thread(target=claim) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert len(claimed) == len(set(claimed)) == 4_750


def test_a_session_that_holds_locks_does_not_stop_the_rest(store: Store, postgres_url: str) -> None:
    store.insert([item("anna", n) for n in range(1, 11)])
    other = Store(postgres_url)
    with other._get_engine().connect() as connection:
        connection.execute(text("SELECT 1 FROM dead_letters ORDER BY seq LIMIT 3 FOR UPDATE"))
        rows = store.claim(int(time.time() * 1e6) + 10**6)
        assert [row.seq for row in rows] == [4, 5, 6, 7, 8, 9, 10]
        connection.rollback()
    other.close()


def test_a_frozen_client_within_a_transaction_loses_its_locks(store: Store) -> None:
    store.insert([item("anna", 1)])
    with store._get_engine().connect() as frozen:
        frozen.execute(text(str(LIMITS.text).replace("10s", "300ms")))
        frozen.execute(text("SELECT 1 FROM dead_letters FOR UPDATE"))
        eventually(lambda: store.claim(int(time.time() * 1e6) + 10**6))
        frozen.invalidate()


def test_repeatable_read_as_the_servers_default_does_no_harm(store: Store, postgres_url: str) -> None:
    assert store.run(lambda c: c.execute(text("SHOW transaction_isolation")).scalar_one()) == "read committed"


def test_what_a_row_says_comes_back(store: Store) -> None:
    now_us = 1_764_471_120_123_457
    sent = item(
        "anna", 7, starts=2, accepted_us=now_us, expires_us=now_us + 9, retry_at_us=now_us + 5, error="a\0b\ud800"
    )
    store.insert([sent])
    (row,) = store.claim(now_us + 10)
    assert (row.accepted_us, row.expires_us, row.retry_at_us) == (now_us, now_us + 9, now_us + 5)
    assert (row.seq, row.starts, row.epoch, row.last_error) == (7, 2, "e", "ab?")
    assert row.notification.identity == sent.notification.identity
    assert row.notification.body == sent.notification.body


def test_rows_are_due_at_their_expiry_at_the_latest(store: Store) -> None:
    now_us = int(time.time() * 1e6)
    store.insert([item("anna", 1, retry_at_us=now_us + 10**9, expires_us=now_us + 10)])
    (row,) = store.claim(now_us + 20)
    store.finish(kept=[Kept(row.identity, "rate_limited", now_us + 10**9)])
    assert len(store.claim(now_us + 20)) == 1


def test_an_identity_too_long_for_the_index_is_named_and_stops_nobody(store: Store) -> None:
    long = Notification("".join(chr(0x10000 + n * 7919 % 0xFFFF) for n in range(800)), "{}", "x")
    items = [item("anna", 1), item("anna", 2)._replace(notification=long), item("anna", 3)]
    assert store.insert(items) == [long.identity]
    assert store.counts().waiting == 2


@pytest.mark.parametrize("category", ["a\0b", "a\ud800b"])
def test_what_psycopg2_refuses_by_itself_is_named_and_stops_nobody(store: Store, category: str) -> None:
    bad = Notification("anna", "{}", "x", category=category)
    items = [item("anna", 1), item("anna", 2)._replace(notification=bad), item("anna", 3)]
    assert store.insert(items) == [bad.identity]
    assert store.counts().waiting == 2


def test_what_is_due_moves_to_the_free_places_in_line(store: Store) -> None:
    now_us, step_us = int(time.time() * 1e6), 500_000
    first_us = now_us + 200_000
    due = [item("anna", n, retry_at_us=now_us) for n in range(1, 5)]
    later = [item("anna", n, retry_at_us=first_us + (n - 4) * step_us) for n in (5, 7)]
    store.insert([*due, *later])
    store.run(lambda c: c.execute(text("UPDATE dead_letters SET priority = 'critical' WHERE seq = 3")))
    assert store.pace([Pace("anna", "websocket", first_us, step_us)], now_us + 10) == 3
    rows = {row.seq: row.retry_at_us for row in store.claim_these([d.notification.identity for d in (*due, *later)])}
    assert rows.pop(3) == now_us  # critical: not in line
    places = {seq: (retry_us - first_us) / step_us for seq, retry_us in rows.items()}
    assert places == {1: 0, 2: 2, 4: 4, 5: 1, 7: 3}


def test_places_are_the_earliest_that_nobody_has() -> None:
    pace = Pace("anna", "websocket", 1_000, 10)
    assert free_places(pace, [], 3) == [1_000, 1_010, 1_020]
    assert free_places(pace, [1_000, 1_021, 1_022, 5_000], 3) == [1_010, 1_030, 1_040]
    assert free_places(pace, [900], 2) == [1_000, 1_010]
    assert free_places(pace._replace(interval_us=0), [], 2) == [1_000, 1_001]
    assert free_places(pace, [1_000], 0) == []


@pytest.mark.slow
def test_a_restart_of_the_server_is_not_noticed(fresh_postgres: Callable[..., Postgres]) -> None:
    server = fresh_postgres(durable=True)
    store = Store(server.url())
    store.insert([item("anna", 1)])
    for number in range(2, 5):
        server.kill()
        server.restart()
        eventually(lambda n=number: store.insert([item("anna", n)]) == [])  # type: ignore[misc]
    assert store.counts().waiting == 4
    store.close()


def test_while_the_server_is_away_the_error_says_so(fresh_postgres: Callable[..., Postgres]) -> None:
    server = fresh_postgres(durable=True)
    store = Store(server.url())
    store.counts()
    server.kill()
    with pytest.raises(DatabaseUnavailable, match="cannot be reached"):
        store.counts()
    store.close()


@pytest.mark.slow
def test_connections_are_bounded_and_running_out_is_no_loss(store: Store) -> None:
    held = [store._get_engine().connect() for _ in range(8)]
    with pytest.raises(DatabaseUnavailable, match="in use"):
        store.insert([item("anna", 1)])
    for connection in held:
        connection.close()
    store.insert([item("anna", 1)])
    assert store.counts().waiting == 1


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have not all of these")
def test_a_server_that_has_vanished_is_given_up_by_the_kernel(store: Store) -> None:
    """Packets that are dropped cannot be had without a network of one's own: what the kernel was told is looked at."""
    descriptor = store.run(lambda c: os.dup(c.connection.driver_connection.fileno()))  # type: ignore[union-attr]
    with socket.socket(fileno=descriptor) as to_server:
        assert to_server.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == VANISHED_S * 1000
        assert to_server.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        probes = [
            to_server.getsockopt(socket.IPPROTO_TCP, option)
            for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
        ]
    idle_s, every_s, count = probes
    assert idle_s + every_s * count == VANISHED_S
