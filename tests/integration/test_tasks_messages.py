"""What a worker does with messages of every kind, on real servers."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery.app.trace import trace_task
from celery.exceptions import Reject, WorkerTerminate

from notifier import Notification, metrics, notify_many, preferences, runtime
from notifier.embedded.postgres import Postgres
from notifier.embedded.valkey import Valkey
from tasks import probe, quiet, replay_dead_letters, send_notification, send_notifications, sweep_unsettled
from tasks.home import home
from tests.as_worker import Use, as_worker, payloads
from tests.support import free_port, queued_kwargs

Prefer = Callable[[Callable[[str], None] | None], object]


@pytest.fixture
def preferred() -> Iterator[Prefer]:
    """Preferences are asked of this function."""
    yield preferences.use
    preferences.use(None)


def test_arguments_of_other_versions(our_app: Use, valkey: Valkey) -> None:
    our_app()
    send_notification.delay("anna", "new")
    (message,) = queued_kwargs(valkey)
    as_worker(send_notification, **message, hue="of a newer version")
    as_worker(send_notification, user_id="anna", body='"old"', task_id="old-1")
    as_worker(send_notifications, user_ids=["anna", "bert"], body='"both"', hue=3, task_id="old-2")
    assert payloads("anna") == ["new", "old", "both"]
    assert payloads("bert") == ["both"]


def test_a_message_of_several_batches_and_one_that_cannot_be_read_spoils_no_other(
    our_app: Use, valkey: Valkey, caplog: pytest.LogCaptureFixture
) -> None:
    our_app()
    notify_many([Notification.create("anna", 1), Notification.create("bert", 2), Notification.create("anna", 3)])
    (message,) = queued_kwargs(valkey)
    first, second, third = message["batches"]
    metrics._last.clear()
    newer = {**second, "priority": "of a newer version"}
    as_worker(send_notifications, batches=[first, newer, "no batch", third], hue=3)
    assert (payloads("anna"), payloads("bert")) == ([1, 3], [])
    assert "cannot be read" in caplog.text
    as_worker(send_notifications, **message, redelivered=True)
    assert (payloads("anna"), payloads("bert")) == ([1, 3], [2])


def test_a_batch_without_ids_would_be_another_at_every_delivery(our_app: Use, caplog: pytest.LogCaptureFixture) -> None:
    our_app()
    metrics._last.clear()
    as_worker(send_notifications, batches=[{"user_ids": ["anna"], "payload": 1}])
    assert payloads("anna") == []
    assert "body: is missing" in caplog.text


def test_one_that_kills_its_worker_again_and_again_parks_alone(our_app: Use, valkey: Valkey, preferred: Prefer) -> None:
    """Also where it is the sweep that brings it, because the whole worker was killed: no broker says so then."""
    our_app()
    notify_many([Notification.create(user, 1) for user in ("anna", "bert", "cleo")])
    (message,) = queued_kwargs(valkey)
    swept = [{**batch, "again": True} for batch in message["batches"]]

    def dies(user_id: str) -> None:
        if user_id == "bert":
            raise WorkerTerminate

    preferred(dies)
    for _ in range(4):
        with pytest.raises(WorkerTerminate):
            as_worker(send_notifications, batches=swept)
    as_worker(send_notifications, batches=swept)
    assert (payloads("anna"), payloads("bert"), payloads("cleo")) == ([1], [], [1])
    assert runtime.get().ledger.counts().parked == 1


def test_those_that_come_again_do_not_wait_each_for_a_server_that_is_away(our_app: Use, postgres_url: str) -> None:
    """One by one they would not be through within the time limit, time and again, and hold up all others."""
    our_app(redis_url=f"redis://127.0.0.1:{free_port()}/0")
    waits = metrics.DEGRADED.labels("state_redis")
    before = waits._value.get()
    users = [f"user-{number}" for number in range(30)]
    as_worker(send_notifications, user_ids=users, body="1", notification_id="n1", redelivered=True)
    assert waits._value.get() == before + 2  # the first, and the others together
    assert runtime.get().store.counts().waiting == 30


def test_those_that_come_again_are_cut_short_in_time(
    our_app: Use, valkey: Valkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A channel may be slow: what is not done within its time limit would be killed in the middle, time and again."""
    our_app()
    notify_many([Notification.create(user, 1) for user in ("anna", "bert", "cleo")])
    (message,) = queued_kwargs(valkey)
    monkeypatch.setattr("tasks.base.ONE_BY_ONE_S", 0.0)
    for _ in range(2):
        with pytest.raises(Reject) as error:
            as_worker(send_notifications, **message, redelivered=True)
        assert error.value.requeue
    assert payloads("anna") == [1]
    monkeypatch.undo()
    as_worker(send_notifications, **message, redelivered=True)
    assert [payloads(user) for user in ("anna", "bert", "cleo")] == [[1], [1], [1]]


