"""Calling the tasks, as a producer and as a worker does, on real servers."""

from __future__ import annotations

import base64
import json
import logging
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from celery import Celery, current_app
from celery.app.trace import trace_task
from celery.exceptions import Reject, WorkerTerminate
from redis import Redis

from notifier import Notification, metrics, notify_many, preferences, runtime
from notifier.embedded.postgres import Postgres
from notifier.embedded.valkey import Valkey
from notifier.errors import InvalidNotification, InvalidRecipients, NotAccepted
from notifier.redis.keys import user_key
from notifier.settings import Settings
from tasks import probe, quiet, replay_dead_letters, send_notification, send_notifications, sweep_unsettled
from tasks.app import create_app
from tasks.home import home
from tests.support import free_port

Use = Callable[..., Celery]
Prefer = Callable[[Callable[[str], None] | None], object]
CALLS = (send_notification, send_notifications)


@pytest.fixture
def use(settings: Settings) -> Iterator[Use]:
    """Make these settings the process's, and an app on its broker the current one."""
    before = current_app._get_current_object()

    def configure(**changes: object) -> Celery:
        runtime.close()
        changed = settings.model_copy(update=changes)
        runtime.get(changed)
        app = create_app(changed)
        app.set_current()
        return app

    yield configure
    before.set_current()
    runtime.close()


@pytest.fixture
def preferred() -> Iterator[Prefer]:
    """Preferences are asked of this function."""
    yield preferences.use
    preferences.use(None)


def queued(server: Valkey, queue: str = "normal") -> list[dict[str, Any]]:
    """The kwargs of every message in a queue, oldest first."""
    with Redis.from_url(server.url(1)) as client:
        messages: Any = client.lrange(f"notifier.{queue}", 0, -1)
    return [json.loads(base64.b64decode(json.loads(raw)["body"]))[1] for raw in reversed(messages)]


def payloads(user: str) -> list[Any]:
    """What is in a user's feed, oldest first."""
    entries: Any = runtime.get().client.xrange(user_key("feed", user, "websocket"))
    return [json.loads(b"{" + fields[b"f"])["payload"] for _, fields in entries]


def as_worker(task: Any, *args: Any, redelivered: bool = False, task_id: str = "t1", **kwargs: Any) -> None:
    """Run a task's function as a worker that got this message."""
    real = home().tasks[task.name]
    real.push_request(id=task_id, called_directly=False, delivery_info={"redelivered": redelivered})
    try:
        real.run(*args, **kwargs)
    finally:
        real.pop_request()


# ---- the call


def test_the_result_is_the_notification(use: Use, valkey: Valkey) -> None:
    use()
    chosen = send_notification.delay(42, {"text": "hello"}, notification_id="mine")
    made = send_notification.delay(uuid.UUID(int=7), [1])
    assert (chosen.id, len(made.id)) == ("mine", 36)
    assert [(m["user_id"], m["notification_id"], m["body"]) for m in queued(valkey)] == [
        ("42", "mine", '{"text":"hello"}'),
        ("00000000-0000-0000-0000-000000000007", made.id, "[1]"),
    ]


def test_many_recipients_share_the_id(use: Use, valkey: Valkey) -> None:
    use()
    result = send_notifications.delay(["anna", 7], {"a": 1})
    (message,) = queued(valkey, "bulk")
    assert (message["user_ids"], message["notification_id"]) == (["anna", "7"], result.id)
    assert len(send_notifications.delay([], {"a": 1}).id) == 36
    assert runtime.get().ledger.counts().accepted == 2


def test_celerys_own_options(use: Use) -> None:
    use()
    in_an_hour = datetime.now(UTC) + timedelta(hours=1)
    result = send_notification.apply_async((1, "x"), {"ttl": 60}, task_id="t9", eta=in_an_hour, producer=object())
    send_notification.apply_async((1, "y"), countdown=7200)
    send_notification.s(1, "z").set(countdown=10800).apply_async()
    items = sorted(runtime.get().ledger.peek_deferred(10), key=lambda item: item.retry_at_us)
    assert result.id == "t9" == items[0].notification.notification_id
    assert items[0].retry_at_us == int(in_an_hour.timestamp() * 1e6)
    assert items[0].expires_us == items[0].retry_at_us + 60_000_000
    assert [item.notification.body for item in items] == ['"x"', '"y"', '"z"']
    assert {item.reason for item in items} == {"scheduled"}


