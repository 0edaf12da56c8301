"""How long the broker's queues are, whether they move, and taking a canary back: of a Redis, and of a RabbitMQ."""

from __future__ import annotations

import json
from base64 import b64decode
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

from amqp.exceptions import AMQPError, NotFound

from notifier.doctor import rabbitmq
from notifier.redis.client import connect
from notifier.wire import PROBE

TIMEOUT_S = 2.0
NEWEST = 100  # messages looked through for a canary that was published just now


class Glance(NamedTuple):
    """A queue at one moment. `length` is None where there is no such queue; `next_up` changes as it moves."""

    length: int | None
    next_up: Any = None
    consumers: int | None = None  # None where the broker does not know


class Line(Protocol):
    """The queues of one broker. Every method raises the errors of the broker's client."""

    def glance(self, queue: str) -> Glance: ...
    def hold(self, queue: str, token: str) -> None: ...
    def take_back(self, queue: str) -> None: ...
    def close(self) -> None: ...


class RedisLine:
    """Lists: messages go in at the left, out at the right."""

    def __init__(self, url: str, prefix: str = "") -> None:
        self._client = connect(url, TIMEOUT_S)
        self._prefix = prefix
        self._held: dict[str, bytes] = {}

    def glance(self, queue: str) -> Glance:
        """Its length and the message that goes next."""
        pipe = self._client.pipeline(transaction=False)
        pipe.llen(self._prefix + queue)
        pipe.lindex(self._prefix + queue, -1)
        length, next_up = pipe.execute()
        return Glance(length, next_up)

    def hold(self, queue: str, token: str) -> None:
        """Keep the canary that was published just now, as it lies there."""
        newest: Any = self._client.lrange(self._prefix + queue, 0, NEWEST - 1)
        for raw in newest:
            with suppress(ValueError, KeyError, TypeError):
                if PROBE.encode() in raw and token.encode() in b64decode(json.loads(raw)["body"]):
                    self._held[queue] = raw
                    return

    def take_back(self, queue: str) -> None:
        """Remove it, if it is still there."""
        if queue in self._held:
            self._client.lrem(self._prefix + queue, 1, self._held.pop(queue).decode())

    def close(self) -> None:
        """Let go of the connection."""
        self._client.close()


class RabbitLine:
    """A canary has a TTL there: the broker drops it by itself."""

    def __init__(self, url: str) -> None:
        self._connection = rabbitmq.connection_to(url)

    def glance(self, queue: str) -> Glance:
        """Messages and consumers."""
        try:
            length, consumers = rabbitmq.count(self._connection, queue)
        except NotFound:
            return Glance(None)
        return Glance(length, None, consumers)

    def hold(self, queue: str, token: str) -> None:
        """Nothing to do."""

    def take_back(self, queue: str) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """Let go of the connection."""
        with suppress(AMQPError, OSError):
            self._connection.release()


class BlindLine:
    """Any other broker a team may use (sentinel, sqs): its queues cannot be looked at, and a canary expires."""

    def glance(self, queue: str) -> Glance:
        """Nothing is known."""
        return Glance(0)

    def hold(self, queue: str, token: str) -> None:
        """Nothing to do."""

    def take_back(self, queue: str) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """Nothing to do."""


def line_of(app: Any) -> Line:
    """For the broker of a Celery app; of several, the first. The URL as it was written: TLS options stand in it."""
    said = app.conf.broker_write_url or app.conf.broker_url or ""
    url = str(said if isinstance(said, str) else said[0]).partition(";")[0]
    connection = app.connection_for_write()
    if "amqp" in str(connection.transport_cls):
        return RabbitLine(url)
    if url.startswith(("redis://", "rediss://")):
        return RedisLine(url, (connection.transport_options or {}).get("global_keyprefix", ""))
    return BlindLine()