def test_a_line_about_several_names_none_of_them(
    our_app: Use, valkey: Valkey, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    app = our_app()
    quiet.install()
    notify_many([Notification.create("anna", number) for number in range(3)])
    (message,) = queued_kwargs(valkey)

    def line(task: Any, told: str, **kwargs: Any) -> logging.LogRecord:
        metrics._last.clear()
        caplog.clear()
        with caplog.at_level(logging.INFO, "celery.app.trace"):
            trace_task(home().tasks[task.name], "t1", (), kwargs, request={"id": "t1", "delivery_info": {}}, app=app)
        return next(record for record in caplog.records if told in record.getMessage())

    def told(record: logging.LogRecord) -> tuple[object, ...]:
        return tuple(getattr(record, name, None) for name in ("user_id", "channel", "notification_id", "recipients"))

    with monkeypatch.context() as broken:
        broken.setattr(runtime.get().pipeline, "handle", lambda _: sys.exit())
        assert told(line(send_notifications, "went back", **message)) == (None, "websocket", None, 3)
    assert told(line(send_notifications, "succeeded", **message)) == (None, "websocket", None, 3)
    both = {"user_ids": ["anna", "bert"], "body": "1", "notification_id": "n1"}
    assert told(line(send_notifications, "succeeded", **both)) == (None, "websocket", "n1", 2)
    one = {"user_id": "anna", "body": "1", "notification_id": "n2"}
    assert told(line(send_notification, "succeeded", **one)) == ("anna", "websocket", "n2", None)


def test_a_message_sent_by_name_is_the_same_at_every_delivery(our_app: Use) -> None:
    our_app()
    for redelivered in (False, True):
        as_worker(send_notification, "anna", {"a": 1}, redelivered=redelivered, task_id="by-name")
        as_worker(send_notifications, ["anna"], {"a": 2}, redelivered=redelivered, task_id="by-name-2")
    assert payloads("anna") == [{"a": 1}, {"a": 2}]


@pytest.mark.parametrize(
    "kwargs",
    [
        {},
        {"user_id": "anna"},
        {"user_id": "anna", "body": "1", "priority": "urgent"},
        {"user_id": 5, "body": "1"},
        {"user_id": "anna", "body": "{1}"},
        {"user_id": "anna", "body": None},
        {"user_id": "anna", "body": "1", "ttl_us": "soon"},
        {"user_id": "anna", "body": "1", "accepted_us": "now"},
        {"user_id": "anna", "body": "1", "category": "a\0b"},
        {"user_id": "anna", "body": "1", "collapse_key": "k" * 201},
        {"user_id": "a" * 513, "body": "1"},
        {"user_id": "anna", "body": '"' + "x" * 70_000 + '"'},
        {"user_id": "anna", "body": "1", "notification_id": "\ud800"},
    ],
)
def test_what_nobody_can_read_is_reported_and_let_go(
    our_app: Use, kwargs: Any, caplog: pytest.LogCaptureFixture
) -> None:
    our_app()
    metrics._last.clear()
    as_worker(send_notification, **kwargs)
    assert "cannot be read" in caplog.text


def test_batches_that_are_no_list_are_reported_and_let_go(our_app: Use, caplog: pytest.LogCaptureFixture) -> None:
    our_app()
    metrics._last.clear()
    as_worker(send_notifications, batches={"user_ids": ["anna"], "body": "1"})
    assert "batches: must be a list, not dict" in caplog.text


def test_what_nobody_holds_goes_back_to_the_broker(
    our_app: Use, fresh_valkey: Callable[..., Valkey], fresh_postgres: Callable[..., Postgres]
) -> None:
    state, database = fresh_valkey(aof=None), fresh_postgres()
    our_app(redis_url=state.url(), database_url=database.url().replace("postgresql:", "postgresql+psycopg2:"))
    state.kill()
    as_worker(send_notification, user_id="anna", body="1", notification_id="n1")
    assert runtime.get().store.counts().waiting == 1, "PostgreSQL holds it"
    database.kill()
    with pytest.raises(Reject) as rejected:
        as_worker(send_notification, user_id="anna", body="2", notification_id="n2")
    assert rejected.value.requeue


def test_beats_tasks_run_and_say_so(our_app: Use) -> None:
    our_app()
    for _ in range(11):
        send_notification("anna", "x")
    assert runtime.get().ledger.counts().deferred == 1
    as_worker(replay_dead_letters)
    as_worker(sweep_unsettled)
    as_worker(probe, queue="normal", published_us=5)
    assert runtime.get().ledger.counts().deferred == 0
    assert runtime.get().store.counts().waiting == 1
    assert int(runtime.get().client.get("notifier:v1:replayed") or 0) > 0  # type: ignore[arg-type]


def test_beats_tasks_do_not_fail_for_want_of_a_server(our_app: Use, caplog: pytest.LogCaptureFixture) -> None:
    our_app(redis_url=f"redis://127.0.0.1:{free_port()}/0")
    metrics._last.clear()
    as_worker(replay_dead_letters)
    as_worker(sweep_unsettled)
    as_worker(probe, queue="normal", published_us=5)
    assert "notifier.replay_dead_letters" in caplog.text
