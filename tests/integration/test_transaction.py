"""send_in: sent if, and only if, the caller's transaction commits."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import Connection, create_engine, event, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, object_session, scoped_session, sessionmaker

from notifier import Notification, notify, runtime, send_in, send_many_in
from notifier.deadletters.migrate import upgrade
from notifier.deadletters.store import Store
from notifier.embedded.valkey import Valkey
from notifier.errors import InvalidNotification, SettingsError
from notifier.licence import Denial, End
from notifier.redis.keys import PREFIX
from notifier.settings import Settings
from notifier.wire import Message
from tests.deadletters import Bench, MakeBench
from tests.support import eventually, free_port, published

GRACE_S = 60.0


class Base(DeclarativeBase):
    """The application's tables."""


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)


@pytest.fixture
def sessions(use: object, postgres_url: str) -> Iterator[sessionmaker[Session]]:
    """The application's sessions, in the database of the dead letters."""
    engine = create_engine(postgres_url)
    Base.metadata.create_all(engine)
    yield sessionmaker(engine)
    engine.dispose()


@pytest.fixture
def bench(make_bench: MakeBench, sessions: object) -> Bench:
    """What beat would do."""
    return make_bench(user_limit="off")


def rows(bench: Bench) -> list[str]:
    return [row[0] for row in bench.sql("SELECT notification_id FROM dead_letters ORDER BY 1")]


def deliver_as_worker(bench: Bench, *sent: Notification) -> None:
    """What a worker does with the messages of these."""
    bench.ledger.book([Message(n, accepted_us=bench.ledger.now_us()) for n in sent], End.DELIVERED)


def test_committed_it_goes_at_once_and_once(sessions: sessionmaker[Session], bench: Bench, valkey: Valkey) -> None:
    with sessions() as session:
        session.add(Order(id=1))
        assert send_in(session, 42, {"n": 1}, notification_id="n1") == "n1"
        assert (published(valkey), rows(bench)) == ([], [])
        session.commit()
    assert (published(valkey), rows(bench)) == (["n1"], ["n1"])
    assert bench.replay.run().claimed == 0  # the worker has its time

    bench.make_due()  # no worker came: the row goes, and the message finds that it has ended
    assert bench.replay.run().replayed == 1
    late = Message(Notification.create(42, {"n": 1}, notification_id="n1"))
    (reply,) = bench.ledger.deny([late], [Denial(1, 0, "rate_limited")])
    assert reply.code == "gone"
    assert [frame["payload"] for frame in bench.feed("42")] == [{"n": 1}]
    assert rows(bench) == [] and bench.balanced() and bench.ledger.counts().accepted == 1


def test_what_the_worker_delivered_the_row_does_not_deliver_again(
    sessions: sessionmaker[Session], bench: Bench
) -> None:
    with sessions.begin() as session:
        send_in(session, 42, "hello", notification_id="n1")
    deliver_as_worker(bench, Notification.create(42, "hello", notification_id="n1"))
    (key,) = bench.client.scan_iter("*done:*")
    assert bench.client.pttl(key) > 6 * 86_400_000  # it outlives the row, which no ledger calls stale
    bench.make_due()
    assert bench.replay.run().replayed == 0
    assert (rows(bench), bench.feed("42")) == ([], [])
    assert bench.ledger.counts().delivered == 1 and bench.balanced()


@pytest.mark.parametrize("how", ["rollback", "close", "error", "flush error"])
def test_not_committed_it_never_goes(sessions: sessionmaker[Session], bench: Bench, valkey: Valkey, how: str) -> None:
    session = sessions()
    send_in(session, 42, "never")
    if how == "rollback":
        session.rollback()
    elif how == "close":
        session.close()
    elif how == "error":
        with pytest.raises(RuntimeError), session, session.begin_nested():
            raise RuntimeError
    else:
        session.add_all([Order(id=1), Order(id=1)])
        with pytest.raises(Exception, match="orders"):
            session.commit()
        session.rollback()
    session.add(Order(id=7))
    session.commit()  # the session is used again: nothing is left in it
    assert (published(valkey), rows(bench), session.info) == ([], [], {})
    session.close()


def test_a_savepoint_takes_its_own_along(sessions: sessionmaker[Session], bench: Bench, valkey: Valkey) -> None:
    with sessions() as session:
        send_in(session, 1, "outer", notification_id="a-outer")
        with session.begin_nested():
            send_in(session, 1, "kept", notification_id="b-kept")
            with session.begin_nested() as innermost:
                send_in(session, 1, "innermost", notification_id="c-dropped")
                innermost.rollback()
        with session.begin_nested() as dropped:
            with session.begin_nested():
                send_in(session, 1, "released into one that is not", notification_id="d-dropped")
            dropped.rollback()
        send_in(session, 1, "last", notification_id="e-last")
        session.commit()
    assert published(valkey) == rows(bench) == ["a-outer", "b-kept", "e-last"]


def test_an_outer_row_survives_the_savepoint_it_was_written_in(
    sessions: sessionmaker[Session], bench: Bench, valkey: Valkey
) -> None:
    with sessions() as session:
        send_in(session, 1, "outer", notification_id="outer")
        savepoint = session.begin_nested()
        send_in(session, 1, "inner", notification_id="inner")

        def fail(_: Session) -> None:  # comes after ours, which has written both
            raise RuntimeError

        event.listen(session, "before_commit", fail)
        with pytest.raises(RuntimeError):
            savepoint.commit()
        event.remove(session, "before_commit", fail)
        savepoint.rollback()
        session.commit()
    assert published(valkey) == rows(bench) == ["outer"]


