"""The fixture that records what is sent: as a team's tests use it, without any server."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from celery import Celery, current_app
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from notifier import Notification, anotify, anotify_many, notify, notify_many, producer, runtime, send_in, send_many_in
from notifier.errors import InvalidNotification, InvalidRecipients
from notifier.testing import SentNotification, SentNotifications, recording
from tasks import send_notification, send_notifications


@pytest.fixture(autouse=True)
def no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever connects to anything fails."""

    def refuse(*_: object) -> None:
        raise AssertionError("a connection")

    monkeypatch.setattr(socket.socket, "connect", refuse)


def test_all_of_a_call_is_there(sent_notifications: SentNotifications) -> None:
    when = datetime.now(UTC) + timedelta(hours=1)
    made = notify(42, {"a": (1, None)}, category="like", priority="critical", ttl=60, collapse_key="k", not_before=when)
    expected = SentNotification(
        user_id="42", payload={"a": [1, None]}, notification_id=made, channel="websocket", category="like",
        priority="critical", ttl=60.0, collapse_key="k", not_before=when,  # type: ignore[arg-type]
    )  # fmt: skip
    assert list(sent_notifications) == [expected] == sent_notifications[:]
    assert sent_notifications.one(user_id=42, category="like") is sent_notifications[0]


def test_every_way_to_send(sent_notifications: SentNotifications) -> None:
    notify(1, "notify")
    assert notify_many([Notification.create(n, "many") for n in (1, 2)]) == {"queued": 2}
    asyncio.run(anotify(1, "anotify"))
    assert asyncio.run(anotify_many([Notification.create(1, "amany")])) == {"queued": 1}
    result = send_notification.delay(1, "delay", notification_id="mine")
    assert result.id == "mine"
    send_notifications.delay([1, 2], "delay many")
    send_notification(1, "called")
    assert [sent.payload for sent in sent_notifications] == [
        *("notify", "many", "many", "anotify", "amany", "delay", "delay many", "delay many", "called")
    ]
    assert [sent.user_id for sent in sent_notifications.matching(payload="delay many")] == ["1", "2"]


@pytest.fixture
def eager() -> Iterator[Celery]:
    """An app that runs its tasks where they are called."""
    before = current_app._get_current_object()
    app = Celery("eager", broker="memory://", include=["tasks"])
    app.conf.task_always_eager = True
    yield app
    before.set_current()


def test_eager_mode(sent_notifications: SentNotifications, eager: Celery) -> None:
    assert send_notification.delay(1, "x", notification_id="n1").id == "n1"
    send_notification.apply_async((1, "y"), countdown=60)
    with pytest.raises(InvalidRecipients):
        send_notifications.delay([2, ""], "z")
    assert [(sent.user_id, sent.payload) for sent in sent_notifications] == [("1", "x"), ("1", "y"), ("2", "z")]
    assert sent_notifications[1].not_before is not None


def test_what_production_refuses_is_refused(sent_notifications: SentNotifications) -> None:
    for send in (notify, send_notification.delay):
        with pytest.raises(InvalidNotification, match="payload: has a key of type int"):
            send(1, {1: 2})
        with pytest.raises(InvalidNotification, match="channel: 'pigeon' is not one of"):
            send(1, 1, channel="pigeon")
    with Session(create_engine("sqlite://")) as session:
        for send_many in (
            notify_many,
            lambda many: asyncio.run(anotify_many(many)),
            lambda many: send_many_in(session, many),
        ):
            with pytest.raises(InvalidNotification, match=r"notifications: must be Notification.create.* not dict"):
                send_many([Notification.create(1, 1), {"user_id": 1, "payload": 1}])  # type: ignore[list-item]
        session.commit()
    assert len(sent_notifications) == 0


def test_an_id_that_is_sent_again_is_there_once(sent_notifications: SentNotifications) -> None:
    once, again = Notification.create(1, "a", notification_id="n1"), Notification.create(1, "b", notification_id="n1")
    assert notify_many([once, again]) == {"queued": 1, "duplicate": 1}
    assert sent_notifications.one().payload == "a"


def test_a_child_sends_nothing_either(sent_notifications: SentNotifications) -> None:
    """Else a test could reach users: of the child nothing but the publishing would be stood in for."""
    if (child := os.fork()) == 0:
        try:
            notify(1, "from a child")
            os._exit(0 if len(sent_notifications) == 1 else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_what_it_does_not_stand_in_for_is_said(sent_notifications: SentNotifications) -> None:
    with pytest.raises(AttributeError, match="sent_notifications records what is sent, and no more: 'cancel' needs"):
        runtime.get().ledger.cancel(Notification.create(1, 1).identity)


def test_send_in_waits_for_the_commit(sent_notifications: SentNotifications) -> None:
    with Session(create_engine("sqlite://")) as session:
        send_in(session, 1, "rolled back")
        session.rollback()
        send_in(session, 1, "committed")
        with session.begin_nested() as savepoint:
            send_in(session, 1, "rolled back with its savepoint")
            savepoint.rollback()
        sent_notifications.none()
        session.commit()
    assert sent_notifications.one().payload == "committed"


def test_send_in_of_an_event_loop_is_there_when_the_commit_returns(sent_notifications: SentNotifications) -> None:
    async def main() -> None:
        session = AsyncSession(sync_session_class=Session)
        session.sync_session.bind = create_engine("sqlite://")
        send_in(session, 1, "committed")
        await session.commit()
        sent_notifications.one(payload="committed")

    asyncio.run(main())


def test_an_assertion_that_fails_says_what_was_sent(sent_notifications: SentNotifications) -> None:
    with pytest.raises(AssertionError, match=r"0 notifications match .*'like'.*, not 1, of:\s+nothing was sent"):
        sent_notifications.one(category="like")
    notify(1, "seen")
    for check in (sent_notifications.none, lambda **some: sent_notifications.one(**some, payload="other")):
        with pytest.raises(AssertionError, match="'seen'"):
            check(user_id=1)
    with pytest.raises(TypeError, match="has no field usr"):
        sent_notifications.matching(usr=1)
    sent_notifications.clear()
    sent_notifications.none()


def test_nothing_is_left_behind() -> None:
    before = producer.publish, runtime._current
    with pytest.raises(RuntimeError), recording() as sent:
        notify(1, 1)
        raise RuntimeError
    assert (producer.publish, runtime._current) == before
    assert len(sent) == 1
    with recording() as outer, recording() as inner:
        runtime.close()  # as an application does at its end
        notify(1, 1)
    assert (len(outer), len(inner)) == (0, 1)


def test_it_works_without_pytest_and_costs_nothing_where_it_is_not_asked_for(tmp_path: Path) -> None:
    without = """
import sys
sys.modules["pytest"] = None
from notifier.testing import recording
from notifier import notify
with recording() as sent:
    notify(1, 1)
assert len(sent) == 1
"""
    subprocess.run([sys.executable, "-c", without], check=True, cwd=tmp_path)
    (tmp_path / "test_theirs.py").write_text("""
import sys
def test_one():
    assert "notifier.pytest_plugin" in sys.modules and "celery" not in sys.modules and "sqlalchemy" not in sys.modules
def test_two(sent_notifications):
    from notifier import notify
    notify(1, "x")
    assert sent_notifications.one().payload == "x"
def test_three(sent_notifications):
    assert not sent_notifications
""")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_theirs.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert "3 passed" in done.stdout, done.stdout
