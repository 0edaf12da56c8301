"""What brokers do now and then: hand out a message twice, at once and again much later, or not at all."""

from __future__ import annotations

import threading
import time
from typing import Any

from kombu import Connection, Message, Queue
from kombu.exceptions import KombuError

from notifier.wire import QUEUE_OF

CATCH_S = 0.6
PAUSE_S = 0.01
_PROPERTIES = ("correlation_id", "reply_to")


class Repeater:
    """Catches messages on their way, and sends copies of them, or none."""

    def __init__(self, broker_url: str) -> None:
        self._url = broker_url

    def catch(self) -> list[tuple[str, Message]]:
        """The next messages within a moment; each is handed out twice instead. [] if none passed, or on failure."""
        return self._catch(copies=2)

    def lose(self) -> None:
        """The next messages within a moment are gone, but not those that only the broker holds."""
        self._catch(copies=0)

    def _catch(self, copies: int) -> list[tuple[str, Message]]:
        caught: list[tuple[str, Message]] = []
        try:
            with Connection(self._url) as connection:
                queues = {name: Queue(name, no_declare=True)(connection.default_channel) for name in QUEUE_OF.values()}
                until_s = time.monotonic() + CATCH_S
                while not caught and time.monotonic() < until_s:
                    for name, queue in queues.items():
                        if (message := queue.get(no_ack=False)) is not None:
                            caught.append((name, message))
                            for _ in range(max(copies, _only_here(message))):
                                self._publish(connection, name, message)
                            message.ack()
                    time.sleep(PAUSE_S)
        except (KombuError, OSError, *_errors(self._url)):
            pass  # what was not acknowledged goes back by itself
        return caught

    def repeat(self, caught: list[tuple[str, Message]]) -> None:
        """Once more; in the background, for the broker may be frozen."""
        threading.Thread(target=self._repeat, args=(caught,), daemon=True).start()

    def _repeat(self, caught: list[tuple[str, Message]]) -> None:
        try:
            with Connection(self._url) as connection:
                for name, message in caught:
                    self._publish(connection, name, message)
        except (KombuError, OSError, *_errors(self._url)):
            pass

    def _publish(self, connection: Any, queue: str, message: Message) -> None:
        connection.Producer().publish(
            message.body,
            exchange="",
            routing_key=queue,
            content_type=message.content_type,
            content_encoding=message.content_encoding,
            headers=message.headers,
            delivery_mode=2,
            **{name: value for name in _PROPERTIES if (value := message.properties.get(name))},
        )


def _only_here(message: Message) -> bool:
    """Sent without the ledger, or perhaps: nobody promised that it survives its broker."""
    kwargs = message.payload[1]
    return bool(kwargs.get("unledgered") or kwargs.get("again"))


def _errors(url: str) -> tuple[type[BaseException], ...]:
    connection = Connection(url)
    return (*connection.connection_errors, *connection.channel_errors)