CYCLE: list[Any] = []
CYCLE.append(CYCLE)
DEEP: list[Any] = []
for _ in range(600):
    DEEP = [DEEP]


@pytest.mark.parametrize(
    ("argument", "args", "kwargs"),
    [
        ("user_id", ("", 1), {}),
        ("user_id", ("x" * 513, 1), {}),
        ("user_id", (None, 1), {}),
        ("user_id", (1.5, 1), {}),
        ("payload", (1, {"a": float("nan")}), {}),
        ("payload", (1, {"a": b"x"}), {}),
        ("payload", (1, {1: "x"}), {}),
        ("payload", (1, CYCLE), {}),
        ("payload", (1, DEEP), {}),
        ("payload", (1, "x" * 65_536), {}),
        ("payload", (1, datetime.now(UTC)), {}),
        ("channel", (1, 1), {"channel": "carrier pigeon"}),
        ("category", (1, 1), {"category": ""}),
        ("priority", (1, 1), {"priority": "urgent"}),
        ("ttl", (1, 1), {"ttl": -1}),
        ("ttl", (1, 1), {"ttl": "soon"}),
        ("not_before", (1, 1), {"not_before": datetime(2030, 1, 1)}),
        ("notification_id", (1, 1), {"notification_id": ""}),
        ("collapse_key", (1, 1), {"collapse_key": 5}),
    ],
)
def test_bad_input_is_refused_at_the_call_by_name(use: Use, argument: str, args: Any, kwargs: Any) -> None:
    use()
    for task in CALLS:
        many = task is send_notifications
        first = [args[0]] if many else args[0]
        with pytest.raises(InvalidNotification) as refused:
            task.delay(first, *args[1:], **kwargs)
        assert refused.value.argument == ("user_ids[0]" if many and argument == "user_id" else argument)
    assert runtime.get().ledger.counts().accepted == 0


@pytest.mark.parametrize(
    ("args", "kwargs", "says"),
    [
        ((1,), {}, "payload"),
        ((), {"payload": 1}, "user_id"),
        ((1, 2, "websocket"), {}, "positional"),
        ((1, 2), {"chanel": "websocket"}, "chanel"),
    ],
)
def test_wrong_arguments_are_a_type_error_as_in_any_call(use: Use, args: Any, kwargs: Any, says: str) -> None:
    use()
    for task in CALLS:
        with pytest.raises(TypeError, match=says) as refused:
            task.delay(*args, **kwargs)
        assert task.name.removeprefix("notifier.") in str(refused.value)


@pytest.mark.parametrize("users", ["anna", b"anna", {"anna": 1}, 5, None])
def test_recipients_must_be_a_list(use: Use, users: Any) -> None:
    use()
    with pytest.raises(InvalidNotification, match="user_ids"):
        send_notifications.delay(users, "x")


def test_one_bad_recipient_does_not_spoil_the_others(use: Use, valkey: Valkey) -> None:
    use()
    users = ["anna", "", "bert", None, *range(1500), "x" * 600]
    with pytest.raises(InvalidRecipients) as refused:
        send_notifications.delay(iter(users), "x", priority="normal", notification_id="n1")
    assert list(refused.value.rejected) == [1, 3, 1504]
    assert refused.value.notification_id == "n1"
    assert str(refused.value).startswith("user_ids[1]: must have 1 to 512 characters, has 0, and 2 more")
    assert runtime.get().ledger.counts().accepted == 1502
    assert sum(len(message["user_ids"]) for message in queued(valkey)) == 1502
    with pytest.raises(InvalidRecipients):
        send_notifications(["carl", ""], "y")
    assert payloads("carl") == ["y"]


def test_who_was_not_accepted_is_named(use: Use) -> None:
    nowhere = f"redis://127.0.0.1:{free_port()}/0"
    use(redis_url=nowhere, broker_url=nowhere)
    users = [str(number) for number in range(2500)]
    with pytest.raises(NotAccepted) as refused:
        send_notifications.delay([*users, ""], "x", notification_id="n1")
    assert refused.value.recipients == users


# ---- without a worker


@pytest.mark.parametrize("task", CALLS)
def test_eager_mode_delivers_at_once(use: Use, valkey: Valkey, task: Any) -> None:
    app = use()
    app.conf.task_always_eager = True
    result = task.delay(["anna"] if task is send_notifications else "anna", {"a": 1})
    assert payloads("anna") == [{"a": 1}]
    assert result.id
    assert queued(valkey) == []
    with pytest.raises(InvalidNotification, match="channel"):
        task.delay(["anna"] if task is send_notifications else "anna", 1, channel="carrier pigeon")


