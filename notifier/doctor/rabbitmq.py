"""A broker that is a RabbitMQ."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from amqp.exceptions import AccessRefused, AMQPError, NotFound, PreconditionFailed
from kombu import Connection
from kombu.exceptions import OperationalError

from notifier.doctor.finding import Finding, ok, problem, warning, words
from notifier.doctor.redis_servers import BROKER
from notifier.redis.broker import place_of, tls
from notifier.wire import QUEUES

TIMEOUT_S = 2.0
OLDEST = (3, 10)


def connection_to(url: str) -> Connection:
    """A connection whose reading and writing is bounded. TLS is verified."""
    options = {"read_timeout": TIMEOUT_S, "write_timeout": TIMEOUT_S}
    return Connection(url, connect_timeout=TIMEOUT_S, heartbeat=0, ssl=tls(url) or False, transport_options=options)


def server(url: str) -> Iterator[Finding]:
    """All about it."""
    with connection_to(url) as connection:
        began_s = time.monotonic()
        try:
            connection.connect()
        except (AMQPError, OperationalError, OSError) as error:
            refused = isinstance(error, AccessRefused) or "ACCESS_REFUSED" in str(error)
            what = "authentication" if refused else type(error).__name__
            mend = (
                f"check user, password and virtual host in {BROKER.variable}"
                if refused
                else f"start the server, or set {BROKER.variable}"
            )
            yield problem("broker.reachable", f"RabbitMQ at {place_of(connection)}: {what}", BROKER.away, mend)
            return
        took_ms = (time.monotonic() - began_s) * 1000
        version = str(connection.connection.server_properties.get("version", "0"))
        yield ok("broker.reachable", f"RabbitMQ {version} answers in {took_ms:.0f} ms")
        if tuple(int(part) for part in version.split(".")[:2] if part.isdigit()) < OLDEST:
            why = "quorum queues of older versions know no message TTL"
            yield warning("broker.version", f"RabbitMQ {version} is older than what was tested", why, "3.10 or newer")
        missing, classic = [], []
        for queue in QUEUES:
            try:
                declare(connection, queue)
            except NotFound:
                missing.append(queue)
            except PreconditionFailed:
                classic.append(queue)
            except AMQPError as error:
                yield warning(
                    "broker.queues", f"{queue} cannot be looked at: {words(error)}", BROKER.away, "see the error"
                )
        if missing:
            why = "no worker has been started with this broker and virtual host yet; it declares them"
            yield warning("broker.queues", f"missing: {', '.join(missing)}", why, "start a worker: notifier worker")
        if classic:
            why = "a queue of another type does not survive the loss of a node, and our workers cannot declare theirs"
            mend = "let it run empty, delete it, and start a worker: it makes quorum queues"
            yield problem("broker.queues", f"no durable quorum queue: {', '.join(classic)}", why, mend)
        if not missing and not classic:
            yield ok("broker.queues", "durable quorum queues")


def declare(connection: Connection, queue: str) -> None:
    """Raises NotFound where there is no such queue, PreconditionFailed where it is of another kind. Makes none."""
    count(connection, queue)
    with connection.channel() as channel:
        channel.queue_declare(queue, durable=True, auto_delete=False, arguments={"x-queue-type": "quorum"})


def count(connection: Connection, queue: str) -> tuple[int, int]:
    """Messages that are ready, and consumers. Raises NotFound."""
    with connection.channel() as channel:
        found: Any = channel.queue_declare(queue, passive=True)
    return int(found.message_count), int(found.consumer_count)
