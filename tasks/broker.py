"""The broker as our app uses it: queues, and options that keep every wait bounded."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from urllib.parse import urlsplit

from kombu import Exchange, Queue
from kombu.utils.scheduling import round_robin_cycle

from notifier.notification import Priority
from notifier.wire import CONTROL, QUEUE_OF, QUEUES

VISIBILITY_S = 15  # a killed worker's messages are back within this and one scan of a second
HARD_LIMIT_S = 12  # under the visibility timeout, so no message is handed out twice while its worker lives
SOFT_LIMIT_S = 8
URGENCY = {CONTROL: 0, QUEUE_OF[Priority.CRITICAL]: 1, QUEUE_OF[Priority.BULK]: 3}  # of any other queue: 2
NEGLECTED_EVERY = 4  # so that under a lasting overload every queue moves on
SOCKET_TIMEOUT_S = 5.0  # a half-open or frozen connection is given up and made again


class UrgentFirst(round_robin_cycle):
    """In what order a worker asks Redis for its queues: the most urgent first, so that others wait for no flood.

    Every fourth message comes from the queue that has been neglected for longest. kombu's own orders share equally
    between all queues (round_robin), or starve the last ones (priority).
    """

    def __init__(self, queues: Iterable[str] | None = None) -> None:
        super().__init__(list(queues or ()))
        self._taken = 0

    def consume(self, n: int) -> list[str]:
        """The first `n` queues to look into, in order."""
        if self._taken % NEGLECTED_EVERY == NEGLECTED_EVERY - 1:
            return list(self.items[:n])
        return sorted(self.items, key=lambda queue: URGENCY.get(queue, 2))[:n]

    def rotate(self, last_used: str) -> str:
        """A message came from this one."""
        self._taken += 1
        return str(super().rotate(last_used))


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
        "queue_order_strategy": f"{__name__}:{UrgentFirst.__name__}",
        "visibility_timeout": VISIBILITY_S,
        "unacked_restore_interval": 1,  # kombu's default scans every hundred seconds (celery/celery#4984)
        "unacked_restore_throttle": 1,
        "socket_timeout": SOCKET_TIMEOUT_S,
        "socket_connect_timeout": SOCKET_TIMEOUT_S,
        "socket_keepalive": True,
        "health_check_interval": 5,  # a worker deaf on a half-open connection hears again after ten seconds, not fifty
    }