def test_called_as_a_function_it_delivers_here(use: Use, valkey: Valkey) -> None:
    use()
    send_notification("anna", {"a": 1})
    send_notifications(["anna", "bert"], {"a": 2}, category="like")
    assert (payloads("anna"), payloads("bert"), queued(valkey)) == ([{"a": 1}, {"a": 2}], [{"a": 2}], [])
    with pytest.raises(InvalidNotification, match="payload"):
        send_notification("anna", {"a": {1, 2}})


# ---- the worker's side


def test_arguments_of_other_versions(use: Use, valkey: Valkey) -> None:
    use()
    send_notification.delay("anna", "new")
    (message,) = queued(valkey)
    as_worker(send_notification, **message, hue="of a newer version")
    as_worker(send_notification, user_id="anna", body='"old"', task_id="old-1")
    as_worker(send_notifications, user_ids=["anna", "bert"], body='"both"', hue=3, task_id="old-2")
    assert payloads("anna") == ["new", "old", "both"]
    assert payloads("bert") == ["both"]


def test_a_message_of_several_batches_and_one_that_cannot_be_read_spoils_no_other(
    use: Use, valkey: Valkey, caplog: pytest.LogCaptureFixture
) -> None:
    use()
    notify_many([Notification.create("anna", 1), Notification.create("bert", 2), Notification.create("anna", 3)])
    (message,) = queued(valkey)
    first, second, third = message["batches"]
    metrics._last.clear()
    newer = {**second, "priority": "of a newer version"}
    as_worker(send_notifications, batches=[first, newer, "no batch", third], hue=3)
    assert (payloads("anna"), payloads("bert")) == ([1, 3], [])
    assert "cannot be read" in caplog.text
    as_worker(send_notifications, **message, redelivered=True)
    assert (payloads("anna"), payloads("bert")) == ([1, 3], [2])


def test_a_batch_without_ids_would_be_another_at_every_delivery(use: Use, caplog: pytest.LogCaptureFixture) -> None:
    use()
    metrics._last.clear()
    as_worker(send_notifications, batches=[{"user_ids": ["anna"], "payload": 1}])
    assert payloads("anna") == []
    assert "body: is missing" in caplog.text


def test_one_that_kills_its_worker_again_and_again_parks_alone(use: Use, valkey: Valkey, preferred: Prefer) -> None:
    """Also where it is the sweep that brings it, because the whole worker was killed: no broker says so then."""
    use()
    notify_many([Notification.create(user, 1) for user in ("anna", "bert", "cleo")])
    (message,) = queued(valkey)
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


def test_those_that_come_again_do_not_wait_each_for_a_server_that_is_away(use: Use, postgres_url: str) -> None:
    """One by one they would not be through within the time limit, time and again, and hold up all others."""
    use(redis_url=f"redis://127.0.0.1:{free_port()}/0")
    waits = metrics.DEGRADED.labels("state_redis")
    before = waits._value.get()
    users = [f"user-{number}" for number in range(30)]
    as_worker(send_notifications, user_ids=users, body="1", notification_id="n1", redelivered=True)
    assert waits._value.get() == before + 2  # the first, and the others together
    assert runtime.get().store.counts().waiting == 30


def test_those_that_come_again_are_cut_short_in_time(use: Use, valkey: Valkey, monkeypatch: pytest.MonkeyPatch) -> None:
    """A channel may be slow: what is not done within its time limit would be killed in the middle, time and again."""
    use()
    notify_many([Notification.create(user, 1) for user in ("anna", "bert", "cleo")])
    (message,) = queued(valkey)
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
    use: Use, valkey: Valkey, preferred: Prefer, caplog: pytest.LogCaptureFixture
) -> None:
    app = use()
    quiet.install()
    notify_many([Notification.create("anna", number) for number in range(3)])
    (message,) = queued(valkey)

    def line(task: Any, told: str, **kwargs: Any) -> logging.LogRecord:
        metrics._last.clear()
        caplog.clear()
        with caplog.at_level(logging.INFO, "celery.app.trace"):
            trace_task(home().tasks[task.name], "t1", (), kwargs, request={"id": "t1", "delivery_info": {}}, app=app)
        return next(record for record in caplog.records if told in record.getMessage())

    def told(record: logging.LogRecord) -> tuple[object, ...]:
        return tuple(getattr(record, name, None) for name in ("user_id", "channel", "notification_id", "recipients"))

    preferred(lambda _: sys.exit())
    assert told(line(send_notifications, "went back", **message)) == (None, "websocket", None, 3)
    preferred(None)
    assert told(line(send_notifications, "succeeded", **message)) == (None, "websocket", None, 3)
    both = {"user_ids": ["anna", "bert"], "body": "1", "notification_id": "n1"}
    assert told(line(send_notifications, "succeeded", **both)) == (None, "websocket", "n1", 2)
    one = {"user_id": "anna", "body": "1", "notification_id": "n2"}
    assert told(line(send_notification, "succeeded", **one)) == ("anna", "websocket", "n2", None)


