"""The real Lua on a real server, its one TIME line replaced: equal to the pure buckets, exact whatever happens."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, assume, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from redis import Redis

from notifier.lab.simulate_buckets import PureBuckets, excess_us
from notifier.limit import Limit
from notifier.limits.policy import ChannelPolicy, Policy
from notifier.limits.shared import LOAN, NORMAL, ONE, Answer, Entry, SharedBuckets
from notifier.redis.client import Connections, connect
from notifier.redis.scripts import Script, script

TIME_LINE = "local time = redis.call('TIME')\n"
# Keys must not expire by the server's own clock while the script lives by another one.
OURS = """
local server = redis
local time = server.call('MGET', 'now:s', 'now:us')
local redis = {call = function(command, ...)
  if command == 'SET' then return server.call('SET', (...), (select(2, ...))) end
  if command == 'PEXPIRE' then return 1 end
  return server.call(command, ...)
end}
"""
EPOCH_US = 1_800_000_000_000_000
few = hypothesis_settings(
    max_examples=60,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],  # shrinking over a socket takes minutes
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@cache
def connections_of(client: Redis) -> Connections:
    return Connections(client)


class LuaBuckets:
    """Shared buckets by the script, on a clock that is set by hand."""

    def __init__(self, client: Redis, debt: int, text: str | None = None) -> None:
        original = script("token_bucket").text if text is None else text
        assert original.count(TIME_LINE) == 1
        self._client = client
        self._connections = connections_of(client)
        self._script = Script(original.replace(TIME_LINE, OURS))
        self._debt = debt
        self.now_us = 0

    def decide(self, entries: Sequence[Entry], charges: int = 0, seq: int = 0, process: str = "") -> Answer:
        self._client.mset({"now:s": self.now_us // 1_000_000, "now:us": self.now_us % 1_000_000})
        shared = SharedBuckets(self._connections, self._script, process, self._debt)
        return shared.decide(entries, charges, seq)


@pytest.fixture
def client(limiter_valkey: Any) -> Iterator[Redis]:
    with contextlib.closing(connect(limiter_valkey.url(), 2.0)) as redis:
        yield redis


def limits(*, off: bool = True) -> st.SearchStrategy[Limit]:
    emissions_us = st.sampled_from([40, 41, 1_000, 500_000, 3_600_000_000, 86_400_000_000])
    some = st.builds(Limit, emissions_us, st.integers(0, 12))
    return st.just(Limit(0, 1)) | some if off else some


@st.composite
def policies(draw: st.DrawFn) -> list[Policy]:
    limit = draw(limits())
    channel = None if limit.off else ChannelPolicy("websocket", limit, draw(st.integers(0, 40)))
    ordinary = Policy("websocket", None, draw(limits()), draw(limits()), channel, True)
    urgent = Policy("websocket", "security", draw(limits()), ordinary.quota, channel, True)
    return [ordinary, urgent]


steps = st.sampled_from(
    [0, 1, 39, 40, 1_000, 250_000, 500_000, 7_000_000, 86_400_000_000, -1, -600_000, -90_000_000_000]
)


@few
@given(data=st.data())
def test_the_pure_buckets_do_what_the_script_does(client: Redis, data: st.DataObject) -> None:
    client.flushall()
    debt = data.draw(st.integers(0, 8))
    lua, pure = LuaBuckets(client, debt), PureBuckets(debt)
    both = data.draw(policies())
    now_us, seq = EPOCH_US, 0
    for _ in range(data.draw(st.integers(1, 12))):
        now_us += data.draw(steps)
        lua.now_us = pure.now_us = now_us
        entry = st.tuples(st.sampled_from(both), st.sampled_from(["a", "b"]), st.just(LOAN) | st.integers(0, 2))
        drawn = data.draw(st.lists(entry, max_size=8))
        loans = [(p, u, ONE * data.draw(st.integers(1, 3)) + k) for p, u, k in drawn if k == LOAN]
        asked = [(p, u, ONE + k) for p, u, k in drawn if k != LOAN]
        seq = max(1, seq + data.draw(st.sampled_from([1, 1, 1, 0, -1]))) if loans else seq
        process = data.draw(st.sampled_from(["p", "q"]))
        arguments = (loans + asked, len(loans), seq if loans else 0, process)
        assert lua.decide(*arguments) == pure.decide(*arguments)


def user_policy(limit: Limit, quota: Limit | None = None) -> Policy:
    return Policy("websocket", None, limit, quota or Limit(0, 1), None, True)


def one(policy: Policy, kind: int = NORMAL, user_id: str = "a") -> list[Entry]:
    return [(policy, user_id, ONE + kind)]


@few
@given(
    limit=limits(off=False),
    thinks=st.lists(st.integers(0, 3_000), min_size=1, max_size=60),
    flushes=st.sets(st.integers(0, 59)),
)
def test_grants_conform_and_a_lost_script_changes_nothing(
    client: Redis, limit: Limit, thinks: list[int], flushes: set[int]
) -> None:
    client.flushall()
    lua, policy = LuaBuckets(client, 0), user_policy(limit)
    lua.now_us, times = EPOCH_US, []
    for at, think in enumerate(thinks):
        lua.now_us += think * limit.emission_us // 1_000
        if at in flushes:
            client.script_flush()
        wait_us, _, _ = lua.decide(one(policy)).numbers
        if wait_us == 0:
            times.append(lua.now_us)
            continue
        if limit.blocks:
            continue
        lua.now_us += wait_us - 1
        assert lua.decide(one(policy)).numbers[0] == 1
        lua.now_us += 1
        assert lua.decide(one(policy)).numbers[0] == 0
        times.append(lua.now_us)
    assert excess_us(times, limit.emission_us) <= limit.tolerance_us


@pytest.mark.parametrize("text", ["1/day", "25000/s burst 1", "25000/s", "7/min", "0.3/s burst 3", "1/day burst 3652"])
def test_a_burst_is_given_whole_and_the_rate_from_then_on(client: Redis, text: str) -> None:
    limit = Limit.parse(text)
    lua, policy = LuaBuckets(client, 0), user_policy(limit)
    lua.now_us = EPOCH_US
    for start in range(0, limit.burst, 1_000):
        count = min(1_000, limit.burst - start)
        assert set(lua.decide(one(policy) * count).numbers[::3]) == {0}
    for _ in range(5):
        assert lua.decide(one(policy)).numbers[0] == limit.emission_us
        lua.now_us += limit.emission_us
        assert lua.decide(one(policy)).numbers[0] == 0


def test_idle_time_is_paid_out_once(client: Redis) -> None:
    lua, policy = LuaBuckets(client, 0), user_policy(Limit(1_000_000, 5))
    lua.now_us = EPOCH_US
    for _ in range(3):
        assert lua.decide(one(policy) * 10).numbers[::3].count(0) == 5
        lua.now_us += 60_000_000


@pytest.mark.parametrize("step_us", [-86_400_000_000, -3_600_000_000, -1_000_000])
def test_a_clock_set_back_silences_nobody_for_long_and_mints_little(client: Redis, step_us: int) -> None:
    debt = 4
    limit = Limit(500_000, 10)
    lua, policy = LuaBuckets(client, debt), user_policy(limit)
    lua.now_us = EPOCH_US
    assert lua.decide(one(policy) * 20).numbers[::3].count(0) == 10
    lua.now_us += step_us
    longest_us = limit.emission_us * (debt + 1)
    asked_us = 0
    while (wait_us := lua.decide(one(policy)).numbers[0]) > 0:
        assert wait_us <= longest_us
        step = min(wait_us, 100_000)  # polling must not keep it away
        lua.now_us += step
        asked_us += step
        assert asked_us <= longest_us
    assert lua.decide(one(policy) * 20).numbers[::3].count(0) <= 1


def test_a_clock_set_forward_grants_one_burst_more(client: Redis) -> None:
    lua, policy = LuaBuckets(client, 4), user_policy(Limit(500_000, 10))
    lua.now_us = EPOCH_US
    assert lua.decide(one(policy) * 20).numbers[::3].count(0) == 10
    lua.now_us += 86_400_000_000
    assert lua.decide(one(policy) * 20).numbers[::3].count(0) == 10


def test_a_flush_of_the_server_costs_one_burst_at_most(client: Redis) -> None:
    lua, policy = LuaBuckets(client, 4), user_policy(Limit(3_600_000_000, 10))
    lua.now_us = EPOCH_US
    granted = 0
    for _ in range(2):
        granted += lua.decide(one(policy) * 50).numbers[::3].count(0)
        client.flushall()
    assert granted == 20


@few
@given(
    steps=st.lists(st.tuples(st.integers(0, 1), st.integers(0, 2_000_000)), min_size=1, max_size=80),
    old=limits(off=False),
    new=limits(off=False),
)
def test_old_and_new_settings_at_once_grant_what_the_larger_would(
    client: Redis, steps: list[tuple[int, int]], old: Limit, new: Limit
) -> None:
    """Unless the old burst takes longer to refill than new burst and debt: then the new settings forgive the old."""
    debt = 4
    for one_limit, other in ((old, new), (new, old)):
        assume(one_limit.tolerance_us <= other.emission_us * (other.burst + debt))
    client.flushall()
    lua = LuaBuckets(client, debt)
    lua.now_us, times = EPOCH_US, []
    for which, think_us in steps:
        lua.now_us += think_us
        if lua.decide(one(user_policy((old, new)[which]))).numbers[0] == 0:
            times.append(lua.now_us)
    assert excess_us(times, min(old.emission_us, new.emission_us)) <= max(old.tolerance_us, new.tolerance_us)


def test_a_cut_limit_silences_nobody_for_longer_than_burst_and_debt(client: Redis) -> None:
    lua = LuaBuckets(client, 4)
    lua.now_us = EPOCH_US
    generous, mean = user_policy(Limit(86_400_000_000, 100)), user_policy(Limit(500_000, 10))
    assert set(lua.decide(one(generous) * 100).numbers[::3]) == {0}
    wait_us = lua.decide(one(mean)).numbers[0]
    assert 0 < wait_us <= 500_000 * 5
    lua.now_us += wait_us // 2
    lua.decide(one(mean))  # asking in between does not prolong it
    lua.now_us += wait_us - wait_us // 2
    assert lua.decide(one(mean)).numbers[0] == 0


@few
@given(
    quota=st.integers(1, 8),
    emission_us=st.sampled_from([1_000, 61_000_000]),
    thinks=st.lists(st.integers(0, 4_000), min_size=1, max_size=80),
)
def test_a_quota_is_exceeded_in_no_window_and_frees_itself_in_time(
    client: Redis, quota: int, emission_us: int, thinks: list[int]
) -> None:
    client.flushall()
    limit = Limit(emission_us, quota)
    lua, policy = LuaBuckets(client, 0), user_policy(Limit(0, 1), limit)
    lua.now_us, times = EPOCH_US, []
    for think in thinks:
        lua.now_us += think * limit.tolerance_us // 1_000
        wait_us, flags, _ = lua.decide(one(policy)).numbers
        if wait_us:
            assert flags >> 1 == 3
            assert wait_us <= limit.tolerance_us * 62 // 60 + 120
            lua.now_us += wait_us
            assert lua.decide(one(policy)).numbers[0] == 0
        times.append(lua.now_us)
    for at, time_us in enumerate(times[quota:]):
        assert time_us - times[at] >= limit.tolerance_us  # the window may hold one end, not both


def test_a_repeated_charge_counts_once(client: Redis) -> None:
    lua, policy = LuaBuckets(client, 100), user_policy(Limit(86_400_000_000, 10))
    lua.now_us = EPOCH_US
    for _ in range(3):
        lua.decide([(policy, "a", 3 * ONE + LOAN)], 1, 7, "p")
    lua.decide([(policy, "a", 2 * ONE + LOAN)], 1, 7, "q")
    assert lua.decide(one(policy) * 20).numbers[::3].count(0) == 5


def test_without_its_seq_a_repeated_charge_would_count_again(client: Redis) -> None:
    text = script("token_bucket").text
    broken = text.replace("charging = seq > tonumber(redis.call('GET', KEYS[1]) or '0')", "charging = true")
    assert broken != text
    lua, policy = LuaBuckets(client, 100, broken), user_policy(Limit(86_400_000_000, 10))
    lua.now_us = EPOCH_US
    for _ in range(3):
        lua.decide([(policy, "a", 3 * ONE + LOAN)], 1, 7, "p")
    assert lua.decide(one(policy) * 20).numbers[::3].count(0) == 1


def test_a_denial_writes_nothing(client: Redis) -> None:
    lua, policy = LuaBuckets(client, 0), user_policy(Limit(86_400_000_000, 1), Limit(1_000_000, 1))
    lua.now_us = EPOCH_US
    lua.decide(one(policy))

    def everything() -> dict[Any, Any]:
        return {key: client.dump(key) for key in client.keys("notifier*")}

    before = everything()
    assert lua.decide(one(policy) * 5).numbers[0] > 0
    assert everything() == before


def test_no_script_runs_for_long(client: Redis) -> None:
    """A thousand of everything in one call: each script's time on the server is far below that of a long one."""
    channel = ChannelPolicy("websocket", Limit(40, 25_000), 99)
    policy = Policy("websocket", None, Limit(1_000_000, 5), Limit(60_000_000, 50), channel, True)
    shared = SharedBuckets(Connections(client), script("token_bucket"), "p", 256)
    client.config_set("slowlog-log-slower-than", 0)
    longest_us = []
    for _ in range(5):
        client.slowlog_reset()
        shared.decide([(policy, f"user-{n % 700}", ONE + n % 3) for n in range(1_000)])
        longest_us.append(max(entry["duration"] for entry in client.slowlog_get(20)))
    client.config_set("slowlog-log-slower-than", 10_000)
    assert min(longest_us) < 20_000  # the aim is 5 ms; the machine runs other things too


