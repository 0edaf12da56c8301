"""LocalBucket on an injected clock."""

from __future__ import annotations

import threading

import pytest

from notifier import LocalBucket


class Clock:
    """A clock that is set by hand, in seconds."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_a_full_bucket_gives_its_capacity_and_then_its_rate() -> None:
    clock = Clock()
    bucket = LocalBucket(10, 2.0, clock)
    assert [bucket.consume() for _ in range(11)] == [True] * 10 + [False]
    clock.now_s += 0.5
    assert [bucket.consume() for _ in range(2)] == [True, False]


def test_asking_in_vain_does_not_slow_the_refill() -> None:
    clock = Clock()
    bucket = LocalBucket(1, 0.25, clock)
    assert bucket.consume()
    for _ in range(39):
        clock.now_s += 0.1
        assert not bucket.consume()
    clock.now_s += 0.11
    assert bucket.consume()


def test_time_spent_full_is_not_paid_out_later() -> None:
    clock = Clock()
    bucket = LocalBucket(5, 1.0, clock)
    clock.now_s += 60
    assert [bucket.consume() for _ in range(10)] == [True] * 5 + [False] * 5


def test_a_clock_that_steps_back_mints_nothing() -> None:
    clock = Clock()
    bucket = LocalBucket(5, 1.0, clock)
    assert all(bucket.consume() for _ in range(5))
    clock.now_s -= 50
    assert not bucket.consume()
    clock.now_s += 50
    assert not bucket.consume()


def test_more_than_the_capacity_is_never_there() -> None:
    clock = Clock()
    bucket = LocalBucket(5, 1.0, clock)
    clock.now_s += 1000
    assert not bucket.consume(6)
    assert bucket.consume(5)


@pytest.mark.parametrize("capacity", [0, -1, float("nan"), float("inf")])
def test_a_capacity_that_cannot_be_is_refused(capacity: float) -> None:
    with pytest.raises(ValueError, match="capacity"):
        LocalBucket(capacity, 1.0)


@pytest.mark.parametrize("fill_rate", [-1.0, float("nan"), float("inf")])
def test_a_rate_that_cannot_be_is_refused(fill_rate: float) -> None:
    with pytest.raises(ValueError, match="fill_rate"):
        LocalBucket(1, fill_rate)


@pytest.mark.parametrize("tokens", [0, -1, float("nan"), float("inf")])
def test_tokens_that_cannot_be_are_refused(tokens: float) -> None:
    with pytest.raises(ValueError, match="tokens"):
        LocalBucket(1, 1.0).consume(tokens)


def test_threads_together_take_what_is_there_and_no_more() -> None:
    bucket = LocalBucket(1_000, 0.0)
    taken: list[bool] = []

    def take() -> None:
        taken.extend(bucket.consume() for _ in range(500))

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(taken) == 1_000
