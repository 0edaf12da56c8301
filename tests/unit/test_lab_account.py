"""The oracles of demo and torture: each finds what it is there to find, and nothing else."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from notifier.lab import account
from notifier.lab.account import Frame, Sent
from notifier.limit import Limit
from notifier.notification import Identity


def sent(number: int, payload: object = "x", user: str = "anna", at_s: float = 0.0) -> Sent:
    return Sent(Identity(user, "websocket", f"n{number}"), payload, at_s)


def frame(number: int, payload: object = "x", accepted_us: int = 0, granted_us: int = 0, at_s: float = 0.0) -> Frame:
    return Frame(Identity("anna", "websocket", f"n{number}"), number, accepted_us, granted_us, payload, at_s)


def test_lost_is_what_neither_arrived_nor_is_held() -> None:
    held = {sent(3).identity: "waiting", sent(4).identity: ""}
    assert account.lost([sent(1), sent(2), sent(3), sent(4)], [frame(1)], held) == [sent(2).identity, sent(4).identity]


def test_a_frame_with_another_payload_is_no_delivery() -> None:
    assert account.lost([sent(1, {"a": 1})], [frame(1, {"a": 2})], {}) == [sent(1).identity]


def test_duplicates_are_counted_beyond_the_first() -> None:
    assert account.duplicates([frame(1), frame(2), frame(1), frame(1)]) == 2


def test_overtaking_one_that_was_denied_before_is_disorder() -> None:
    frames = [frame(2, accepted_us=200), frame(1, accepted_us=10)]
    assert account.disorder(frames, {1: 100}) == 1
    assert account.disorder(frames[:1], {1: 100}) == 1, "the one that was overtaken still waits"


def test_two_in_the_queue_together_may_swap() -> None:
    frames = [frame(2, accepted_us=90), frame(1, accepted_us=10)]
    assert account.disorder(frames, {1: 100}) == 0
    assert account.disorder(frames, {}) == 0
    assert account.disorder([frame(1), frame(2, accepted_us=200)], {1: 100}) == 0


LIMIT = Limit.parse("2/s burst 3")


def test_the_limit_is_met_exactly() -> None:
    grants = [0, 0, 0, 500_000, 1_000_000]
    assert account.limit_excess(grants, LIMIT, 0) == 0
    assert account.limit_excess([*grants, 1_000_000], LIMIT, 0) == 1
    assert account.limit_excess([*grants, 1_000_000], LIMIT, 1) == 0


def test_an_idle_time_before_does_not_hide_a_burst() -> None:
    assert account.limit_excess([0, *[9_000_000_000] * 5], LIMIT, 0) == 2


@given(st.lists(st.integers(0, 5_000_000), max_size=12), st.integers(0, 3))
def test_one_pass_finds_the_worst_window(grants: list[int], loans: int) -> None:
    moments = sorted(grants)
    worst = max(
        (
            j - i + 1 - LIMIT.burst - (moments[j] - moments[i]) / LIMIT.emission_us - loans
            for i in range(len(moments))
            for j in range(i, len(moments))
        ),
        default=0.0,
    )
    assert abs(account.limit_excess(grants, LIMIT, loans) - max(0.0, worst)) < 1e-9


def test_without_a_limit_nothing_exceeds() -> None:
    assert account.limit_excess([0] * 100, Limit.parse("off"), 0) == 0


def test_latency_is_from_the_call_to_the_first_frame() -> None:
    frames = [frame(1, at_s=1.5), frame(1, at_s=9.0)]
    assert account.latencies_ms([sent(1, at_s=1.0), sent(2, at_s=1.0)], frames) == [500.0]


def test_percentiles() -> None:
    assert account.percentile([1, 2, 3, 4], 0.5) == 2
    assert account.percentile(list(range(1, 101)), 0.99) == 99
    assert account.percentile([], 0.99) == 0
