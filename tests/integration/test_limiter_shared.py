"""The limiter on one real server: shared decisions, loans, deny cache."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from redis import Redis

from notifier import Limiter, Settings
from notifier.limits.limiter import Request
from notifier.redis import keys
from notifier.redis.client import connect
from tests.support import eventually

Make = Callable[..., Limiter]


@pytest.fixture
def make(limiter_valkey: Any) -> Iterator[Make]:
    """Makes limiters, as if each were in a process of its own."""
    with contextlib.ExitStack() as stack:

        def limiter(**settings: Any) -> Limiter:
            made = Limiter.from_settings(
                Settings(limiter_redis_url=limiter_valkey.url(), limiter_timeout=2.0, **settings)
            )
            stack.callback(made.close)
            return made

        yield limiter


@pytest.fixture
def redis(limiter_valkey: Any) -> Iterator[Redis]:
    with contextlib.closing(connect(limiter_valkey.url(), 1.0)) as client:
        yield client


def granted(limiter: Limiter, user_id: str, times: int, **options: str) -> int:
    return sum(limiter.acquire(user_id, **options).granted for _ in range(times))


def charged(limiter: Limiter) -> bool:
    return limiter.state().loans == 0


def test_a_full_bucket_gives_its_burst_whole_and_no_more(make: Make) -> None:
    assert granted(make(user_limit="1/day burst 10", local_bucket="off"), "a", 30) == 10


def test_two_limiters_share_one_bucket(make: Make) -> None:
    limits = {"user_limit": "1/day burst 10", "local_bucket": "off"}
    one, two = make(**limits), make(**limits)
    assert granted(one, "a", 7) + granted(two, "a", 7) == 10


def test_a_local_grant_is_charged_soon(make: Make, redis: Redis) -> None:
    limiter = make(user_limit="1/day burst 10")
    verdict = limiter.acquire("a")
    assert (verdict.granted, verdict.source, verdict.level, verdict.retry_after) == (True, "local", None, 0.0)
    eventually(lambda: charged(limiter))
    assert redis.exists(keys.user_key("bucket", "a", "websocket"))
    assert granted(limiter, "a", 30) == 9


def test_grants_are_the_burst_and_one_loan_for_each_process_at_most(make: Make) -> None:
    limiters = [make(user_limit="1/day burst 5") for _ in range(3)]
    total = sum(granted(limiter, "a", 20) for limiter in limiters)
    eventually(lambda: all(charged(limiter) for limiter in limiters))
    assert 5 <= total <= 5 + 3
    assert sum(granted(limiter, "a", 20) for limiter in limiters) == 0


def test_a_denial_is_remembered_and_says_how_long(make: Make, redis: Redis) -> None:
    limiter = make(user_limit="1/min burst 1", local_bucket="off")
    assert limiter.acquire("a").granted
    first, second = limiter.acquire("a"), limiter.acquire("a")
    assert (first.granted, first.level, first.source, first.interval_s) == (False, "user", "shared", 60.0)
    assert (second.granted, second.level, second.source, second.interval_s) == (False, "user", "local", 60.0)
    assert 0 < second.retry_after <= first.retry_after <= 60
    asked = redis.info("commandstats")["cmdstat_evalsha"]["calls"]
    assert granted(limiter, "a", 1_000) == 0
    assert redis.info("commandstats")["cmdstat_evalsha"]["calls"] == asked


def test_after_exactly_the_wait_it_is_granted(make: Make) -> None:
    limiter = make(user_limit="2/s burst 1", local_bucket="off")
    for _ in range(3):
        assert limiter.acquire("a").granted
        verdict = limiter.acquire("a")
        assert 0 < verdict.retry_after <= 0.5
        time.sleep(verdict.retry_after)


def test_the_channel_limit_holds_over_users_and_stops_them_all(make: Make, redis: Redis) -> None:
    limiter = make(channel_limit="1/day burst 3", user_limit="10/s burst 10")
    verdicts = limiter.acquire_many([Request(f"user-{n}") for n in range(5)])
    assert [v.granted for v in verdicts] == [True] * 3 + [False] * 2
    assert {v.level for v in verdicts[3:]} == {"channel"}
    assert limiter.acquire("somebody else").source == "local"
    assert not redis.exists(keys.user_key("bucket", "user-4", "websocket"))  # all or nothing


def test_channels_and_users_have_buckets_of_their_own(make: Make) -> None:
    limiter = make(user_limit="1/day burst 1", local_bucket="off")
    for user_id in ("a:b", "a", "{x}", "{}", "*", "unacked", "a b", "é", "用户", "x" * 512, "😀"):
        for channel in ("websocket", "b", "b:c"):
            assert granted(limiter, user_id, 3, channel=channel) == 1, (user_id, channel)


def test_a_number_and_its_text_are_one_user(make: Make) -> None:
    limiter = make(user_limit="1/day burst 1", local_bucket="off")
    assert limiter.acquire(1).granted  # type: ignore[arg-type]
    assert not limiter.acquire("1").granted


@pytest.mark.parametrize("user_id", ["", None, "x" * 513, "\ud800", b"a"])
def test_a_user_that_cannot_be_is_refused(make: Make, user_id: Any) -> None:
    with pytest.raises(ValueError, match="user_id"):
        make().acquire(user_id)


def test_a_priority_or_channel_that_cannot_be_is_refused(make: Make) -> None:
    with pytest.raises(ValueError, match="priority"):
        make().acquire("a", priority="urgent")
    with pytest.raises(ValueError, match="channel"):
        make().acquire("a", channel="")


def test_where_none_pass_the_verdict_says_so(make: Make) -> None:
    verdict = make(user_limit="0/s").acquire("a")
    assert (verdict.granted, verdict.level, verdict.interval_s) == (False, "user", math.inf)
    assert verdict.retry_after == pytest.approx(86_400, abs=1)


def test_without_limits_nobody_asks_redis(make: Make, redis: Redis) -> None:
    limiter = make(user_limit="off", local_bucket="off")
    assert granted(limiter, "a", 1_000) == 1_000
    assert not redis.keys("*bucket*")


def test_critical_passes_and_is_charged(make: Make) -> None:
    limiter = make(user_limit="1/day burst 2", local_bucket="off")
    assert granted(limiter, "a", 5, priority="critical") == 5
    assert granted(limiter, "a", 5) == 0


def test_critical_obeys_the_channel(make: Make) -> None:
    limiter = make(user_limit="1/day burst 1", channel_limit="1/day burst 3", local_bucket="off")
    assert granted(limiter, "a", 5, priority="critical") == 3


@pytest.mark.parametrize(("burst", "passes"), [(1, 1), (2, 1), (3, 2), (10, 5)])
def test_bulk_leaves_half_the_burst(make: Make, burst: int, passes: int) -> None:
    limiter = make(user_limit=f"1/day burst {burst}")
    assert granted(limiter, "a", 20, priority="bulk") == passes
    assert granted(limiter, "a", 20) == burst - passes


def test_a_batch_decides_in_order_of_a_user(make: Make) -> None:
    limiter = make(user_limit="1/day burst 3")
    requests = [Request(f"user-{n % 10}") for n in range(60)]
    verdicts = limiter.acquire_many(requests)
    for n in range(10):
        of_user = [v.granted for v in verdicts[n::10]]
        assert of_user == sorted(of_user, reverse=True)
        assert 3 <= sum(of_user) <= 4
    assert limiter.acquire_many([]) == []


def test_a_thousand_in_one_call(make: Make) -> None:
    limiter = make(user_limit="1/day burst 2", local_bucket="off")
    verdicts = limiter.acquire_many([Request(f"user-{n % 500}") for n in range(1_500)])
    assert sum(v.granted for v in verdicts) == 1_000


def test_a_grant_carries_the_time_of_redis(make: Make, redis: Redis) -> None:
    limiter = make()
    for verdict in [limiter.acquire("a"), limiter.acquire("a")]:
        seconds, microseconds = redis.time()
        assert abs(verdict.granted_at_us - (seconds * 1_000_000 + microseconds)) < 1_000_000


def test_every_key_has_a_ttl(make: Make, redis: Redis) -> None:
    limiter = make(user_limit="3/s burst 7", channel_limit="7/min burst 100", user_quota="1000/hour")
    limiter.acquire_many([Request(f"user-{n}", priority=("normal", "critical", "bulk")[n % 3]) for n in range(50)])
    loans = make(user_limit="1/hour burst 80000")
    loans.acquire("b")
    loans.flush()
    found = list(redis.scan_iter("*"))
    assert len(found) > 80
    assert {name for name in found if redis.pttl(name) < 1} == set()


def test_nothing_is_opened_before_the_first_question(make: Make, redis: Redis) -> None:
    before = redis.info("clients")["connected_clients"]
    limiter = make()
    assert redis.info("clients")["connected_clients"] == before
    limiter.acquire("a")
    assert redis.info("clients")["connected_clients"] > before


def test_a_forgotten_script_is_sent_again(make: Make, redis: Redis) -> None:
    limiter = make(user_limit="1/day burst 100", local_bucket="off")
    for _ in range(20):
        assert limiter.acquire("a").source == "shared"
        redis.script_flush()
    assert limiter.state().outages == 0
