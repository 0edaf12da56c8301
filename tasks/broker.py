"""The broker as our app uses it: queues, and options that keep every wait bounded."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from kombu import Exchange, Queue

from notifier.wire import QUEUES

VISIBILITY_S = 15  # a killed worker's messages are back within this and one scan of a second
HARD_LIMIT_S = 12  # under the visibility timeout, so no message is handed out twice while its worker lives
SOFT_LIMIT_S = 8
SOCKET_TIMEOUT_S = 5.0  # a half-open or frozen connection is given up and made again


def is_amqp(url: str) -> bool:
    """RabbitMQ rather than Redis."""
    return urlsplit(url).scheme in ("amqp", "amqps", "pyamqp")


def queues(*, quorum: bool) -> list[Queue]:
    """Our queues, to be declared; RabbitMQ keeps quorum queues through the loss of a node."""
    arguments = {"x-queue-type": "quorum"} if quorum else None
    exchange = Exchange("notifier", type="direct")
    return [Queue(name, exchange, routing_key=name, queue_arguments=arguments) for name in QUEUES]


def transport_options(url: str) -> dict[str, Any]:
    """kombu's options for a broker."""
    if is_amqp(url):
        return {"confirm_publish": True, "connect_timeout": SOCKET_TIMEOUT_S}
    return {
        "visibility_timeout": VISIBILITY_S,
        "unacked_restore_interval": 1,  # kombu's default scans every hundred seconds (celery/celery#4984)
        "unacked_restore_throttle": 1,
        "socket_timeout": SOCKET_TIMEOUT_S,
        "socket_connect_timeout": SOCKET_TIMEOUT_S,
        "socket_keepalive": True,
        "health_check_interval": 5,  # a worker deaf on a half-open connection hears again after ten seconds, not fifty
    }
