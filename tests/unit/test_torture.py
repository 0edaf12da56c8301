"""The pure parts of the torture: its plan comes from the seed, and its books find what they are there to find."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from notifier.lab import account, torture_sender
from notifier.lab.account import Frame
from notifier.lab.torture_account import Allowance, disorder, limit_excess
from notifier.lab.torture_plan import LOSE, REPEAT, Fault, plan
from notifier.limit import Limit
from notifier.notification import Identity

PROCESSES, SERVERS = ["worker-1", "worker-2", "beat", "gateway"], ["state", "limiter", "postgres", "rabbitmq"]
S = 1_000_000


def a_plan(seed: int, seconds: float = 600.0) -> list[Fault]:
    return plan(seed, seconds, PROCESSES, SERVERS, "rabbitmq")


def test_the_seed_makes_the_plan() -> None:
    assert a_plan(7) == a_plan(7)
    assert a_plan(7) != a_plan(8)


def test_a_long_plan_hurts_everything_in_every_way() -> None:
    done = {(fault.target.split("-")[0], fault.action) for fault in a_plan(1, 20_000)}
    assert {("worker", "kill"), ("worker", "kill a child of"), ("beat", "freeze"), ("gateway", "restart")} <= done
    for server in SERVERS:
        assert len({action for target, action in done if target == server}) == 6 + 2 * (server == "rabbitmq")


def test_no_target_is_hurt_twice_at_once() -> None:
    ends_s = dict.fromkeys([*PROCESSES, *SERVERS], 0.0)
    for fault in a_plan(2):
        assert fault.at_s >= ends_s[fault.target]
        if fault.action not in (REPEAT.action, LOSE.action):  # that does not hurt
            ends_s[fault.target] = fault.at_s + fault.for_s


LIMIT = Limit.parse("2/s burst 10")
BURST = [100 * S] * 10


def test_without_allowances_the_bound_is_that_of_the_calm() -> None:
    moments = [*BURST, 100 * S, 101 * S, 105 * S]
    assert limit_excess(moments, LIMIT, 0) == account.limit_excess(moments, LIMIT, 0) == 1


@pytest.mark.parametrize(
    ("from_s", "to_s", "excess"), [(90, 95, 3), (90, 100, 1), (100, 100, 1), (101, 110, 3), (99, 110, 1)]
)
def test_an_allowance_counts_for_windows_that_it_touches(from_s: int, to_s: int, excess: float) -> None:
    assert limit_excess([*BURST, *[100 * S] * 3], LIMIT, 0, [Allowance(from_s * S, to_s * S, 2)]) == excess


def test_an_allowance_is_not_spent_twice() -> None:
    """Each window for itself is within it; the one over both is not."""
    outage = Allowance(100 * S, 101 * S, 4)
    assert limit_excess([*BURST, *[100 * S] * 2, *[101 * S] * 4], LIMIT, 0, [outage]) == 0
    assert limit_excess([*BURST, *[100 * S] * 4, *[101 * S] * 4], LIMIT, 0, [outage]) == 2


def frame(seq: int, accepted_us: int) -> Frame:
    return Frame(Identity("anna", "websocket", f"n{seq}"), seq, accepted_us, 0, "x", 0.0)


def test_critical_ones_may_overtake_and_parked_ones_hold_nobody_back() -> None:
    frames = [frame(2, 20), frame(1, 10)]
    waiting = {1: 15}
    assert disorder(frames, waiting, set(), set()) == 1
    assert disorder(frames, waiting, {frames[0].identity}, set()) == 0
    assert disorder(frames[:1], waiting, set(), {1}) == 0


def test_lists_are_read_each_identity_once(tmp_path: Path) -> None:
    lines = [["anna", "websocket", "a", {"n": 1}, False, 1.0], ["anna", "websocket", "b", {"n": 2}, True, 2.0]]
    (tmp_path / "one").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "two").write_text(json.dumps(lines[0]) + "\n")
    sent, critical = torture_sender.read([tmp_path / "one", tmp_path / "two"])
    assert [s.identity.notification_id for s in sent] == ["a", "b"]
    assert critical == {sent[1].identity}