def refunds(client: Redis, text: str) -> Script:
    assert text.count(TIME_LINE) == 1
    return Script(text.replace(TIME_LINE, OURS.replace("'PEXPIRE'", "'PEXPIRE' or command == 'EXPIRE'")))


def taken_back(client: Redis, limit: Limit, steps: list[tuple[int, bool, int]], text: str) -> list[int]:
    """Ask again and again; some tokens are given back later, as if the channel had denied. Returns real grants."""
    lua, policy = LuaBuckets(client, 0), user_policy(limit)
    refund = refunds(client, text)
    lua.now_us, times = EPOCH_US, []
    returns: list[tuple[int, int]] = []
    for think_ms, real, held_ms in steps:
        lua.now_us += think_ms * 1_000
        for due_us, granted_at_us in sorted(returns):
            if due_us <= lua.now_us:
                client.mset({"now:s": due_us // 1_000_000, "now:us": due_us % 1_000_000})
                refund.run(client, [policy.key("a")], [granted_at_us, limit.emission_us, 0])
        returns = [pair for pair in returns if pair[0] > lua.now_us]
        if lua.decide(one(policy)).numbers[0] == 0:
            if real:
                times.append(lua.now_us)
            else:
                returns.append((lua.now_us + held_ms * 1_000, lua.now_us))
    return times


@few
@given(
    limit=st.builds(Limit, st.sampled_from([10_000, 50_000]), st.integers(1, 5)),
    steps=st.lists(st.tuples(st.integers(0, 80), st.booleans(), st.integers(0, 60)), max_size=60),
)
def test_a_refund_lets_no_more_through(client: Redis, limit: Limit, steps: list[tuple[int, bool, int]]) -> None:
    client.flushall()
    times = taken_back(client, limit, steps, script("token_refund").text)
    assert excess_us(times, limit.emission_us) <= limit.tolerance_us


def test_a_refund_that_ignores_the_time_would_let_more_through(client: Redis) -> None:
    text = script("token_refund").text
    broken = text.replace("math.max(0, now - granted_at)", "0")
    assert broken != text
    steps = [(0, False, 10), (9, True, 0), (1, True, 0), (0, True, 0)]
    limit = Limit(10_000, 2)
    assert excess_us(taken_back(client, limit, steps, text), limit.emission_us) <= limit.tolerance_us
    client.flushall()
    assert excess_us(taken_back(client, limit, steps, broken), limit.emission_us) > limit.tolerance_us
