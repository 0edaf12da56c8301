"""Accepting and publishing: what happens inside `delay()` and `notify()`, in bounded time whatever is down."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import lru_cache
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any, NamedTuple

from notifier import channels, metrics, runtime, tracing
from notifier.errors import InvalidNotification, NotAccepted, StateUnavailable
from notifier.ledger import CHUNK, Ledger
from notifier.notification import WEBSOCKET, Notification, Priority, check
from notifier.wire import QUEUE_OF, SEND_NOTIFICATION, SEND_NOTIFICATIONS, Message, batch_to_kwargs, parcel_to_kwargs

if TYPE_CHECKING:
    from celery import Celery
    from kombu.pools import ProducerPool

PUBLISH_TIMEOUT_S = 0.4
AT_ONCE_S = 0.1  # a publish that failed this soon met a stale connection: it is tried once more
POOL_SIZE = 10
SLICE = 1_000
RECIPIENTS = 200  # of one message at most: measured, see docs/performance.md
BODIES_BYTES = 262_144  # of different ones in one message at most; one that is longer travels alone
_making = threading.Lock()  # a second thread that imports Celery meanwhile gets half of it


class Sending(NamedTuple):
    """One notification and what accept made of it.

    `status`: queued, deferred, duplicate, dropped (too many wait), or published (without the ledger).
    """

    notification_id: str
    user_id: str
    status: str


def notify(user_id: object, payload: object, **options: Any) -> str:
    """Send one notification from an app that cannot import `tasks`; published by task name.

    Takes the options of `send_notification.delay`. Returns the notification id.
    Raises InvalidNotification, and NotAccepted when state Redis and broker are both away.
    """
    notification = created("notify", user_id, payload, options)
    accept_and_publish(own_app(), [notification])
    return notification.notification_id


def created(call: str, user_id: object, payload: object, options: Mapping[str, Any]) -> Notification:
    """What a call asks for. Raises InvalidNotification; TypeError, which names the call, for an unknown option."""
    try:
        return Notification.create(user_id, payload, **options)
    except TypeError as error:  # a misspelt option
        raise TypeError(str(error).replace("Notification.create", call)) from None


def notify_many(notifications: Iterable[Notification]) -> dict[str, int]:
    """Send many different ones, `Notification.create(...)` each; any iterable of any length, a thousand at a time.

    Returns how many were queued, deferred, dropped, duplicate or published. Raises InvalidNotification for what is no
    Notification, or is for a channel that is not installed; NotAccepted when state Redis and broker are both away: it
    names those of the thousand it was at, the rest was not looked at. Sending the same objects again is safe, those
    that had been accepted are then duplicates.
    """
    statuses: Counter[str] = Counter()
    rest = iter(notifications)
    while part := list(islice(rest, SLICE)):
        statuses.update(sending.status for sending in accept_and_publish(own_app(), part))
    return dict(statuses)


def accept_and_publish(app: Celery, notifications: Sequence[Notification]) -> list[Sending]:
    """Accept, then publish what is to be queued. A failed publish is left to the sweep.

    Raises InvalidNotification for a channel that is not installed; NotAccepted, naming who was not, if both are away.
    """
    check_notifications(notifications)
    ledger = runtime.get().ledger
    sent: list[Sending] = []
    queued: list[tuple[Priority, Message]] = []
    away: StateUnavailable | None = None
    reached = True
    for start in range(0, len(notifications), CHUNK):
        chunk = notifications[start : start + CHUNK]
        try:
            if away is not None:
                raise away
            accepted = ledger.accept(chunk)
        except StateUnavailable as error:
            away = StateUnavailable(str(error))  # the rest of this call does not wait for it chunk by chunk
            reached = reached and publish_accepted(app, queued)
            queued = []
            try:
                sent += _without_ledger(app, ledger, chunk, error)
            except _publish_errors(app) as failure:
                _say_not_published(app, failure)
                failure.__cause__ = failure.__context__ = None  # pages of kombu's insides, which say no more
                raise not_accepted(notifications[start:]) from failure.with_traceback(None)
            continue
        for n, a in zip(chunk, accepted, strict=True):
            sent.append(Sending(n.notification_id, n.user_id, a.status))
            if a.status == "queued":
                queued.append((a.queue, Message(n, a.accepted_us, a.epoch)))
        if len(queued) >= RECIPIENTS and reached:  # else the rest of this call does not wait for the broker, either
            reached = publish_accepted(app, queued)
            queued = []
    if reached:
        publish_accepted(app, queued)
    return sent


def check_notifications(notifications: Sequence[Notification]) -> None:
    """Raises InvalidNotification for what is no Notification, or none as create makes it, or for an unknown channel."""
    for n in notifications:
        if not isinstance(n, Notification):
            raise InvalidNotification("notifications", f"must be Notification.create(...) each, not {type(n).__name__}")
        if not n.sound:
            check(n)
    for name in {n.channel for n in notifications}:
        if name not in channels.known():
            raise InvalidNotification("channel", f"{name!r:.80} is not one of {', '.join(sorted(channels.known()))}")


def publish_accepted(app: Celery, queued: Sequence[tuple[Priority, Message]]) -> bool:
    """Publish what the ledger holds already. False, for want of a broker: the sweep publishes it later."""
    try:
        publish(app, queued)
    except _publish_errors(app) as error:
        _say_not_published(app, error)
        return False
    return True


def _say_not_published(app: Celery, error: BaseException) -> None:
    from notifier.redis.broker import place_of

    where = place_of(app.connection_for_write())
    metrics.degraded("publish", f"the broker at {where} cannot be used ({type(error).__name__})")


def _without_ledger(
    app: Celery, ledger: Ledger, chunk: Sequence[Notification], error: StateUnavailable
) -> list[Sending]:
    """The broker's own guarantee. A lost reply is not "ledger down": that accept may have run. Raises as `publish`."""
    metrics.degraded("ledger", error)
    begun_ns = tracing.now_ns()
    now_us = ledger.estimated_us()
    messages = [
        (n.priority, Message(n, accepted_us=now_us, unledgered=not error.ambiguous, again=error.ambiguous))
        for n in chunk
    ]
    publish(app, messages)
    tracing.accepted(chunk, ["published"] * len(chunk), begun_ns)
    return [Sending(n.notification_id, n.user_id, "published") for n in chunk]


