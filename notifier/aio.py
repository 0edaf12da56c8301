"""notify and notify_many for asyncio. The event loop never waits for a server: one thread does.

Calls that come while the thread is busy are taken together next time, in one round trip: there is one thread however
many calls there are. Where servers are silent, what was waiting when a batch began fails with it; so a call ends after
two bounds of notify at most: of the batch that the thread was at when it came, and of the next one.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from notifier import producer, tracing
from notifier.errors import NotAccepted
from notifier.ledger import CHUNK
from notifier.notification import Notification

if TYPE_CHECKING:
    from opentelemetry.trace import Span

WAITING = 200  # pieces of work that nobody waits for, at most: where servers are silent, each takes its time


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
    producer.check_notifications(notifications)
    return await asyncio.wrap_future(_sender(os.getpid()).send(notifications))


def aside(work: Callable[[], object]) -> bool:
    """Leave work that waits for servers to another thread; nobody hears of its end. False: too much waits already."""
    return _sender(os.getpid()).run(work)


class _Call(NamedTuple):
    notifications: list[Notification]
    future: Future[list[producer.Sending]]
    caller: Span | None  # of OpenTelemetry


class Sender:
    """One thread that accepts what was handed to it, up to a hundred notifications at a time."""

    def __init__(self, accept: Callable[[Sequence[Notification]], list[producer.Sending]]) -> None:
        self._accept = accept
        self._calls: deque[_Call] = deque()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="notifier-sender")
        self._aside = ThreadPoolExecutor(1, thread_name_prefix="notifier-aside")
        self._room = threading.BoundedSemaphore(WAITING)

    def send(self, notifications: list[Notification]) -> Future[list[producer.Sending]]:
        """What became of them, in their order. Cancelled before the thread takes it, nothing of it is sent."""
        call = _Call(notifications, Future(), tracing.caller())
        self._calls.append(call)
        self._thread.submit(self._work)
        return call.future

    def run(self, work: Callable[[], object]) -> bool:
        """Something that nobody waits for, in a thread of its own. False, and it is not run, where too much waits."""
        if not self._room.acquire(blocking=False):
            return False
        try:
            running = self._aside.submit(copy_context().run, work)
        except RuntimeError:  # the interpreter is about to end
            self._room.release()
            return False
        running.add_done_callback(lambda _: self._room.release())
        return True

    def _work(self) -> None:
        batch: list[_Call] = []
        size = 0
        while self._calls and (not batch or size + len(self._calls[0].notifications) <= CHUNK):
            taken = self._take(1)
            batch += taken
            size += sum(len(call.notifications) for call in taken)
        if not batch:
            return
        waiting = len(self._calls)
        try:
            with tracing.sending_for({id(n): call.caller for call in batch if call.caller for n in call.notifications}):
                sendings = iter(self._accept([n for call in batch for n in call.notifications]))
        except NotAccepted as error:
            for call in batch + self._take(waiting):
                own = producer.not_accepted(call.notifications)
                own.__cause__ = error.__cause__
                call.future.set_exception(own)
        except BaseException as error:
            for call in batch:
                call.future.set_exception(error)
        else:
            for call in batch:
                call.future.set_result(list(islice(sendings, len(call.notifications))))

    def _take(self, number: int) -> list[_Call]:
        """The next so many, without those that were cancelled. Nobody but the thread takes any."""
        taken = [self._calls.popleft() for _ in range(number)]
        return [call for call in taken if call.future.set_running_or_notify_cancel()]


def _accept(notifications: Sequence[Notification]) -> list[producer.Sending]:
    return producer.accept_and_publish(producer.own_app(), notifications)


@lru_cache(maxsize=1)
def _sender(pid: int) -> Sender:  # noqa: ARG001  a forked child has no thread of its parent's
    return Sender(_accept)
