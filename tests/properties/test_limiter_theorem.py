"""grants(T) <= B + R*T + L in every window: the real core in simulated time, whatever is drawn. See docs/limits.md."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from notifier import Settings
from notifier.lab.simulate import Simulation
from notifier.lab.simulate_buckets import PureBuckets, excess_us
from notifier.limit import Limit
from notifier.limits.core import Batch, Core
from notifier.limits.policy import Policy
from notifier.limits.shared import LOAN, Answer, Entry
from notifier.limits.verdict import Verdict

many = hypothesis_settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))


class Drawn:
    """A network that loses, delays and reorders, from a seed."""

    def __init__(self, seed: int, loss: float, longest_us: int) -> None:
        self._random = random.Random(seed)
        self._loss, self._longest_us = loss, longest_us

    def latency_us(self) -> int:
        return self._random.randint(0, self._longest_us)

    def lost(self) -> bool:
        return self._random.random() < self._loss


class Log:
    """Who was granted when."""

    def __init__(self) -> None:
        self.grants: dict[str, list[int]] = {}
        self.sources: dict[str, int] = {}
        self.denied: list[tuple[int, float]] = []

    def __call__(self, time_us: int, user_id: str, verdict: Verdict) -> None:
        if verdict.granted:
            self.grants.setdefault(user_id, []).append(time_us)
            self.sources[verdict.source] = self.sources.get(verdict.source, 0) + 1
        else:
            assert verdict.retry_after > 0
            self.denied.append((time_us, verdict.retry_after))


def settings_of(limit: Limit, *, local: str = "2/s burst 10", processes: int = 256, grace_s: float = 0.0) -> Settings:
    return Settings(
        user_limit=limit,
        local_bucket=Limit.parse(local),
        max_processes=processes,
        grace_seconds=grace_s,
        local_users=16,
    )


asks = st.lists(st.tuples(st.integers(0, 1_500_000), st.sampled_from("aab")), max_size=60)


@many
@given(
    emission_us=st.sampled_from([50_000, 400_000, 1_000_000]),
    burst=st.integers(1, 12),
    programs=st.lists(asks, min_size=1, max_size=5),
    crashes=st.lists(st.tuples(st.integers(0, 20_000_000), st.integers(0, 4)), max_size=3),
    seed=st.integers(0, 2**32),
    loss=st.sampled_from([0.0, 0.0, 0.1, 0.4]),
    longest_us=st.sampled_from([0, 1_000, 60_000, 400_000]),
    local=st.sampled_from(["off", "2/s burst 10", "1000/s burst 1000"]),
)
def test_no_window_holds_more_than_the_theorem_says(
    emission_us: int,
    burst: int,
    programs: list[list[tuple[int, str]]],
    crashes: list[tuple[int, int]],
    seed: int,
    loss: float,
    longest_us: int,
    local: str,
) -> None:
    limit = Limit(emission_us, burst)
    lenders = len(programs) + len(crashes)
    log = Log()
    # The debt that is remembered is exactly what can be lent: the theorem's condition, at its tightest.
    simulation = Simulation(
        settings_of(limit, local=local, processes=lenders), len(programs), log, network=Drawn(seed, loss, longest_us)
    )
    for index, program in enumerate(programs):
        time_us = 0
        for think_us, user_id in program:
            time_us += think_us
            simulation.ask_at(time_us, index, user_id)
    for time_us, index in crashes:
        simulation.crash_at(time_us, index % len(programs))
    simulation.run()
    lent = 0 if local == "off" else lenders
    for user_id, times_us in log.grants.items():
        assert excess_us(times_us, emission_us) <= limit.tolerance_us + lent * emission_us, user_id


@many
@given(
    programs=st.lists(asks, min_size=1, max_size=5),
    seed=st.integers(0, 2**32),
    loss=st.sampled_from([0.0, 0.2, 0.5]),
    grace_s=st.sampled_from([0.0, 1.0, 5.0]),
)
def test_grace_adds_what_the_processes_rates_allow(
    programs: list[list[tuple[int, str]]], seed: int, loss: float, grace_s: float
) -> None:
    limit = Limit(400_000, 4)
    log = Log()
    simulation = Simulation(
        settings_of(limit, local="2/s burst 50", processes=1_000, grace_s=grace_s),
        len(programs),
        log,
        network=Drawn(seed, loss, 20_000),
    )
    for index, program in enumerate(programs):
        time_us = 0
        for think_us, user_id in program:
            time_us += think_us
            simulation.ask_at(time_us, index, user_id)
    simulation.run()
    for times_us in log.grants.values():
        # outages follow each other, each with its own grace: at most all the time, at the rate of the local bucket
        span_us = max(times_us) - min(times_us)
        added = len(programs) * (1 + 2.0 * span_us / 1e6) if loss and grace_s else 0
        allowed = limit.burst + len(programs) + added
        assert excess_us(times_us, limit.emission_us) <= allowed * limit.emission_us


@many
@given(programs=st.lists(asks, min_size=1, max_size=5), seed=st.integers(0, 2**32), loss=st.sampled_from([0.0, 0.3]))
def test_every_grant_is_charged_exactly_once(programs: list[list[tuple[int, str]]], seed: int, loss: float) -> None:
    check_charges(programs, seed, loss, PureBuckets(1_000))


def check_charges(programs: Sequence[list[tuple[int, str]]], seed: int, loss: float, buckets: PureBuckets) -> None:
    log = Log()
    answered = 0

    class Counting(Core):
        def learn(self, batch: Batch | None, entries: list[Entry], *rest: Any) -> list[Verdict]:
            nonlocal answered
            verdicts = super().learn(batch, entries, *rest)
            answered += sum(verdict.granted for verdict in verdicts)
            return verdicts

    simulation = Simulation(
        settings_of(Limit(400_000, 4), processes=1_000, grace_s=60.0),
        len(programs),
        log,
        network=Drawn(seed, loss, 5_000),
        buckets=buckets,
        make_core=Counting,
    )
    for index, program in enumerate(programs):
        time_us = 0
        for think_us, user_id in program:
            time_us += think_us
            simulation.ask_at(time_us, index, user_id)
    simulation.run()
    assert not any(process.core.owes for process in simulation.processes)
    lent = log.sources.get("local", 0) + log.sources.get("grace", 0)
    unheard = 0 if loss == 0 else buckets.granted - answered  # granted there, but the reply was lost
    assert buckets.spent == lent + answered + unheard
    if loss == 0:
        assert buckets.spent == sum(len(times_us) for times_us in log.grants.values())


# -- that the tests would find it


def flood(
    processes: int = 8,
    seconds: int = 60,
    limit: Limit | None = None,
    every_us: int = 20_000,
    local: str = "2/s burst 10",
    buckets: PureBuckets | None = None,
    make_core: Any = Core,
) -> list[int]:
    """One user, asked for by every process all the time."""
    log = Log()
    simulation = Simulation(
        settings_of(limit or Limit(500_000, 10), local=local), processes, log, buckets=buckets, make_core=make_core
    )
    for index in range(processes):
        for at_us in range(index, seconds * 1_000_000, every_us):
            simulation.ask_at(at_us, index, "a")
    simulation.run()
    return log.grants["a"]


def is_exact(times_us: list[int], processes: int = 8) -> bool:
    return excess_us(times_us, 500_000) <= (10 + processes) * 500_000


def is_generous(times_us: list[int], seconds: int = 60) -> bool:
    return len(times_us) >= 10 + 0.98 * 2 * seconds


def test_a_flood_is_held_and_not_starved() -> None:
    assert is_exact(flood())
    assert is_generous(flood())


class NeverCharged(PureBuckets):
    """The article: what was granted locally is nobody's business."""

    def _decide(self, policy: Policy, user_id: str, kind: int, cost: int, charging: bool) -> tuple[int, int, int]:
        return super()._decide(policy, user_id, kind, cost, charging and kind != LOAN)


