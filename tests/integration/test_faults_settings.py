"""A state Redis that is set up to lose things is called out."""

from __future__ import annotations

from collections.abc import Callable

from redis import Redis

from notifier.embedded.valkey import Valkey
from notifier.redis.state import risks


def test_eviction_and_no_file_are_risks(fresh_valkey: Callable[..., Valkey]) -> None:
    """celery/celery#6319, getsentry/sentry#122038: evicted queues, evicted buckets."""
    with Redis.from_url(fresh_valkey(aof="always").url()) as client:
        assert risks(client) == {}
        client.config_set("maxmemory-policy", "allkeys-lru")
        client.config_set("appendonly", "no")
        found = risks(client)
    assert list(found) == ["state_redis_evicts", "state_redis_forgets"]
    assert "allkeys-lru" in found["state_redis_evicts"]
    assert "noeviction" in found["state_redis_evicts"]
