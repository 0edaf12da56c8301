"""Calling the tasks on real servers, with and without a worker."""

from __future__ import annotations

import subprocess
import sys
import threading
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from celery import chain, group

from notifier import runtime
from notifier.embedded.valkey import Valkey
from notifier.errors import InvalidNotification, InvalidRecipients, NotAccepted
from tasks import send_notification, send_notifications
from tasks.home import home
from tests.as_worker import Use, payloads
from tests.support import free_port, queued_kwargs

CALLS = (send_notification, send_notifications)


# ---- the call


def test_the_result_is_the_notification(our_app: Use, valkey: Valkey) -> None:
    our_app()
    chosen = send_notification.delay(42, {"text": "hello"}, notification_id="mine")
    made = send_notification.delay(uuid.UUID(int=7), [1])
    assert (chosen.id, len(made.id)) == ("mine", 36)
    assert [(m["user_id"], m["notification_id"], m["body"]) for m in queued_kwargs(valkey)] == [
        ("42", "mine", '{"text":"hello"}'),
        ("00000000-0000-0000-0000-000000000007", made.id, "[1]"),
    ]


def test_many_recipients_share_the_id(our_app: Use, valkey: Valkey) -> None:
    our_app()
    result = send_notifications.delay(["anna", 7], {"a": 1})
    (message,) = queued_kwargs(valkey, "bulk")
    assert (message["user_ids"], message["notification_id"]) == (["anna", "7"], result.id)
    assert len(send_notifications.delay([], {"a": 1}).id) == 36
    assert runtime.get().ledger.counts().accepted == 2


def test_celerys_own_options(our_app: Use) -> None:
    our_app()
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


@pytest.mark.parametrize("args", ["ab", {"user_id": 42, "payload": 1}, 7])
def test_arguments_are_a_list(our_app: Use, args: Any) -> None:
    our_app()
    for call in CALLS:
        with pytest.raises(TypeError, match="args must be a list or a tuple"):
            call.apply_async(args)
    with pytest.raises(TypeError, match="kwargs a mapping"):
        send_notification.apply_async((42, 1), ["ttl"])
    assert runtime.get().ledger.counts().accepted == 0


def test_in_a_canvas_it_may_come_last(our_app: Use, valkey: Valkey) -> None:
    app = our_app()
    other = app.signature("shop.other", immutable=True)
    group(send_notification.s(user, 1) for user in range(3)).apply_async()
    assert len(queued_kwargs(valkey)) == 3
    chain(other, send_notification.si(4, 1)).apply_async()
    with pytest.raises(InvalidNotification, match=r"^chain: cannot be carried"):
        chain(send_notification.si(5, 1), other).apply_async()
    # What a worker does with the next of a chain; `priority` is the broker's, of the task before.
    app.conf.task_inherit_parent_priority = True
    send_notification.si(6, 1).apply_async(("ignored",), chain=[], parent_id="p", root_id="r", priority=3)
    assert runtime.get().ledger.counts().accepted == 4


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
def test_bad_input_is_refused_at_the_call_by_name(our_app: Use, argument: str, args: Any, kwargs: Any) -> None:
    our_app()
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
def test_wrong_arguments_are_a_type_error_as_in_any_call(our_app: Use, args: Any, kwargs: Any, says: str) -> None:
    our_app()
    for task in CALLS:
        with pytest.raises(TypeError, match=says) as refused:
            task.delay(*args, **kwargs)
        assert task.name.removeprefix("notifier.") in str(refused.value)


@pytest.mark.parametrize("users", ["anna", b"anna", {"anna": 1}, 5, None])
def test_recipients_must_be_a_list(our_app: Use, users: Any) -> None:
    our_app()
    with pytest.raises(InvalidNotification, match="user_ids"):
        send_notifications.delay(users, "x")


def test_one_bad_recipient_does_not_spoil_the_others(our_app: Use, valkey: Valkey) -> None:
    our_app()
    users = ["anna", "", "bert", None, *range(1500), "x" * 600]
    with pytest.raises(InvalidRecipients) as refused:
        send_notifications.delay(iter(users), "x", priority="normal", notification_id="n1")
    assert list(refused.value.rejected) == [1, 3, 1504]
    assert refused.value.notification_id == "n1"
    assert str(refused.value).startswith("user_ids[1]: must have 1 to 512 characters, has 0, and 2 more")
    assert runtime.get().ledger.counts().accepted == 1502
    assert sum(len(message["user_ids"]) for message in queued_kwargs(valkey)) == 1502
    with pytest.raises(InvalidRecipients):
        send_notifications(["carl", ""], "y")
    assert payloads("carl") == ["y"]


def test_who_was_not_accepted_is_named(our_app: Use) -> None:
    nowhere = f"redis://127.0.0.1:{free_port()}/0"
    our_app(redis_url=nowhere, broker_url=nowhere)
    users = [str(number) for number in range(2500)]
    with pytest.raises(NotAccepted) as refused:
        send_notifications.delay([*users, ""], "x", notification_id="n1")
    assert refused.value.recipients == users


# ---- without a worker


@pytest.mark.parametrize("task", CALLS)
def test_eager_mode_delivers_at_once(our_app: Use, valkey: Valkey, task: Any) -> None:
    app = our_app()
    app.conf.task_always_eager = True
    result = task.delay(["anna"] if task is send_notifications else "anna", {"a": 1})
    assert payloads("anna") == [{"a": 1}]
    assert result.id
    assert queued_kwargs(valkey) == []
    with pytest.raises(InvalidNotification, match="channel"):
        task.delay(["anna"] if task is send_notifications else "anna", 1, channel="carrier pigeon")


def test_called_as_a_function_it_delivers_here(our_app: Use, valkey: Valkey) -> None:
    our_app()
    send_notification("anna", {"a": 1})
    send_notifications(["anna", "bert"], {"a": 2}, category="like")
    assert (payloads("anna"), payloads("bert"), queued_kwargs(valkey)) == ([{"a": 1}, {"a": 2}], [{"a": 2}], [])
    with pytest.raises(InvalidNotification, match="payload"):
        send_notification("anna", {"a": {1, 2}})


# ---- whose app


def test_a_thread_without_an_app_of_its_own_uses_ours(our_app: Use) -> None:
    from tasks import app as ours

    mine = our_app()
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
