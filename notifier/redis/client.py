"""Redis clients with bounded waiting and no retries: a script must never run twice by itself."""

from __future__ import annotations

from redis import Redis
from redis.backoff import NoBackoff
from redis.retry import Retry


def connect(url: str, timeout_s: float) -> Redis:
    """A client whose every call ends within about `timeout_s` seconds, one way or the other. Replies are bytes.

    redis-py retries ten times by default, which keeps a caller waiting for seconds and may run a script twice.
    """
    return Redis.from_url(
        url,
        socket_timeout=timeout_s,
        socket_connect_timeout=timeout_s,
        retry=Retry(NoBackoff(), 0),
        health_check_interval=0,
        protocol=2,
    )
