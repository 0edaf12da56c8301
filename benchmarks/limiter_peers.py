"""The libraries that the limiter is measured against, each by its own public API and at its fastest settings."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

Decide = Callable[[str], object]

# Bare EVALSHA: the smallest exact limiter, one key, what a script of one's own would cost.
BARE = """
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local em, tol, cost = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local tat = tonumber(redis.call('GET', KEYS[1])) or now
if tat < now then tat = now end
local new = tat + em * cost
local wait = new - tol - now
if wait > 0 then return {0, wait} end
redis.call('SET', KEYS[1], string.format('%.0f', new), 'PX', math.ceil((new - now) / 1000))
return {1, 0}
"""


def in_memory() -> dict[str, tuple[Decide, Decide]]:
    """For each library and algorithm: a decision that is granted, and one that is denied."""
    return {**_limits_memory(), **_throttled_memory(), **_pyrate_memory()}


def on_redis(url: str) -> dict[str, Decide]:
    """A decision that is granted, one round trip each."""
    return {**_limits_redis(url), **_throttled_redis(url), **_pyrate_redis(url)}


def _limits_memory() -> dict[str, tuple[Decide, Decide]]:
    from limits import RateLimitItemPerHour, RateLimitItemPerMinute, storage, strategies

    generous, mean = RateLimitItemPerMinute(100_000), RateLimitItemPerHour(1)
    made: dict[str, tuple[Decide, Decide]] = {}
    for name in ("FixedWindow", "SlidingWindowCounter", "MovingWindow"):
        limiter = getattr(strategies, f"{name}RateLimiter")(storage.MemoryStorage())
        limiter.hit(mean, "noisy")
        made[f"limits {name}"] = (_bound(limiter.hit, generous), _bound(limiter.hit, mean))
    return made


def _bound(hit: Callable[..., Any], item: Any) -> Decide:
    return lambda key: hit(item, key)


def _throttled_memory() -> dict[str, tuple[Decide, Decide]]:
    from throttled import Throttled, rate_limiter, store

    made: dict[str, tuple[Decide, Decide]] = {}
    for using in ("token_bucket", "gcra", "fixed_window", "sliding_window"):
        memory = store.MemoryStore(options={"MAX_SIZE": 50_000})
        generous = Throttled(using=using, quota=rate_limiter.per_min(100_000, burst=100_000), store=memory)
        mean = Throttled(using=using, quota=rate_limiter.per_hour(1, burst=1), store=memory)
        mean.limit("noisy")
        made[f"throttled-py {using}"] = (generous.limit, mean.limit)
    return made


def _pyrate_memory() -> dict[str, tuple[Decide, Decide]]:
    from pyrate_limiter import BucketFactory, Duration, InMemoryBucket, Limiter, Rate, RateItem

    class Factory(BucketFactory):
        def __init__(self, rate: Any) -> None:
            self.buckets: dict[str, Any] = {}
            self.rate = rate

        def wrap_item(self, name: str, weight: int = 1) -> Any:
            return RateItem(name, int(time.monotonic() * 1000), weight=weight)

        def get(self, item: Any) -> Any:
            bucket = self.buckets.get(item.name)
            if bucket is None:
                bucket = self.buckets[item.name] = InMemoryBucket([self.rate])
            return bucket

    generous, mean = Limiter(Factory(Rate(1_000, Duration.MINUTE))), Limiter(Factory(Rate(1, Duration.HOUR)))
    mean.try_acquire("noisy", blocking=False)
    return {
        "pyrate-limiter": (
            lambda key: generous.try_acquire(key, blocking=False),
            lambda key: mean.try_acquire(key, blocking=False),
        )
    }


def _limits_redis(url: str) -> dict[str, Decide]:
    from limits import RateLimitItemPerMinute, storage, strategies

    generous = RateLimitItemPerMinute(100_000)
    return {
        f"limits {name}": _bound(getattr(strategies, f"{name}RateLimiter")(storage.RedisStorage(url)).hit, generous)
        for name in ("FixedWindow", "SlidingWindowCounter")
    }


def _throttled_redis(url: str) -> dict[str, Decide]:
    from throttled import Throttled, rate_limiter, store

    made: dict[str, Decide] = {}
    for using in ("token_bucket", "gcra", "fixed_window"):
        quota = rate_limiter.per_min(100_000, burst=100_000)
        made[f"throttled-py {using}"] = Throttled(using=using, quota=quota, store=store.RedisStore(server=url)).limit
    return made


def _pyrate_redis(url: str) -> dict[str, Decide]:
    from pyrate_limiter import BucketFactory, Duration, Limiter, Rate, RateItem, RedisBucket
    from pyrate_limiter.buckets.redis_bucket import LuaScript
    from redis import Redis

    client = Redis.from_url(url)
    digest = client.script_load(LuaScript.PUT_ITEM)

    class Factory(BucketFactory):
        def __init__(self) -> None:
            self.buckets: dict[str, Any] = {}

        def wrap_item(self, name: str, weight: int = 1) -> Any:
            return RateItem(name, time.time_ns() // 1_000_000, weight=weight)

        def get(self, item: Any) -> Any:
            bucket = self.buckets.get(item.name)
            if bucket is None:
                rates = [Rate(100_000, Duration.MINUTE)]
                bucket = self.buckets[item.name] = RedisBucket(rates, client, f"pyrate:{item.name}", digest)
            return bucket

    limiter = Limiter(Factory())
    return {"pyrate-limiter": lambda key: limiter.try_acquire(key, blocking=False)}