def test_a_message_sent_by_name_is_the_same_at_every_delivery(use: Use) -> None:
    use()
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
def test_what_nobody_can_read_is_reported_and_let_go(use: Use, kwargs: Any, caplog: pytest.LogCaptureFixture) -> None:
    use()
    metrics._last.clear()
    as_worker(send_notification, **kwargs)
    assert "cannot be read" in caplog.text


def test_batches_that_are_no_list_are_reported_and_let_go(use: Use, caplog: pytest.LogCaptureFixture) -> None:
    use()
    metrics._last.clear()
    as_worker(send_notifications, batches={"user_ids": ["anna"], "body": "1"})
    assert "batches: must be a list, not dict" in caplog.text


def test_what_nobody_holds_goes_back_to_the_broker(
    use: Use, fresh_valkey: Callable[..., Valkey], fresh_postgres: Callable[..., Postgres]
) -> None:
    state, database = fresh_valkey(aof=None), fresh_postgres()
    use(redis_url=state.url(), database_url=database.url().replace("postgresql:", "postgresql+psycopg2:"))
    state.kill()
    as_worker(send_notification, user_id="anna", body="1", notification_id="n1")
    assert runtime.get().store.counts().waiting == 1, "PostgreSQL holds it"
    database.kill()
    with pytest.raises(Reject) as rejected:
        as_worker(send_notification, user_id="anna", body="2", notification_id="n2")
    assert rejected.value.requeue


def test_beats_tasks_run_and_say_so(use: Use) -> None:
    use()
    for _ in range(11):
        send_notification("anna", "x")
    assert runtime.get().ledger.counts().deferred == 1
    as_worker(replay_dead_letters)
    as_worker(sweep_unsettled)
    as_worker(probe, queue="normal", published_us=5)
    assert runtime.get().ledger.counts().deferred == 0
    assert runtime.get().store.counts().waiting == 1
    assert int(runtime.get().client.get("notifier:v1:replayed") or 0) > 0  # type: ignore[arg-type]


def test_beats_tasks_do_not_fail_for_want_of_a_server(use: Use, caplog: pytest.LogCaptureFixture) -> None:
    use(redis_url=f"redis://127.0.0.1:{free_port()}/0")
    metrics._last.clear()
    as_worker(replay_dead_letters)
    as_worker(sweep_unsettled)
    as_worker(probe, queue="normal", published_us=5)
    assert "notifier.replay_dead_letters" in caplog.text


# ---- whose app


def test_a_thread_without_an_app_of_its_own_uses_ours(use: Use) -> None:
    from tasks import app as ours

    mine = use()
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append((home(), send_notification.app)))
    thread.start()
    thread.join()
    assert (home(), send_notification.app) == (mine, mine)
    assert found == [(ours, ours)]


def test_importing_tasks_takes_nobodys_place() -> None:
    code = """
from celery import Celery, current_app, shared_task
@shared_task
def theirs(): pass
before, after = Celery("before", broker="redis://localhost:1/0"), None
import tasks
assert current_app._get_current_object() is before and theirs.app is before
assert tasks.send_notification.app is before and tasks.send_notification.name in before.tasks
after = Celery("after", broker="redis://localhost:1/0")
assert tasks.send_notification.app is after and theirs.app is after
assert before.conf.task_queues is None and not before.conf.beat_schedule and not before.conf.task_acks_late
assert tasks.send_notification.acks_late and tasks.send_notification.reject_on_worker_lost
assert before.conf.worker_prefetch_multiplier == 4
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)
