"""send_in: a notification that is sent if, and only if, the caller's SQLAlchemy transaction commits.

At the commit its row goes into `dead_letters` with everything else, in one statement for all of the transaction; right
after it, it is accepted like any other. Where the process dies between the two, or no server can be reached, the replay
finds the row. A savepoint that is rolled back takes its notifications with it, and so does a session that is closed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from sqlalchemy import event
from sqlalchemy.ext.asyncio import async_scoped_session
from sqlalchemy.orm import Session, scoped_session
from sqlalchemy.orm.session import SessionTransactionState

from notifier import metrics, producer, runtime
from notifier.aio import aside
from notifier.errors import InvalidNotification
from notifier.ledger import CHUNK
from notifier.notification import Notification
from notifier.wire import Message

if TYPE_CHECKING:
    from sqlalchemy import Connection
    from sqlalchemy.ext.asyncio import AsyncSession
    from sqlalchemy.orm import SessionTransaction

    AnySession = Session | scoped_session[Any] | AsyncSession | async_scoped_session[Any]

_KEY = "notifier"  # in a session's `info`: its pending ones
_COMMITS = "notifier.commits"  # how many commits, of it and of savepoints, have begun and not ended


@dataclass(slots=True)
class _Pending:
    """One notification, the transaction (or savepoint) it belongs to, the one in which its row was written, and how."""

    notification: Notification
    owner: SessionTransaction
    written_in: SessionTransaction | None = None
    connection: Connection | None = None


def send_in(session: AnySession, user_id: object, payload: object, **options: Any) -> str:
    """Send one notification when the session's transaction commits, never if it does not.

    Takes the options of notify and returns the notification id. The session may be an AsyncSession. Nothing is sent or
    written before the commit; in an after_commit listener it goes at once, as by notify. Raises InvalidNotification.
    Raised by the commit: SQLAlchemy's errors where the session's database has no table `dead_letters` or its user may
    not insert into it, SettingsError where beat replays from another database.
    """
    notification = producer.created("send_in", user_id, payload, options)
    send_many_in(session, [notification])
    return notification.notification_id


def send_many_in(session: AnySession, notifications: Iterable[Notification]) -> None:
    """The same for many, `Notification.create(...)` each. All or none of them are sent."""
    made = list(notifications)
    producer.check_notifications(made)
    inner = _inner(session)
    owner = inner.get_nested_transaction() or inner.get_transaction() or inner.begin()
    if owner._state is SessionTransactionState.COMMITTED:  # in an after_commit listener
        if not owner.nested or owner.parent is None:
            producer.accept_and_publish(producer.own_app(), made)
            return
        owner = owner.parent  # of a savepoint: it commits with what that is in
    inner.info.setdefault(_KEY, []).extend(_Pending(n, owner) for n in made)
    if inner.info.get(_COMMITS):  # another listener sends, or a flush that one caused: ours has been called
        _write(inner)


def _inner(session: Any) -> Session:
    """The Session in a scoped_session, an AsyncSession or an async_scoped_session."""
    inner = session() if isinstance(session, (scoped_session, async_scoped_session)) else session
    inner = getattr(inner, "sync_session", inner)
    if not isinstance(inner, Session):
        raise InvalidNotification("session", f"must be a SQLAlchemy session, not {type(session).__name__}")
    return inner


def _before_commit(session: Session) -> None:
    """Of the transaction, or of a savepoint: the rows are written in either, at the last moment.

    So no row of ours, nor the lock on its key, is held while the application thinks.
    """
    if not session._flushing:
        session.flush()  # the commit does it next; what a flush makes somebody send is to be written too
    _write(session)
    session.info[_COMMITS] = session.info.get(_COMMITS, 0) + 1


def _write(session: Session) -> None:
    unwritten = [item for item in session.info.get(_KEY, ()) if item.written_in is None]
    if not unwritten:
        return
    from notifier.deadletters.schema import dead_letters

    connection = session.connection(bind_arguments={"clause": dead_letters})
    runtime.get().outbox.write(connection, [item.notification for item in unwritten])
    for item in unwritten:
        item.written_in, item.connection = _innermost(session), connection


def _after_commit(session: Session) -> None:
    """Of a savepoint: its notifications are the outer transaction's now. Of that one: they may go."""
    session.info[_COMMITS] = max(0, session.info.get(_COMMITS, 0) - 1)
    if not (pending := session.info.get(_KEY)):
        return
    ended = _innermost(session)
    if ended is not None and (outer := ended.parent if ended.nested else None):
        for item in pending:
            item.owner = outer if item.owner is ended else item.owner
            item.written_in = outer if item.written_in is ended else item.written_in
        return
    del session.info[_KEY]
    # In a transaction that is not the session's own nothing is committed yet. Once it is, the replay finds the rows.
    if ready := [item.notification for item in pending if not (item.connection and item.connection.in_transaction())]:
        _accept(ready)


def _after_transaction_end(session: Session, transaction: SessionTransaction) -> None:
    """What still belongs to it was rolled back."""
    if transaction.parent is None:
        session.info.pop(_COMMITS, None)
    if not (pending := session.info.get(_KEY)):
        return
    session.info[_KEY] = left = [item for item in pending if item.owner is not transaction]
    for item in left:
        if item.written_in is transaction:
            item.written_in = None
    if not left:
        del session.info[_KEY]


def _innermost(session: Session) -> SessionTransaction | None:
    return session.get_nested_transaction() or session.get_transaction()


def _accept(notifications: Sequence[Notification]) -> None:
    """At once, like notify; but no event loop waits for it, and nothing is raised: the rows are there."""
    if _in_event_loop() and not runtime.get().stands_in:
        if not aside(partial(_accept_now, notifications)):
            metrics.degraded("send_in", "accepted seconds later, by the replay: too many wait for servers")
    else:
        _accept_now(notifications)


def _in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _accept_now(notifications: Sequence[Notification]) -> None:
    try:
        parts, reached = runtime.get(), True
        for start in range(0, len(notifications), CHUNK):
            chunk = notifications[start : start + CHUNK]
            accepted = parts.ledger.accept(chunk, in_rows=True)
            queued = [
                (a.queue, Message(n, a.accepted_us, a.epoch))
                for n, a in zip(chunk, accepted, strict=True)
                if a.status == "queued"
            ]
            # A commit that made many does not wait for a broker that is away again and again: the sweep publishes.
            reached = reached and producer.publish_accepted(producer.own_app(), queued)
    except Exception as error:
        metrics.degraded("send_in", f"accepted seconds later, by the replay: {type(error).__name__}")


# For every session of the process; where nothing was sent in one, it costs a look into its `info`. From the import on,
# as the first to send may be a listener, and SQLAlchemy takes no new ones while it calls those it has.
event.listen(Session, "before_commit", _before_commit)
event.listen(Session, "after_commit", _after_commit)
event.listen(Session, "after_transaction_end", _after_transaction_end)