def not_accepted(notifications: Sequence[Notification]) -> NotAccepted:
    """The error that names these."""
    ids = [n.notification_id for n in notifications]
    return NotAccepted(ids[0] if len(set(ids)) == 1 else "", [n.user_id for n in notifications], ids)


def publish(app: Celery, messages: Iterable[tuple[Priority, Message]]) -> None:
    """Publish, as few messages as hold them all. Raises the broker's errors, within about half a second."""
    by_queue: dict[Priority, list[Message]] = {queue: [] for queue in Priority}
    for queue, message in messages:
        by_queue[queue].append(message)
    parcels = [(queue, parcel) for queue, waiting in by_queue.items() for parcel in _parcels(waiting)]
    if not parcels:
        return
    begun_s = time.monotonic()
    try:
        _publish(app, parcels)
    except _publish_errors(app):
        if time.monotonic() - begun_s > AT_ONCE_S:
            raise
        _publish(app, parcels)


def _parcels(messages: Iterable[Message]) -> Iterator[list[list[Message]]]:
    """What each message of the broker holds: batches of recipients who have all but themselves in common."""
    for alone, batches in groupby(_alike(messages), key=_alone):
        if alone:
            yield from ([batch] for batch in batches)
        else:
            yield from _packed(batches)


def _alone(batch: Sequence[Message]) -> bool:
    """Other channels than the feed wait for somebody's server, each for its own; and what no ledger has confirmed to
    hold would be lost by a worker of an older version, which cannot read a parcel."""
    return batch[0].notification.channel != WEBSOCKET or not batch[0].epoch


def _packed(batches: Iterable[list[Message]]) -> Iterator[list[list[Message]]]:
    parcel: list[list[Message]] = []
    recipients = size = 0
    for batch in batches:
        body_size = len(batch[0].notification.body)
        recipients, size = recipients + len(batch), size + body_size
        if parcel and (recipients > RECIPIENTS or size > BODIES_BYTES):
            yield parcel
            parcel, recipients, size = [], len(batch), body_size
        parcel.append(batch)
    yield parcel


def _alike(messages: Iterable[Message]) -> Iterator[list[Message]]:
    for _, group in groupby(messages, key=_shared):
        while batch := list(islice(group, RECIPIENTS)):
            yield batch


def publish_task(app: Celery, name: str, kwargs: dict[str, Any], queue: str, expires_s: float | None = None) -> None:
    """Publish a task of ours by name."""
    with _producers(app, os.getpid()).acquire(block=True, timeout=PUBLISH_TIMEOUT_S) as producer:
        _send(app, producer, name, kwargs, queue, None, expires_s)


