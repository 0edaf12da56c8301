"""In what order a worker takes from its queues, on a real broker."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice

import pytest
from kombu import Connection, Consumer, Message

from notifier.embedded.valkey import Valkey
from notifier.wire import CONTROL, QUEUE_OF, QUEUES
from tasks.broker import queues, transport_options

CRITICAL, NORMAL, BULK = QUEUE_OF.values()


def taken(server: Valkey, filled: Sequence[str]) -> Iterator[str]:
    """The queue of each message that a consumer of all queues gets, one at a time, until there are no more."""
    url = server.url(1)
    with Connection(url, transport_options=transport_options(url)) as connection:
        channel = connection.channel()
        declared = [queue(channel) for queue in queues(quorum=False)]
        for queue in declared:
            queue.declare()
        for name in filled:
            connection.Producer().publish({}, routing_key=name)
        found: list[str] = []

        def take(_: object, message: Message) -> None:
            found.append(message.delivery_info["routing_key"])
            message.ack()

        consumer = Consumer(channel, declared, prefetch_count=1, callbacks=[take])
        with consumer:
            for _ in filled:
                connection.drain_events(timeout=20)
                yield found[-1]


def test_a_flood_of_bulk_holds_nobody_up(valkey: Valkey) -> None:
    first = Counter(islice(taken(valkey, [BULK] * 40 + [NORMAL] * 12 + [CRITICAL] * 3 + [CONTROL] * 2), 23))
    assert (first[CONTROL], first[CRITICAL]) == (2, 3)
    assert first[NORMAL] >= 11


@pytest.mark.parametrize("flooded", [CRITICAL, NORMAL])
def test_no_queue_stands_still_while_another_never_ends(valkey: Valkey, flooded: str) -> None:
    first = Counter(islice(taken(valkey, [flooded] * 60 + [q for q in QUEUES if q != flooded] * 10), 60))
    assert first[flooded] >= 10
    assert min(first.values()) >= 4
    assert set(first) == set(QUEUES)