def test_a_root_committed_over_an_open_savepoint(sessions: sessionmaker[Session], bench: Bench, valkey: Valkey) -> None:
    with sessions() as session:
        root = session.begin()
        send_in(session, 1, "outer", notification_id="outer")
        session.begin_nested()
        send_in(session, 1, "inner", notification_id="inner")
        root.commit()
    assert published(valkey) == ["outer", "inner"]
    assert rows(bench) == ["inner", "outer"]


def test_sent_by_a_flush_of_the_commit(sessions: sessionmaker[Session], bench: Bench, valkey: Valkey) -> None:
    def tell(mapper: object, connection: Connection, order: Order) -> None:
        session = object_session(order)
        assert session is not None
        send_in(session, 1, {"order": order.id}, notification_id=f"order-{order.id}")

    event.listen(Order, "after_insert", tell)
    try:
        with sessions.begin() as session:
            session.add(Order(id=5))
    finally:
        event.remove(Order, "after_insert", tell)
    assert published(valkey) == rows(bench) == ["order-5"]


@pytest.mark.parametrize("savepoint", [False, True])
def test_sent_while_it_commits(sessions: sessionmaker[Session], bench: Bench, valkey: Valkey, savepoint: bool) -> None:
    """By a listener that comes after ours, and by a flush that it causes: both still belong to the transaction."""

    def tell(session: Session) -> None:
        if session.info.pop("tell", False):
            session.add(Order(id=6))
            send_in(session, 1, "x", notification_id="before-commit")

    def flushed(session: Session, _: object) -> None:
        send_in(session, 1, "x", notification_id="after-flush")

    event.listen(sessions, "before_commit", tell)
    event.listen(sessions, "after_flush", flushed)
    with sessions(info={"tell": True}) as session:
        root = session.begin()
        if savepoint:
            session.begin_nested()
        root.commit()
    with pytest.raises(DBAPIError), sessions(info={"tell": True}) as session:
        session.add(Order(id=6))  # again: nothing of it goes
        session.commit()
    assert published(valkey) == ["before-commit", "after-flush"]
    assert rows(bench) == ["after-flush", "before-commit"]


def test_within_a_transaction_that_is_not_the_sessions(
    sessions: sessionmaker[Session], bench: Bench, valkey: Valkey
) -> None:
    """As test suites do it: the session commits, and the connection rolls back."""
    engine = sessions.kw["bind"]
    for commits in (False, True):
        with engine.connect() as connection, connection.begin() as outer:
            with Session(connection) as session:
                send_in(session, 1, "x", notification_id=f"commits-{commits}")
                session.commit()
            outer.commit() if commits else outer.rollback()
    assert (published(valkey), rows(bench)) == ([], ["commits-True"])
    bench.make_due()
    assert bench.replay.run().replayed == 1


def test_the_first_to_send_may_be_a_listener(postgres_url: str, sessions: sessionmaker[Session], bench: Bench) -> None:
    first = multiprocessing.get_context("spawn").Process(
        target=_sent_by_a_listener, args=(postgres_url, bench.settings)
    )
    first.start()
    first.join(GRACE_S)
    assert (first.exitcode, rows(bench)) == (0, ["n1"])


def _sent_by_a_listener(postgres_url: str, settings: Settings) -> None:
    runtime.get(settings)
    event.listen(Session, "before_commit", lambda s: send_in(s, 42, "first", notification_id="n1"))
    with Session(create_engine(postgres_url)) as session:
        session.execute(text("SELECT 1"))
        session.commit()


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


def test_refused_at_the_call(sessions: sessionmaker[Session]) -> None:
    with sessions() as session:
        for user_id, payload, options in (("", 1, {}), (1, {1: 2}, {}), (1, 1, {"channel": "pigeon"})):
            with pytest.raises(InvalidNotification):
                send_in(session, user_id, payload, **options)
        assert session.info == {} and not session.in_transaction()
    with pytest.raises(InvalidNotification, match="session: must be a SQLAlchemy session, not str"):
        send_in("session", 1, 1)  # type: ignore[arg-type]


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


def test_scoped_sessions(sessions: sessionmaker[Session], valkey: Valkey) -> None:
    scoped = scoped_session(sessions)
    send_in(scoped, 1, 1, notification_id="n1")
    scoped.commit()
    scoped.remove()
    assert published(valkey) == ["n1"]


def test_asyncio(sessions: object, bench: Bench, postgres_url: str, valkey: Valkey) -> None:
    async def main() -> None:
        engine = create_async_engine(postgres_url.replace("+psycopg2", "+asyncpg"))
        make = async_sessionmaker(engine)
        async with make() as session:
            send_in(session, 1, "a", notification_id="a")
            await session.commit()
            send_in(session, 1, "never")
            await session.rollback()
            async with session.begin(), session.begin_nested():
                send_in(session.sync_session, 1, "b", notification_id="b")
        scoped: async_scoped_session[AsyncSession] = async_scoped_session(make, asyncio.current_task)
        send_in(scoped, 1, "c", notification_id="c")
        await scoped.commit()
        await scoped.remove()
        await engine.dispose()

    asyncio.run(main())
    assert rows(bench) == ["a", "b", "c"]
    eventually(lambda: published(valkey) == ["a", "b", "c"])