class ChargedTwice(PureBuckets):
    """A repeated batch counts again."""

    def decide(self, entries: Sequence[Entry], charges: int = 0, seq: int = 0, process: str = "") -> Answer:
        self._charged.clear()
        return super().decide(entries, charges, seq, process)


class ClientClocks(PureBuckets):
    """Every process brings its own time; some clocks run fast."""

    def decide(self, entries: Sequence[Entry], charges: int = 0, seq: int = 0, process: str = "") -> Answer:
        true_us = self.now_us
        self.now_us += self.now_us * (int(process[1:]) % 4)
        answer = super().decide(entries, charges, seq, process)
        self.now_us = true_us
        return answer


class Forgetful(Core):
    """A timer instead of a fresh reply: a debt counts as repaid when it would be, if nobody else had one."""

    def learn(self, batch: Batch | None, entries: list[Entry], answer: Answer, call: int, now: float) -> list[Verdict]:
        verdicts = super().learn(batch, entries, answer, call, now)
        for policy in self.policies.all():
            policy.known = {user: (k[0], k[1], k[2], k[0], k[4], k[5]) for user, k in policy.known.items()}
        return verdicts


class Reckless(Core):
    """Lends again before a loan is charged."""

    def lend(self, policy: Policy, user_id: str, now: float) -> Verdict | None:
        verdict = super().lend(policy, user_id, now)
        if verdict is None and self._bucket.take(now):
            policy.open[user_id] = policy.open.get(user_id, 0) + 1
            self._lenders[policy] = None
            return Verdict(True, 0.0, None, "local", 1)
        return verdict


