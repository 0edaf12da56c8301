"""What happens inside delay() and notify(), with every server up, down or silent."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from celery import Celery
from kombu import Connection

from notifier import metrics, producer, runtime
from notifier.embedded.rabbitmq import RabbitMQ
from notifier.embedded.valkey import Valkey
from notifier.errors import InvalidNotification, NotAccepted
from notifier.notification import Notification
from notifier.settings import Settings
from notifier.wire import Message
from tests.support import batches, eventually, free_port, queued

Use = Callable[..., Celery]


@pytest.fixture
def use(settings: Settings) -> Iterator[Use]:
    """Make these settings the process's, and an app on its broker."""

    def configure(**changes: object) -> Celery:
        runtime.close()
        changed = settings.model_copy(update=changes)
        runtime.get(changed)
        return Celery("theirs", broker=changed.broker_url, set_as_current=False)

    yield configure
    runtime.close()


def test_what_could_not_be_published_names_where_it_was_to_go(
    use: Use, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    nobody = f"127.0.0.1:{free_port()}"
    app = use(broker_url=f"redis://:hunter2@{nobody}/0")
    monkeypatch.setattr(metrics, "_last", {})  # an earlier test's warning keeps this one's back
    assert [sending.status for sending in producer.accept_and_publish(app, [note()])] == ["queued"]
    assert f"the broker at {nobody} cannot be used" in caplog.text
    assert "hunter2" not in caplog.text


def test_where_neither_takes_it_both_are_named_and_the_error_is_short(
    use: Use, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, broker = (f"127.0.0.1:{free_port()}" for _ in range(2))
    app = use(redis_url=f"redis://:hunter2@{state}/0", broker_url=f"redis://:hunter2@{broker}/0")
    monkeypatch.setattr(metrics, "_last", {})
    with pytest.raises(NotAccepted) as caught:
        producer.accept_and_publish(app, [note()])
    assert f"state Redis at {state}" in caplog.text
    assert f"the broker at {broker}" in caplog.text
    assert "refused" in str(caught.value.__cause__)
    told = "".join(traceback.format_exception(caught.value))
    assert told.count("Traceback") == 1
    assert "hunter2" not in told + caplog.text


def note(user: str = "anna", **options: object) -> Notification:
    return Notification.create(user, {"text": "hello"}, **options)  # type: ignore[arg-type]


def test_accepted_then_published_without_a_trace_of_the_payload(use: Use, valkey: Valkey) -> None:
    app = use()
    n = note(notification_id="n1")
    (sending,) = producer.accept_and_publish(app, [n])
    assert sending == ("n1", "anna", "queued")
    ((headers, kwargs),) = queued(valkey)
    assert (headers["task"], headers["id"], kwargs["body"]) == ("notifier.send_notification", "n1", n.body)
    assert headers["ignore_result"]
    assert "hello" not in json.dumps(headers)


def test_notify_needs_no_app(use: Use, valkey: Valkey) -> None:
    use()
    notification_id = producer.notify("anna", {"__type__": "date", "__value__": "x"}, priority="critical")
    ((headers, kwargs),) = queued(valkey, "critical")
    assert (headers["id"], kwargs["body"]) == (notification_id, '{"__type__":"date","__value__":"x"}')


def test_recipients_of_one_payload_travel_together(use: Use, valkey: Valkey) -> None:
    app = use()
    shared = note(priority="bulk")
    users = [f"user-{k}" for k in range(250)]
    producer.accept_and_publish(app, [replace(shared, user_id=user) for user in users])
    messages = queued(valkey, "bulk")
    assert [len(kwargs["user_ids"]) for _, kwargs in messages] == [200, 50]  # type: ignore[arg-type]
    assert [user for _, kwargs in messages for user in kwargs["user_ids"]] == users  # type: ignore[attr-defined]
    assert {headers["task"] for headers, _ in messages} == {"notifier.send_notifications"}


def test_many_different_ones_in_one_call_travel_together(use: Use, valkey: Valkey) -> None:
    use()
    made = [Notification.create(f"user-{k}", k) for k in range(1_050)]
    assert producer.notify_many(n for n in made) == {"queued": 1_050}
    messages = [kwargs for _, kwargs in queued(valkey)]
    assert [len(batches(kwargs)) for kwargs in messages] == [200] * 5 + [50]
    sent = [(batch["user_ids"], batch["body"]) for kwargs in messages for batch in batches(kwargs)]
    assert sent == [([n.user_id], n.body) for n in made]
    assert producer.notify_many([*made[:3], note(user="one more")]) == {"duplicate": 3, "queued": 1}


def test_a_message_holds_no_more_than_it_should(use: Use, valkey: Valkey) -> None:
    use()
    producer.notify_many([Notification.create(f"user-{k}", "x" * 60_000) for k in range(6)])
    assert [len(batches(kwargs)) for _, kwargs in queued(valkey)] == [4, 2]
    shared = note(priority="critical")
    users = [f"user-{k}" for k in range(150)]
    events = [shared, note(priority="critical"), note(priority="critical", category="like")]
    producer.notify_many(event.to(user) for event in events for user in users)
    counts = [[len(batch["user_ids"]) for batch in batches(kwargs)] for _, kwargs in queued(valkey, "critical")]  # type: ignore
    assert sum(sum(sizes) for sizes in counts) == 450
    assert max(sum(sizes) for sizes in counts) <= 200


def test_a_queue_gets_what_is_its_own_however_they_are_mixed(use: Use, valkey: Valkey) -> None:
    use()
    made = [note(f"user-{k}", priority=("critical", "normal", "bulk")[k % 3]) for k in range(30)]
    producer.notify_many(made)
    for queue in ("critical", "normal", "bulk"):
        ((headers, kwargs),) = queued(valkey, queue)
        assert headers["task"] == "notifier.send_notifications"
        sent = [batch["notification_id"] for batch in batches(kwargs)]
        assert sent == [n.notification_id for n in made if n.priority == queue]


def test_what_waits_for_somebody_s_server_travels_alone(use: Use, valkey: Valkey) -> None:
    use()
    made = [note(f"user-{k}", channel="console" if k in (1, 2) else "websocket") for k in range(5)]
    producer.notify_many(made)
    ids = [[batch["notification_id"] for batch in batches(kwargs)] for _, kwargs in queued(valkey)]
    assert ids == [[made[0].notification_id], [made[1].notification_id], [made[2].notification_id],
                   [made[3].notification_id, made[4].notification_id]]  # fmt: skip


def test_what_no_ledger_holds_travels_alone(use: Use, valkey: Valkey) -> None:
    """A worker that cannot read a message of several batches lets it go: the sweep would not bring it again."""
    use(redis_url=f"redis://127.0.0.1:{free_port()}/0")
    assert producer.notify_many([note(f"user-{k}") for k in range(3)]) == {"published": 3}
    assert [kwargs["unledgered"] for _, kwargs in queued(valkey)] == [True] * 3


def test_what_the_ledger_may_hold_or_not_travels_alone(use: Use, valkey: Valkey) -> None:
    """Its accept may have run, the reply was lost: the sweep brings it only if it has."""
    app = use()
    made = [note(f"user-{k}") for k in range(3)]
    producer.publish(app, [(n.priority, Message(n, accepted_us=1, again=True)) for n in made])
    assert [kwargs["user_id"] for _, kwargs in queued(valkey)] == [n.user_id for n in made]
    swept = [Message(n, accepted_us=1, epoch="e", again=True) for n in made]
    producer.publish(app, [(message.notification.priority, message) for message in swept])
    assert len(batches(queued(valkey)[-1][1])) == 3


def test_a_duplicate_is_not_published_again(use: Use, valkey: Valkey) -> None:
    app = use()
    statuses = [producer.accept_and_publish(app, [note(notification_id="n1")])[0].status for _ in range(2)]
    assert statuses == ["queued", "duplicate"]
    assert len(queued(valkey)) == 1


def test_a_channel_that_is_not_installed_is_refused(use: Use) -> None:
    with pytest.raises(InvalidNotification, match=r"^channel: 'pigeon' is not one of .*console, .*websocket"):
        producer.accept_and_publish(use(), [note(channel="pigeon")])


def test_broker_down_the_ledger_keeps_it(use: Use) -> None:
    app = use(broker_url=f"redis://127.0.0.1:{free_port()}/0")
    assert producer.accept_and_publish(app, [note()])[0].status == "queued"
    assert runtime.get().ledger.counts().in_flight == 1


def test_ledger_down_the_broker_gets_it_and_is_told(use: Use, valkey: Valkey) -> None:
    app = use(redis_url=f"redis://127.0.0.1:{free_port()}/0")
    assert producer.accept_and_publish(app, [note()])[0].status == "published"
    ((_, kwargs),) = queued(valkey)
    assert kwargs["unledgered"] is True


def test_a_lost_reply_is_not_ledger_down(use: Use, valkey: Valkey, fresh_valkey: Callable[..., Valkey]) -> None:
    server = fresh_valkey()
    app = use(redis_url=server.url(), state_timeout=0.2)
    runtime.get().ledger.now_us()
    server.freeze()
    try:
        producer.accept_and_publish(app, [note()])
    finally:
        server.thaw()
    ((_, kwargs),) = queued(valkey)
    assert not kwargs.get("unledgered")
    assert kwargs["again"] is True  # two copies may exist: its starts are counted
    assert int(str(kwargs["accepted_us"])) > 0


@pytest.mark.parametrize("broker", ["redis", "amqp"])
def test_both_down_nothing_is_accepted_and_all_are_named(use: Use, broker: str) -> None:
    nowhere = f"127.0.0.1:{free_port()}"
    app = use(redis_url=f"redis://{nowhere}/0", broker_url=f"{broker}://{nowhere}/0")
    shared = note(notification_id="n1")
    users = [f"user-{k}" for k in range(150)]
    with pytest.raises(NotAccepted, match="'n1' to 150 recipients was not accepted") as refused:
        producer.accept_and_publish(app, [replace(shared, user_id=user) for user in users])
    assert refused.value.recipients == users


def test_each_of_many_is_named_by_its_own_id(use: Use) -> None:
    nowhere = f"127.0.0.1:{free_port()}"
    use(redis_url=f"redis://{nowhere}/0", broker_url=f"redis://{nowhere}/0")
    many = [note(f"user-{k}", notification_id=f"n{k}") for k in range(150)]
    with pytest.raises(NotAccepted, match="150 notifications, the first of them 'n0', were not accepted") as refused:
        producer.notify_many(many)
    named = zip(refused.value.recipients, refused.value.notification_ids, strict=True)
    assert list(named) == [(n.user_id, n.notification_id) for n in many]
    assert refused.value.notification_id == ""
    with pytest.raises(NotAccepted, match="'n7' to 'user-7' was not accepted"):
        producer.notify_many(many[7:8])


def test_a_silent_server_does_not_hold_the_caller(use: Use, fresh_valkey: Callable[..., Valkey]) -> None:
    server = fresh_valkey()
    app = use(redis_url=server.url(0), broker_url=server.url(1))
    producer.accept_and_publish(app, [note()])  # connections are warm
    server.freeze()
    refused = threading.Event()

    def send() -> None:
        with pytest.raises(NotAccepted):
            producer.accept_and_publish(app, [note()])
        refused.set()

    caller = threading.Thread(target=send)
    caller.start()
    try:
        assert refused.wait(10)  # it ended while the server was still silent
    finally:
        server.thaw()
        caller.join()


FIRST = """
import sys, threading
from notifier import producer
ready, failed = threading.Barrier(8), []
def first():
    ready.wait()
    try:
        producer.own_app()
    except ImportError as error:
        failed.append(error)
threads = [threading.Thread(target=first) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
sys.exit(len(failed))
"""


def test_the_first_calls_of_a_process_may_come_at_once() -> None:
    """As they do in a server with threads."""
    for _ in range(6):
        assert subprocess.run([sys.executable, "-c", FIRST], timeout=60, check=False).returncode == 0


def test_a_call_for_many_waits_once_for_a_broker_that_is_away(use: Use) -> None:
    use(broker_url=f"redis://127.0.0.1:{free_port()}/0")
    waits = metrics.DEGRADED.labels("publish")
    before = waits._value.get()
    assert producer.notify_many(note(f"user-{k}") for k in range(700)) == {"queued": 700}
    assert waits._value.get() == before + 1
    assert runtime.get().ledger.counts().in_flight == 700


def test_the_patience_of_an_app_is_not_its_callers(use: Use) -> None:
    """What the options of its transport say is for its workers."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        app = use(broker_url=f"amqp://127.0.0.1:{silent.getsockname()[1]}//")
        app.conf.broker_transport_options = {"connect_timeout": 600, "read_timeout": 600}
        caller = threading.Thread(target=producer.accept_and_publish, args=(app, [note()]), daemon=True)
        caller.start()
        eventually(lambda: not caller.is_alive(), timeout_s=60)


@pytest.mark.slow
def test_a_frozen_rabbitmq_does_not_hold_the_caller(use: Use, fresh_rabbitmq: Callable[..., RabbitMQ]) -> None:
    """Whatever it is waited for: to connect, to declare a queue that this process has not sent to, to confirm."""
    server = fresh_rabbitmq()
    app = use(broker_url=server.url())
    sent: list[str] = []

    def send(priority: str) -> None:
        sent.append(producer.accept_and_publish(app, [note(priority=priority)])[0].status)

    for priority in ("normal", "bulk", "bulk"):
        server.freeze()
        caller = threading.Thread(target=send, args=(priority,))
        caller.start()
        try:
            eventually(lambda: not caller.is_alive(), timeout_s=60)  # noqa: B023  it ended while the server was silent
        finally:
            server.thaw()
            caller.join()
        send(priority)
    assert sent == ["queued"] * 6
    with Connection(server.url()) as broker:
        assert broker.default_channel.queue_declare("notifier.bulk", passive=True).message_count > 0


def test_a_connection_gone_stale_is_replaced_at_once(use: Use, fresh_valkey: Callable[..., Valkey]) -> None:
    server = fresh_valkey()
    app = use(broker_url=server.url(1))
    producer.accept_and_publish(app, [note()])
    server.restart()
    producer.accept_and_publish(app, [note("ben")])
    assert {kwargs["user_id"] for _, kwargs in queued(server)} >= {"ben"}
