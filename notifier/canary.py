"""A harmless message through a queue, which a worker answers: whoever sent it knows that the queue is consumed.

It travels as a probe that says `canary`. The answer is a field of one hash in state Redis, which lives for a minute.
No notification, no user and no count is touched.
"""

from __future__ import annotations

import re
from typing import cast

from redis import Redis

from notifier.redis.keys import PREFIX
from notifier.redis.state import call
from notifier.wire import QUEUES

KEEP_S = 60
_TOKEN = re.compile(r"[0-9a-f]{16,64}")


def answer(client: Redis, token: str, queue: str, worker: str) -> None:
    """Say that `worker` took it. Does nothing for a token or queue that is none. Raises StateUnavailable."""
    if queue not in QUEUES or not _TOKEN.fullmatch(token):
        return
    pipe = client.pipeline(transaction=False)
    pipe.hset(_key(token), queue, worker[:200])
    pipe.expire(_key(token), KEEP_S)
    call(pipe.execute)


def answers(client: Redis, token: str) -> dict[str, str]:
    """Queue -> the worker that took it. Raises StateUnavailable."""
    found = cast("dict[bytes, bytes]", call(lambda: client.hgetall(_key(token))))
    return {queue.decode(): worker.decode() for queue, worker in found.items()}


def forget(client: Redis, token: str) -> None:
    """Leave nothing behind. Raises StateUnavailable."""
    call(lambda: client.delete(_key(token)))


def _key(token: str) -> str:
    return f"{PREFIX}canary:{token}"