RHYTHMS_US = [5_000, 37_000, 100_000, 900_000]  # within one charge, about as long, longer, and nearly no load


def floods_are_exact(buckets: type[PureBuckets] = PureBuckets, core: type[Core] = Core) -> bool:
    floods = (
        flood(every_us=rhythm, seconds=30, local="1000/s burst 1000", buckets=buckets(256), make_core=core)
        for rhythm in RHYTHMS_US
    )
    return all(is_exact(times_us) for times_us in floods)


def test_what_is_not_broken_is_not_found() -> None:
    assert floods_are_exact()


@pytest.mark.parametrize("broken", [NeverCharged, ClientClocks])
def test_broken_buckets_are_found(broken: type[PureBuckets]) -> None:
    assert not floods_are_exact(buckets=broken)


@pytest.mark.parametrize("broken", [Forgetful, Reckless])
def test_broken_cores_are_found(broken: type[Core]) -> None:
    assert not floods_are_exact(core=broken)


def test_charging_twice_is_found() -> None:
    programs = [[(100_000, "a")] * 40 for _ in range(4)]
    check_charges(programs, 7, 0.3, PureBuckets(1_000))
    with pytest.raises(AssertionError):
        check_charges(programs, 7, 0.3, ChargedTwice(1_000))


@pytest.mark.parametrize("processes", [1, 4, 16])
@pytest.mark.parametrize("limit", [Limit(500_000, 10), Limit(500_000, 1), Limit(50_000, 20)])
def test_under_steady_overload_the_rate_is_given(processes: int, limit: Limit) -> None:
    times_us = flood(processes, 25, limit, 2_000 * processes)
    for start_us in (10_000_000, 14_000_000):
        granted = sum(start_us <= time_us < start_us + 10_000_000 for time_us in times_us)
        ideal = 10_000_000 / limit.emission_us
        assert 0.98 * ideal - 1 <= granted <= ideal + 1


def test_after_a_floods_first_second_nobody_is_silent_for_longer_than_the_debt() -> None:
    processes, limit = 16, Limit(500_000, 10)
    times_us = [time_us for time_us in sorted(flood(processes, 60, limit, 10_000)) if time_us > 1_000_000]
    silences_us = [later - earlier for earlier, later in pairwise(times_us)]
    assert max(silences_us) <= (processes + 1) * limit.emission_us


def test_a_table_that_is_full_lends_to_no_stranger() -> None:
    """A thousand users in debt, a table of 16: what was forgotten is not taken for unknown."""
    log = Log()
    simulation = Simulation(settings_of(Limit(3_600_000_000, 1), local="1000/s burst 1000"), 1, log)
    for turn in range(3):
        for number in range(1_000):
            simulation.ask_at(turn * 10_000_000 + number * 1_000, 0, f"user-{number}")
            simulation.ask_at(turn * 10_000_000 + number * 1_000 + 300, 0, f"user-{number}")
    simulation.run()
    (process,) = simulation.processes
    assert process.core.users_known() <= 16
    assert len(process.policy.open) + len(process.policy.sent) <= 16
    assert max(len(times_us) for times_us in log.grants.values()) <= 2
