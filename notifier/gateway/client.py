"""One connected client: its cursor, its bounded buffer, its sending. While nothing is to be sent there is no task."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Protocol

from notifier import logs, tracing
from notifier.errors import StateUnavailable
from notifier.gateway import meters
from notifier.gateway.feed import PAGE, Cursor, Message, Push, ReadMark, gap, hello, read_message
from notifier.notification import WEBSOCKET

BUFFER_MESSAGES = 256
BUFFER_BYTES = 1_048_576
READ_AGAIN_S = 0.5  # after a read that failed
CLOSE_S = 2.0  # what a closing handshake may take

GOING_AWAY = 1012
POLICY = 1008
FAILED = 1011
TOKEN_EXPIRED = 4001
SLOW = 4008

_log = logging.getLogger(__name__)


class Wire(Protocol):
    """What carries messages to the client: a websocket, or an event stream."""

    async def send(self, message: Message) -> None:
        """Returns when the transport has taken it. Raises ConnectionError when the client has gone."""

    async def close(self, code: int, reason: str) -> None:
        """Say why, and end the connection."""

    def abort(self) -> None:
        """End the connection now, whatever is still unsent."""


class Source(Protocol):
    """Where a user's feed is read."""

    async def read(self, user_id: str, start: str, count: int) -> list[Message]:
        """Entries from `start` on, itself included. Raises StateUnavailable."""

    async def read_mark(self, user_id: str) -> ReadMark:
        """How far the user has read. Raises StateUnavailable."""


class Client:
    """Sends one client its feed, from its last id on: in order, each entry once."""

    def __init__(self, user_id: str, cursor: Cursor, wire: Wire, source: Source) -> None:
        """Nothing is sent before start()."""
        self.user_id = user_id
        self._cursor = cursor
        self._wire = wire
        self._source = source
        self._greeted = False
        self._sees_history = not cursor.resumes  # what it reads first it may have seen before
        self._started = False
        self._closing = False
        self._mark_is_old = False
        self._buffer: deque[Message] = deque()
        self._buffered_bytes = 0
        self._pump: asyncio.Task[None] | None = None
        self._again: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """The connection is accepted: greet the client, send what it has not got."""
        self._started = True
        self._wake()

    def offer(self, push: Push) -> None:
        """A push of the user's feed. Closes the connection if the client does not keep up."""
        if self._cursor.push(push):
            self._put(Message(push.id, push.frame))
        self._wake()

    def tell(self, mark: ReadMark) -> None:
        """The user has read something, maybe in another tab."""
        if self._greeted:  # else hello will say so
            self._put(read_message(mark))
            self._wake()

    def reread(self) -> None:
        """Pushes may have been missed, and read marks with them."""
        self._cursor.miss()
        self._mark_is_old = self._greeted
        self._wake()

    def close(self, code: int, reason: str) -> None:
        """End the connection, soon and surely; the client resumes from its last id."""
        if not self._closing:
            meters.CLOSED.labels(str(code)).inc()
            self._stop()
            self._pump = asyncio.create_task(self._close(code, reason))

    def gone(self) -> None:
        """The client has left."""
        if not self._closing:
            self._stop()

    def _put(self, message: Message) -> None:
        if self._closing:
            return
        self._buffer.append(message)
        self._buffered_bytes += len(message.text)
        if len(self._buffer) > BUFFER_MESSAGES or self._buffered_bytes > BUFFER_BYTES:
            self.close(SLOW, "too slow: connect again and resume")

    def _stop(self) -> None:
        self._closing = True
        self._buffer.clear()
        if self._pump:
            self._pump.cancel()
        if self._again:
            self._again.cancel()

    async def _close(self, code: int, reason: str) -> None:
        try:
            async with asyncio.timeout(CLOSE_S):
                await self._wire.close(code, reason)
        except (TimeoutError, ConnectionError):
            self._wire.abort()

    def _wake(self) -> None:
        busy = self._pump is not None and not self._pump.done()
        if self._started and not self._closing and not busy and self._has_work():
            self._pump = asyncio.create_task(self._work())

    def _has_work(self) -> bool:
        return bool(self._buffer) or self._cursor.behind or self._mark_is_old

    async def _work(self) -> None:
        try:
            while self._has_work():
                if self._buffer:
                    message = self._buffer.popleft()
                    self._buffered_bytes -= len(message.text)
                    await self._send(message)
                elif self._cursor.behind:
                    await self._catch_up()
                else:
                    self._mark_is_old = False
                    await self._send(read_message(await self._source.read_mark(self.user_id)))
        except ConnectionError:
            self.gone()
        except StateUnavailable:
            self._mark_is_old = self._greeted
            self._again = asyncio.get_running_loop().call_later(READ_AGAIN_S, self._wake)
        except Exception as error:  # whatever it was: a client that is connected and gets nothing would be worse
            logs.say(_log, logging.ERROR, f"sending to a client failed\n{logs.trace(error)}", self._about)
            self.close(FAILED, "internal error: connect again and resume")

    @property
    def _about(self) -> dict[str, str]:
        return {"user_id": self.user_id, "channel": WEBSOCKET}

    async def _catch_up(self) -> None:
        """One page of the feed."""
        mark = None if self._greeted else await self._source.read_mark(self.user_id)
        start = self._cursor.begin()
        try:
            entries = await self._source.read(self.user_id, start, PAGE)
        except BaseException:
            self._cursor.fail()
            raise
        meters.READ.inc()
        step = self._cursor.apply(entries)
        if mark is not None:
            self._greeted = True
            await self._send(hello(self._cursor.resumes and not step.gap, step.stands_at, mark))
        elif step.gap:
            meters.GAPS.inc()
            logs.say(_log, logging.WARNING, "a client missed entries that its feed no longer keeps", self._about)
            await self._send(gap(step.stands_at))
        for entry in step.entries:
            await self._send(entry, traced=not self._sees_history)
        self._sees_history &= self._cursor.behind

    async def _send(self, message: Message, *, traced: bool = True) -> None:
        begun_ns = tracing.now_ns()
        await self._wire.send(message)
        meters.SENT.inc()
        if begun_ns and traced and not message.type:
            tracing.pushed(self.user_id, message.text, begun_ns)
