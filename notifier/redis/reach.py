"""Whether a server can be reached, and where it was looked for: for people's questions, not for every call."""

from __future__ import annotations

from contextlib import closing

from redis.exceptions import RedisError

from notifier.errors import Unavailable
from notifier.redis.client import connect, place

TIMEOUT_S = 1.0


def reach_redis(name: str, url: str) -> None:
    """Ping it, and let go. Raises Unavailable, which says where it was looked for."""
    with closing(connect(url, TIMEOUT_S)) as client:
        try:
            client.ping()
        except RedisError as error:
            where = place(client.connection_pool.connection_kwargs)
            raise Unavailable(f"{name} at {where} cannot be used ({type(error).__name__})") from None


def reach_broker(url: str) -> None:
    """Connect, and let go. Raises Unavailable, which says where it was looked for."""
    if url.startswith(("redis://", "rediss://")):
        reach_redis("the broker", url)
        return
    from kombu import Connection

    from notifier.redis.broker import place_of, tls

    with Connection(url, connect_timeout=TIMEOUT_S, heartbeat=0, ssl=tls(url) or False) as connection:
        try:
            connection.connect()
        except Exception as error:  # what a transport raises is its own affair
            why = type(error).__name__
            raise Unavailable(f"the broker at {place_of(connection)} cannot be used ({why})") from None