def _publish(app: Celery, parcels: Sequence[tuple[Priority, list[list[Message]]]]) -> None:
    with (
        _producers(app, os.getpid()).acquire(block=True, timeout=PUBLISH_TIMEOUT_S) as producer,
        producer.batch() if len(parcels) > 1 else nullcontext(),
    ):
        for queue, parcel in parcels:
            batch = parcel[0]
            task_id: str | None = batch[0].notification.notification_id
            if len(parcel) > 1:
                name, kwargs, task_id = SEND_NOTIFICATIONS, parcel_to_kwargs(parcel), None
            elif len(batch) > 1:
                name, kwargs = SEND_NOTIFICATIONS, batch_to_kwargs(batch)
            else:
                name, kwargs = SEND_NOTIFICATION, batch[0].to_kwargs()
            _send(app, producer, name, kwargs, QUEUE_OF[queue], task_id, None)


def _send(
    app: Celery,
    producer: Any,
    name: str,
    kwargs: dict[str, Any],
    queue: str,
    task_id: str | None,
    expires_s: float | None,
) -> None:
    from celery.utils import uuid

    message = app.amqp.as_task_v2(
        task_id or uuid(), name, (), kwargs, expires=expires_s, ignore_result=True, argsrepr="()", kwargsrepr="{}"
    )
    app.amqp.send_task_message(
        producer,
        name,
        message,
        queue=_queue(queue),  # as an object: a name would be looked up, and made, in the app's own queues
        declare=_declared(app, queue),
        serializer="json",
        delivery_mode=2,
        expiration=expires_s,  # RabbitMQ drops it by itself; Redis leaves that to the worker
        retry=False,
        timeout=PUBLISH_TIMEOUT_S,
        confirm_timeout=PUBLISH_TIMEOUT_S,
    )


def _shared(message: Message) -> tuple[object, ...]:
    """What recipients of one batch have in common. Its time is the earliest."""
    n = message.notification
    return (n.body, n.notification_id, n.channel, n.category, n.priority, n.ttl_us, n.collapse_key, n.not_before_us,
            n.chosen, message.accepted_us > 0, message.unledgered, message.again)  # fmt: skip


@lru_cache(maxsize=32)
def _queue(name: str) -> Any:
    from kombu import Queue

    return Queue(name, queue_arguments={"x-queue-type": "quorum"})


@lru_cache(maxsize=64)
def _declared(app: Celery, name: str) -> tuple[Any, ...]:
    """RabbitMQ drops what is sent to a queue that nobody has declared; Redis needs no declaring."""
    return (_queue(name),) if "amqp" in str(app.connection_for_write().transport_cls) else ()


@lru_cache(maxsize=8)
def _producers(app: Celery, pid: int) -> ProducerPool:  # noqa: ARG001  one pool a process: sockets do not survive a fork
    from kombu.connection import ConnectionPool
    from kombu.pools import ProducerPool

    from notifier.redis.broker import AmqpConnections, BoundedTransport

    given = app.connection_for_write()
    options = {**(given.transport_options or {}), "socket_timeout": PUBLISH_TIMEOUT_S}
    options |= {"socket_connect_timeout": PUBLISH_TIMEOUT_S, "max_retries": 0, "confirm_publish": True}
    amqp = "amqp" in str(given.transport_cls)
    if amqp:  # read, write: of the socket, as to open a channel or to declare a queue has no timeout of its own
        options |= {f"{step}_timeout": PUBLISH_TIMEOUT_S for step in ("connect", "read", "write")}
    connection = given.clone(transport_options=options, connect_timeout=PUBLISH_TIMEOUT_S, heartbeat=0)
    if given.transport_cls in ("redis", "rediss"):
        connection.transport_cls = BoundedTransport
    connections = (AmqpConnections if amqp else ConnectionPool)(connection, limit=POOL_SIZE)
    return ProducerPool(connections, limit=POOL_SIZE)


def _publish_errors(app: Celery) -> tuple[type[BaseException], ...]:
    from kombu.exceptions import KombuError, LimitExceeded, OperationalError

    connection = app.connection_for_write()
    return (*connection.recoverable_connection_errors, *connection.recoverable_channel_errors,
            *connection.connection_errors, *connection.channel_errors,
            KombuError, OperationalError, LimitExceeded, OSError)  # fmt: skip


def own_app() -> Celery:
    """The app of processes that need none but to publish; on the settings' broker."""
    with _making:
        return _bare_app(os.getpid(), runtime.get().settings.broker_url)


@lru_cache(maxsize=2)
def _bare_app(pid: int, broker_url: str) -> Celery:  # noqa: ARG001
    from celery import Celery

    from notifier.redis.broker import tls

    changes = {"broker_use_ssl": tls(broker_url)}
    return Celery("notifier", broker=broker_url, changes=changes, set_as_current=False, fixups=[])


def _after_fork() -> None:
    """A thread that is not in this process may have held it."""
    global _making
    _making = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
