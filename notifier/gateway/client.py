"""One connected client: its cursor, its bounded buffer, its sending. While nothing is to be sent there is no task."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Protocol

from notifier.errors import StateUnavailable
from notifier.gateway.feed import PAGE, Cursor, Entry, Push, gap, hello

BUFFER_FRAMES = 256
BUFFER_BYTES = 1_048_576
READ_AGAIN_S = 0.5  # after a read that failed
CLOSE_S = 2.0  # what a closing handshake may take

TOKEN_EXPIRED = 4001
SLOW = 4008

_log = logging.getLogger(__name__)

Fetch = Callable[[str, int], Awaitable[list[Entry]]]


class Wire(Protocol):
    """What carries messages to the client: a websocket, or an event stream."""

    async def send(self, text: str) -> None:
        """Returns when the transport has taken it. Raises ConnectionError when the client has gone."""

    async def close(self, code: int, reason: str) -> None:
        """Say why, and end the connection."""

    def abort(self) -> None:
        """End the connection now, whatever is still unsent."""


class Client:
    """Sends one client its feed, from its last id on: in order, each entry once."""

    def __init__(self, user_id: str, cursor: Cursor, wire: Wire, fetch: Fetch) -> None:
        """`fetch(from_id, count)` reads the user's feed, `from_id` included; it raises StateUnavailable."""
        self.user_id = user_id
        self._cursor = cursor
        self._wire = wire
        self._fetch = fetch
        self._greeted = False
        self._started = False
        self._closing = False
        self._buffer: deque[str] = deque()
        self._buffered_bytes = 0
        self._pump: asyncio.Task[None] | None = None
        self._again: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """The connection is accepted: greet the client, send what it has not got."""
        self._started = True
        self._wake()

    def offer(self, push: Push) -> None:
        """A push of the user's feed. Closes the connection if the client does not keep up."""
        if self._closing:
            return
        if self._cursor.push(push):
            self._buffer.append(push.frame)
            self._buffered_bytes += len(push.frame)
            if len(self._buffer) > BUFFER_FRAMES or self._buffered_bytes > BUFFER_BYTES:
                self.close(SLOW, "too slow: connect again and resume")
                return
        self._wake()

    def reread(self) -> None:
        """Pushes may have been missed."""
        self._cursor.miss()
        self._wake()

    def close(self, code: int, reason: str) -> None:
        """End the connection, soon and surely; the client resumes from its last id."""
        if not self._closing:
            self._stop()
            self._pump = asyncio.create_task(self._close(code, reason))

    def gone(self) -> None:
        """The client has left."""
        if not self._closing:
            self._stop()

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
        if self._started and not self._closing and not busy and (self._buffer or self._cursor.behind):
            self._pump = asyncio.create_task(self._send_all())

    async def _send_all(self) -> None:
        try:
            while self._buffer or self._cursor.behind:
                if self._buffer:
                    frame = self._buffer.popleft()
                    self._buffered_bytes -= len(frame)
                    await self._wire.send(frame)
                else:
                    await self._catch_up()
        except ConnectionError:
            self.gone()
        except StateUnavailable:
            self._again = asyncio.get_running_loop().call_later(READ_AGAIN_S, self._wake)

    async def _catch_up(self) -> None:
        """One page of the feed."""
        start = self._cursor.begin()
        try:
            entries = await self._fetch(start, PAGE)
        except BaseException:
            self._cursor.fail()
            raise
        step = self._cursor.apply(entries)
        if not self._greeted:
            self._greeted = True
            await self._wire.send(hello(self._cursor.resumes and not step.gap, step.stands_at))
        elif step.gap:
            _log.warning("a client missed entries that its feed no longer keeps")
            await self._wire.send(gap(step.stands_at))
        for entry in step.entries:
            await self._wire.send(entry.frame)
