"""Redis clients with bounded waiting and no retries: a script must never run twice by itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any

import hiredis
from redis import ConnectionPool, Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError
from redis.retry import Retry

from notifier.redis.scripts import Argument

Command = Sequence[Argument]

_pack: Any = hiredis.pack_command  # its stub knows tuples of one only

QUIET_S = 5.0  # a connection not used for longer is looked at first


def connect(url: str, timeout_s: float, pool: type[ConnectionPool] = ConnectionPool) -> Redis:
    """A client whose every call ends within about `timeout_s` seconds, one way or the other. Replies are bytes.

    redis-py retries ten times by default, which keeps a caller waiting for seconds and may run a script twice.
    """
    connections = pool.from_url(
        url,
        socket_timeout=timeout_s,
        socket_connect_timeout=timeout_s,
        retry=Retry(NoBackoff(), 0),
        health_check_interval=0,
        protocol=2,
    )
    return Redis.from_pool(connections)


def place(options: Mapping[str, Any]) -> str:
    """Where a connection with these options goes, for people: host:port, or a socket's path. Never a password."""
    return str(options.get("path") or f"{options.get('host', 'localhost')}:{options.get('port', 6379)}")


class Connections:
    """Bare connections of one client, for calls made thousands of times a second: a third cheaper than through it.

    Safe between threads. Not between processes: make a new one after a fork. Opens nothing before the first call.
    """

    quiet_s = QUIET_S

    def __init__(self, client: Redis, **options: Any) -> None:
        pool = client.connection_pool
        self._class, self._options = pool.connection_class, pool.connection_kwargs | options  # a pool counts lost ones
        self._idle: list[tuple[Any, float]] = []

    def call(self, commands: Sequence[Command]) -> list[Any]:
        """Send all commands, then read all replies: one round trip. An error reply stands in its place in the list.

        Raises redis-py's ConnectionError or TimeoutError (then some commands may have run).
        """
        return self.read(self.send(commands), len(commands))

    def send(self, commands: Sequence[Command]) -> Any:
        """The first half of a call. Returns what `read` wants."""
        connection = self._connection()
        try:
            # redis-py's own packing looks at every argument first; ours are str, int and bytes
            packed = b"".join(_pack(tuple(command)) for command in commands)
            connection.send_packed_command([packed], check_health=False)
        except BaseException:
            connection.disconnect()
            raise
        return connection

    def read(self, connection: Any, count: int) -> list[Any]:
        """The second half: the replies."""
        try:
            replies = [_reply(connection) for _ in range(count)]
        except BaseException:
            connection.disconnect()
            raise
        self._idle.append((connection, monotonic()))
        return replies

    def _connection(self) -> Any:
        """The one used last, unless the server closed it meanwhile: that is no outage."""
        while self._idle:
            with suppress(IndexError):
                connection, used_s = self._idle.pop()
                if monotonic() - used_s < self.quiet_s or not _ended(connection):
                    return connection
                connection.disconnect()
        return self._class(**self._options)

    def close(self) -> None:
        """Close what is idle. A later call opens anew."""
        while self._idle:
            with suppress(IndexError):
                self._idle.pop()[0].disconnect()


def _ended(connection: Any) -> bool:
    try:
        return bool(connection.can_read(0))  # nothing is expected, so there is only an end to be read
    except (RedisError, OSError):
        return True


def _reply(connection: Any) -> Any:
    try:
        return connection.read_response()
    except ResponseError as error:
        return error
