"""One pub/sub connection to state Redis for all clients of a process. Lost, it is made again; nothing is skipped."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import random
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from redis.asyncio import ConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from notifier.errors import StateUnavailable
from notifier.gateway.client import Client
from notifier.gateway.feed import Message, ReadMark, entry_of, parse_push, parse_read
from notifier.redis import keys
from notifier.redis.scripts import script

READERS = 16  # connections that read feeds
PROBERS = 2  # that ask whether Redis answers
CHUNK = 500  # channels one SUBSCRIBE names
BEAT_S = 3.0  # without a sign of life, although asked for one, the listening connection is taken for dead
TIMEOUT_S = 3.0  # of connecting and of each read: nobody waits in person, and giving up early feeds a storm
PAUSE_S = (0.05, 2.0)  # between attempts to connect: at first, at most

# A transport of uvloop that has been closed answers a write with a RuntimeError.
_LOST = (RedisError, OSError, TimeoutError, RuntimeError)

_log = logging.getLogger(__name__)


class Feed:
    """The clients of one user in this process. `subscribed` is done once Redis has confirmed."""

    __slots__ = ("clients", "key", "subscribed")

    def __init__(self, key: str) -> None:
        self.key = key
        self.clients: set[Client] = set()
        self.subscribed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def confirm(self) -> None:
        """From here on every push arrives. Whoever was connected before may have missed some."""
        if not self.subscribed.done():
            self.subscribed.set_result(None)
        for client in self.clients:
            client.reread()


class Hub:
    """Listens for pushes and hands each to the clients of its user."""

    def __init__(self, url: str, feed_s: float) -> None:
        """`feed_s` is a read mark's life in seconds. Opens nothing before run()."""
        self._feed_s = math.ceil(feed_s)
        self._pool = ConnectionPool.from_url(
            url,
            max_connections=READERS + PROBERS,
            socket_timeout=TIMEOUT_S,
            socket_connect_timeout=TIMEOUT_S,
            retry=Retry(NoBackoff(), 0),  # a lost connection must be seen, never mended silently
            health_check_interval=0,
            protocol=2,
        )
        self._client = Redis(connection_pool=self._pool)
        self._mark_script = self._client.register_script(script("mark_read").text)
        self._reading = asyncio.Semaphore(READERS)
        self._probing = asyncio.Semaphore(PROBERS)
        self._feeds: dict[bytes, Feed] = {}
        self._outbox: list[tuple[Any, ...]] = []
        self._posted = asyncio.Event()
        self._unconfirmed: deque[Feed | None] = deque()  # in the order sent, which is the order Redis answers in
        self._heard = False
        self._warned = False
        self.connected = False

    @property
    def clients(self) -> Iterator[Client]:
        """All clients of this process."""
        return (client for feed in list(self._feeds.values()) for client in list(feed.clients))

    async def run(self) -> None:
        """Listen until cancelled."""
        pause_s = PAUSE_S[0]
        try:
            while True:
                try:
                    await self._listen()
                except* _LOST as group:
                    if self.connected or not self._warned:
                        pause_s, self._warned = PAUSE_S[0], True
                        reason = type(group.exceptions[0]).__name__
                        _log.warning("no connection to state Redis (%s): clients wait until it is back", reason)
                except* Exception:  # whatever it was: a gateway that is alive and deaf would be worse
                    _log.exception("listening to state Redis failed; trying again")
                self.connected = False
                await asyncio.sleep(pause_s * random.uniform(0.5, 1))  # noqa: S311
                pause_s = min(2 * pause_s, PAUSE_S[1])
        finally:
            self.connected = False
            await self._client.aclose()
            await self._pool.disconnect()

    async def join(self, client: Client) -> None:
        """Returns once every later push reaches the client. Raises StateUnavailable."""
        if not self.connected:
            raise StateUnavailable("state Redis cannot be reached")
        key = keys.user_key("feed", client.user_id, "websocket")
        feed = self._feeds.get(key.encode())
        if feed is None:
            feed = self._feeds[key.encode()] = Feed(key)
            self._post(feed, "SUBSCRIBE", key)
        feed.clients.add(client)
        try:
            async with asyncio.timeout(2 * TIMEOUT_S):
                await asyncio.shield(feed.subscribed)
        except BaseException as error:
            self.leave(client)
            if isinstance(error, TimeoutError):
                raise StateUnavailable("state Redis did not confirm the subscription") from None
            raise

    def leave(self, client: Client) -> None:
        """The client gets nothing more."""
        key = keys.user_key("feed", client.user_id, "websocket")
        feed = self._feeds.get(key.encode())
        if feed is None:
            return
        feed.clients.discard(client)
        if not feed.clients:
            del self._feeds[key.encode()]
            self._post(None, "UNSUBSCRIBE", key)

    def connections_of(self, user_id: str) -> int:
        """How many clients the user has in this process."""
        feed = self._feeds.get(keys.user_key("feed", user_id, "websocket").encode())
        return len(feed.clients) if feed else 0

    async def read(self, user_id: str, start: str, count: int) -> list[Message]:
        """The user's entries from `start` on, itself included. Raises StateUnavailable."""
        key = keys.user_key("feed", user_id, "websocket")
        found: Any = await self._ask(lambda: self._client.xrange(key, min=start, count=count))
        return [entry_of(stream_id, fields[b"f"]) for stream_id, fields in found]

    async def read_mark(self, user_id: str, read_id: str = "") -> ReadMark:
        """How far the user has read, after moving the mark to `read_id`, if given. Raises StateUnavailable."""
        names = [keys.user_key(kind, user_id, "websocket") for kind in ("feed", "read")]
        reply: Any = await self._ask(lambda: self._mark_script(keys=names, args=[read_id, self._feed_s]))
        return ReadMark(reply[0].decode(), int(reply[1]), reply[2].decode())

    async def ping(self) -> None:
        """Raises StateUnavailable unless Redis answers and the listener is connected. Never behind clients' reads."""
        if not self.connected:
            raise StateUnavailable("not connected to state Redis")
        await self._ask(self._client.ping, self._probing)

    async def _ask(self, command: Callable[[], Awaitable[Any]], turn: asyncio.Semaphore | None = None) -> Any:
        async with turn or self._reading:
            try:
                return await command()
            except _LOST as error:
                raise StateUnavailable(f"state Redis: {type(error).__name__}") from None

    def _post(self, feed: Feed | None, *command: str) -> None:
        if self.connected:
            self._outbox.append(command)
            self._unconfirmed.append(feed)
            self._posted.set()

    async def _listen(self) -> None:
        """One connection's life. Ends by raising."""
        connection = self._pool.make_connection()  # type: ignore[no-untyped-call]
        try:
            await connection.connect()
            self._outbox, self._unconfirmed = [], deque()
            self.connected = True
            if self._warned:
                self._warned = False
                _log.warning("connected to state Redis again")
            feeds = list(self._feeds.values())
            for begin in range(0, len(feeds), CHUNK):
                chunk = feeds[begin : begin + CHUNK]
                self._outbox.append(("SUBSCRIBE", *(feed.key for feed in chunk)))
                self._unconfirmed.extend(chunk)
            self._posted.set()
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._receive(connection))
                tasks.create_task(self._transmit(connection))
                tasks.create_task(self._watch())
        finally:
            with contextlib.suppress(*_LOST):
                await connection.disconnect(nowait=True)

    async def _receive(self, connection: Any) -> None:
        while True:
            reply = await connection.read_response(timeout=math.inf, disconnect_on_error=False, push_request=True)
            self._heard = True
            kind = reply[0] if isinstance(reply, list) else b""
            if kind == b"message":
                self._dispatch(reply[1], reply[2])
            elif kind in (b"subscribe", b"unsubscribe"):
                feed = self._unconfirmed.popleft()
                if feed is not None:
                    feed.confirm()

    def _dispatch(self, channel: bytes, message: bytes) -> None:
        feed = self._feeds.get(channel)
        if feed is None:
            return
        try:
            mark = parse_read(message)
            push = None if mark else parse_push(message)
        except ValueError:
            _log.warning("a message that is no push arrived on a feed's channel; reading the feed instead")
            feed.confirm()
            return
        for client in feed.clients:
            if push:
                client.offer(push)
            elif mark:
                client.tell(mark)

    async def _transmit(self, connection: Any) -> None:
        while True:
            await self._posted.wait()
            self._posted.clear()
            commands, self._outbox = self._outbox, []
            await connection.send_packed_command(connection.pack_commands(commands), check_health=False)

    async def _watch(self) -> None:
        """A connection that is open and dead says nothing: ask, and give up where no answer comes."""
        while True:
            self._heard = False
            self._outbox.append(("PING",))
            self._posted.set()
            await asyncio.sleep(BEAT_S)
            if not self._heard:
                raise TimeoutError("no sign of life")
