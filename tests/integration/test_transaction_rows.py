"""send_in: its rows, in the table from the commit on until they have ended, whatever happens meanwhile."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import create_engine, event, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session, sessionmaker

from notifier import Notification, metrics, notify, runtime, send_in, send_many_in
from notifier.deadletters.manage import Manager
from notifier.deadletters.migrate import upgrade
from notifier.deadletters.store import Store
from notifier.embedded.valkey import Valkey
from notifier.errors import SettingsError
from notifier.ledger import Ledger
from notifier.licence import Denial, End, Grant
from notifier.notification import Identity
from notifier.redis.keys import PREFIX
from notifier.settings import Settings
from notifier.wire import Message
from tests.deadletters import Bench, MakeBench, rows
from tests.support import free_port, published

GRACE_S = 60.0


@pytest.fixture
def bench(make_bench: MakeBench, sessions: object) -> Bench:
    """What beat would do."""
    return make_bench(user_limit="off")


def _commit_and_die(postgres_url: str, settings: Settings) -> None:
    runtime.get(settings)
    event.listen(Session, "after_commit", lambda _: os._exit(3), insert=True)  # before ours
    with Session(create_engine(postgres_url)) as session:
        send_in(session, 42, "despite all", notification_id="n1")
        session.commit()


def test_a_crash_right_after_the_commit(
    sessions: object, settings: Settings, bench: Bench, postgres_url: str, valkey: Valkey
) -> None:
    process = multiprocessing.get_context("spawn").Process(target=_commit_and_die, args=(postgres_url, settings))
    process.start()
    process.join(GRACE_S)
    assert process.exitcode == 3
    assert (published(valkey), rows(bench), bench.ledger.counts().accepted) == ([], ["n1"], 0)
    assert bench.sql("SELECT retry_at < now() + interval '6 seconds' FROM dead_letters") == [(True,)]
    bench.make_due()
    assert bench.replay.run().replayed == 1
    assert bench.replay.run().claimed == 0
    assert [frame["payload"] for frame in bench.feed("42")] == ["despite all"]
    assert rows(bench) == [] and bench.balanced()


def test_no_server_but_the_database(use: Callable[..., None], sessions: sessionmaker[Session], bench: Bench) -> None:
    nowhere = f"redis://127.0.0.1:{free_port()}/0"
    use(redis_url=nowhere, broker_url=nowhere)
    with sessions.begin() as session:
        send_in(session, 42, "later")
    bench.make_due()
    assert bench.replay.run().replayed == 1


def test_a_commit_of_many_waits_once_for_a_broker_that_is_away(
    use: Callable[..., None], sessions: sessionmaker[Session], bench: Bench
) -> None:
    use(broker_url=f"redis://127.0.0.1:{free_port()}/0")
    waits = metrics.DEGRADED.labels("publish")
    before = waits._value.get()
    with sessions.begin() as session:
        send_many_in(session, (Notification.create(f"user-{n}", n) for n in range(250)))
    assert (waits._value.get(), bench.ledger.counts().in_flight) == (before + 1, 250)


def test_what_became_of_it_is_told_in_the_row(sessions: sessionmaker[Session], bench: Bench) -> None:
    with sessions.begin() as session:
        send_in(session, 42, "hello", notification_id="n1")
    message = Message(Notification.create(42, "hello", notification_id="n1"), accepted_us=bench.ledger.now_us())
    bench.ledger.book([message], End.PARKED, "delivery_failed", ["no such address"])
    bench.replay.spill()
    (row,) = bench.sql("SELECT state, reason, last_error, seq, epoch <> '' AS known FROM dead_letters")
    assert tuple(row) == ("parked", "delivery_failed", "no such address", 1, True)


def test_scheduled_and_expiring(sessions: sessionmaker[Session], bench: Bench, valkey: Valkey) -> None:
    when = datetime.now(UTC) + timedelta(days=2)
    with sessions.begin() as session:
        send_in(session, 42, "in two days", not_before=when, ttl=60, notification_id="n1")
    assert notify(42, "again", notification_id="n1") == "n1"  # known since the commit
    bench.replay.spill()
    assert published(valkey) == []
    ((retry, expires),) = bench.sql("SELECT retry_at, expires_at FROM dead_letters")
    assert (retry, expires) == (when, when + timedelta(seconds=60))
    assert bench.ledger.counts().duplicate == 1 and bench.balanced()


def test_many_in_one_statement(sessions: sessionmaker[Session], bench: Bench) -> None:
    statements: list[str] = []
    event.listen(sessions.kw["bind"], "before_cursor_execute", lambda *args: statements.append(args[2]))
    with sessions.begin() as session:
        send_many_in(session, (Notification.create(f"user-{n}", n) for n in range(250)))
        send_in(session, 1, "one more")
    assert len([s for s in statements if "INSERT INTO dead_letters" in s]) == 1
    assert bench.ledger.counts().accepted == len(rows(bench)) == 251


def test_rows_that_nobody_would_replay_are_refused(
    sessions: sessionmaker[Session], bench: Bench, new_database_url: str, valkey: Valkey
) -> None:
    upgrade(new_database_url)
    bench.client.set(f"{PREFIX}database", bench.store.fingerprint())  # as beat does
    engine = create_engine(new_database_url)
    with pytest.raises(SettingsError, match="is not the one that beat replays from"), Session(engine) as session:
        send_in(session, 1, 1)
        session.commit()
    engine.dispose()
    with sessions.begin() as session:
        send_in(session, 1, 1)
    assert len(published(valkey)) == len(rows(bench)) == 1


def test_a_database_without_the_table_fails_the_commit(use: object, new_database_url: str, valkey: Valkey) -> None:
    engine = create_engine(new_database_url)
    with pytest.raises(DBAPIError, match="dead_letters"), Session(engine) as session:
        send_in(session, 1, 1)
        session.commit()
    engine.dispose()
    assert published(valkey) == []


def test_the_right_to_insert_is_enough(use: object, bench: Bench, new_database_url: str, valkey: Valkey) -> None:
    upgrade(new_database_url)
    store = Store(new_database_url)
    bench.client.set(f"{PREFIX}database", store.fingerprint())
    engine = create_engine(new_database_url)
    with engine.begin() as connection:
        connection.execute(
            text("REVOKE ALL ON dead_letters FROM CURRENT_USER; GRANT INSERT ON dead_letters TO CURRENT_USER")
        )
    with Session(engine) as session:
        send_in(session, 1, 1)
        session.commit()
    with pytest.raises(DBAPIError, match="permission denied"), engine.begin() as connection:
        connection.execute(text("SELECT 1 FROM dead_letters"))
    engine.dispose()
    store.close()
    assert len(published(valkey)) == 1


@pytest.fixture
def committed(use: Callable[..., None], sessions: sessionmaker[Session], bench: Bench) -> Notification:
    """One whose row is committed, and which nobody has accepted yet."""
    nowhere = f"redis://127.0.0.1:{free_port()}/0"
    use(redis_url=nowhere, broker_url=nowhere)
    with sessions.begin() as session:
        send_in(session, 42, "hello", notification_id="n1")
    assert (rows(bench), bench.ledger.counts().accepted) == (["n1"], 0)
    return Notification.create(42, "hello", notification_id="n1")


def test_cancelled_before_it_is_accepted(committed: Notification, bench: Bench) -> None:
    manager = Manager(bench.store, bench.ledger)
    assert not manager.cancel("42", "n2")
    assert manager.cancel("42", "n1")
    assert not manager.cancel("42", "n1")
    assert rows(bench) == []
    (late,) = bench.ledger.accept([committed], in_rows=True)  # the application comes to it only now
    assert late.status == "duplicate"
    counts = bench.ledger.counts()
    assert (counts.accepted, counts.dropped, counts.duplicate) == (2, 1, 1) and bench.balanced()


@pytest.mark.parametrize("meanwhile", ["accepted", "deferred", "claimed", "delivered"])
def test_cancelled_or_delivered_never_both(committed: Notification, bench: Bench, meanwhile: str) -> None:
    """Whatever happens between its two questions, to the ledger and to the table."""
    claimed = []

    class Interrupted(Ledger):
        def cancel(self, identity: Identity) -> bool:
            found = super().cancel(identity)
            if meanwhile in ("accepted", "deferred"):
                bench.ledger.accept([committed], in_rows=True)
            if meanwhile == "deferred":
                bench.ledger.deny([Message(committed)], [Denial(1, 0, "rate_limited")])
                bench.replay.spill()
            if meanwhile in ("claimed", "delivered"):
                claimed.extend(bench.store.claim_these([identity]))
            if meanwhile == "delivered":
                bench.ledger.deliver_digests([claimed], [Grant(1, 0)])
            return found

    cancelled = Manager(bench.store, Interrupted(bench.client, bench.settings)).cancel("42", "n1")
    bench.ledger.deliver([Message(committed)], [Grant(1, 0)])
    if claimed:
        assert [reply.action for reply in bench.ledger.deliver_digests([claimed], [Grant(1, 0)])] == ["ended"]
        bench.store.finish([row.identity for row in claimed])
    assert (cancelled, len(bench.feed("42"))) == ((False, 1) if meanwhile == "delivered" else (True, 0))
    assert rows(bench) == [] and bench.balanced()


def test_cancelled_where_redis_was_lost(make_bench: MakeBench) -> None:
    bench = make_bench(user_limit="off")
    bench.deny("anna", 1, notification_id="a")
    bench.replay.spill()
    bench.client.flushall()
    assert Manager(bench.store, bench.ledger).cancel("anna", "a")
    bench.replay.run()
    assert (bench.feed("anna"), rows(bench)) == ([], []) and bench.balanced()
