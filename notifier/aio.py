"""notify and notify_many for asyncio. The event loop never waits for a server: one thread does.

Calls that come while the thread is busy are taken together next time, in one round trip. So there is one thread however
many calls there are, and while servers are silent a call ends after two bounds of notify at most: the one that the
thread was at, and its own.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from itertools import islice
from typing import Any

from notifier import producer
from notifier.errors import NotAccepted
from notifier.ledger import CHUNK
from notifier.notification import Notification


async def anotify(user_id: object, payload: object, **options: Any) -> str:
    """Send one notification; the options, the id returned and the errors are those of notify.

    A call that is cancelled may have been accepted all the same: send it again with a `notification_id` of your own,
    and it is delivered once.
    """
    notification = producer.created("anotify", user_id, payload, options)
    await _accepted([notification])
    return notification.notification_id


async def anotify_many(notifications: Iterable[Notification]) -> dict[str, int]:
    """Send many different ones, a hundred at a time; what it returns and raises is as with notify_many.

    Cancelled or refused in the middle, some have been accepted: sending the same objects again is safe.
    """
    statuses: Counter[str] = Counter()
    rest = iter(notifications)
    while part := list(islice(rest, CHUNK)):
        statuses.update(sending.status for sending in await _accepted(part))
    return dict(statuses)


async def _accepted(notifications: list[Notification]) -> list[producer.Sending]:
    producer.check_channels(notifications)
    return await asyncio.wrap_future(_sender(os.getpid()).send(notifications))


def in_sender(work: Callable[[], object]) -> None:
    """Leave work that waits for servers to the thread; nobody hears of its end."""
    _sender(os.getpid()).run(work)


class Sender:
    """One thread that accepts what was handed to it, up to a hundred notifications at a time."""

    def __init__(self, accept: Callable[[Sequence[Notification]], list[producer.Sending]]) -> None:
        self._accept = accept
        self._calls: deque[tuple[list[Notification], Future[list[producer.Sending]]]] = deque()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="notifier-sender")

    def send(self, notifications: list[Notification]) -> Future[list[producer.Sending]]:
        """What became of them, in their order. Cancelled before the thread takes it, nothing of it is sent."""
        future: Future[list[producer.Sending]] = Future()
        self._calls.append((notifications, future))
        self._thread.submit(self._work)
        return future

    def run(self, work: Callable[[], object]) -> None:
        """Something else that the thread is to do."""
        self._thread.submit(work)

    def _work(self) -> None:
        calls: list[tuple[list[Notification], Future[list[producer.Sending]]]] = []
        size = 0
        while self._calls and (not calls or size + len(self._calls[0][0]) <= CHUNK):
            notifications, future = self._calls.popleft()
            if future.set_running_or_notify_cancel():
                calls.append((notifications, future))
                size += len(notifications)
        if not calls:
            return
        try:
            sendings = iter(self._accept([n for notifications, _ in calls for n in notifications]))
        except BaseException as error:
            for notifications, future in calls:
                future.set_exception(_of_this_call(error, notifications))
            return
        for notifications, future in calls:
            future.set_result(list(islice(sendings, len(notifications))))


def _of_this_call(error: BaseException, notifications: Sequence[Notification]) -> BaseException:
    """What failed for all of them together, said of one call."""
    if not isinstance(error, NotAccepted):
        return error
    own = NotAccepted(notifications[0].notification_id, [n.user_id for n in notifications])
    own.__cause__ = error.__cause__
    return own


def _accept(notifications: Sequence[Notification]) -> list[producer.Sending]:
    return producer.accept_and_publish(producer.own_app(), notifications)


@lru_cache(maxsize=1)
def _sender(pid: int) -> Sender:  # noqa: ARG001  a forked child has no thread of its parent's
    return Sender(_accept)
