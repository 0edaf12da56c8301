"""send_in: sent if, and only if, the caller's transaction commits. What its rows are, test_transaction_rows says."""

from __future__ import annotations

import asyncio
import multiprocessing

import pytest
from sqlalchemy import Connection, create_engine, event, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, object_session, scoped_session, sessionmaker

from notifier import Notification, runtime, send_in
from notifier.embedded.valkey import Valkey
from notifier.errors import InvalidNotification
from notifier.licence import Denial, End
from notifier.settings import Settings
from notifier.wire import Message
from tests.deadletters import Bench, MakeBench, rows
from tests.support import eventually, published

GRACE_S = 60.0


class Base(DeclarativeBase):
    """The application's tables."""


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)


@pytest.fixture
def sessions(sessions: sessionmaker[Session]) -> sessionmaker[Session]:
    """With the application's tables."""
    Base.metadata.create_all(sessions.kw["bind"])
    return sessions


@pytest.fixture
def bench(make_bench: MakeBench, sessions: object) -> Bench:
    """What beat would do."""
    return make_bench(user_limit="off")


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


def test_refused_at_the_call(sessions: sessionmaker[Session]) -> None:
    with sessions() as session:
        for user_id, payload, options in (("", 1, {}), (1, {1: 2}, {}), (1, 1, {"channel": "pigeon"})):
            with pytest.raises(InvalidNotification):
                send_in(session, user_id, payload, **options)
        assert session.info == {} and not session.in_transaction()
    with pytest.raises(InvalidNotification, match="session: must be a SQLAlchemy session, not str"):
        send_in("session", 1, 1)  # type: ignore[arg-type]


def test_sent_after_the_commit_it_goes_at_once(sessions: sessionmaker[Session], bench: Bench, valkey: Valkey) -> None:
    """The transaction that it would belong to has ended, and is no reason to wait any more."""
    with sessions() as session:
        event.listen(session, "after_commit", lambda ended: send_in(ended, 42, "x", notification_id="late"))
        session.execute(text("SELECT 1"))
        session.commit()
    assert (published(valkey), rows(bench)) == (["late"], [])


@pytest.mark.parametrize("commits", [True, False])
def test_sent_after_a_savepoint_it_goes_with_what_that_is_in(
    sessions: sessionmaker[Session], valkey: Valkey, commits: bool
) -> None:
    def say(ended: Session) -> None:
        if ended.in_nested_transaction():
            send_in(ended, 42, "x", notification_id="late")

    with sessions() as session:
        event.listen(session, "after_commit", say)
        with session.begin_nested():
            session.execute(text("SELECT 1"))
        assert published(valkey) == []
        session.commit() if commits else session.rollback()
    assert published(valkey) == (["late"] if commits else [])


def test_sent_where_a_transaction_begins_or_is_rolled_back(sessions: sessionmaker[Session], valkey: Valkey) -> None:
    with sessions() as session:
        event.listen(session, "after_begin", lambda s, *_: send_in(s, 42, "x", notification_id="begun"))
        event.listen(session, "after_rollback", lambda s: send_in(s, 42, "x", notification_id="rolled back"))
        session.execute(text("SELECT 1"))
        session.rollback()
        assert published(valkey) == []
        session.execute(text("SELECT 1"))
        session.commit()
    assert published(valkey) == ["begun"]


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
