"""A channel's answer is not trusted: whatever it gives, the batch has outcomes."""

from __future__ import annotations

import math
from asyncio import CancelledError
from typing import Any

import pytest
from celery.exceptions import WorkerShutdown, WorkerTerminate

from notifier.channels import Delivery, Duplicate, Failed, RetryAt, Sent
from notifier.channels.attempts import attempt, backoff_s
from notifier.channels.breaker import FAILURES, Breakers, breakers
from notifier.errors import MAX_ERROR
from notifier.notification import MAX_SPAN_S, Notification


class Odd:
    """Gives what it was told to give."""

    lease_s = 15.0
    has_own_breakers = False

    def __init__(self, name: str, answer: Any) -> None:
        self.name, self._answer = name, answer

    def deliver(self, batch: Any) -> Any:
        return self._answer


@pytest.mark.parametrize("answer", [None, 7, [None, Sent()], ["sent", "sent"], [Sent()], [Sent, Sent]])
def test_an_answer_that_is_none_is_tried_again(answer: Any) -> None:
    deliveries = [Delivery(Notification("anna", "1", f"n{k}"), 0, 0, 1) for k in range(2)]
    outcomes = attempt(Odd(f"odd-{answer!r}", answer), deliveries)
    assert [type(outcome) for outcome in outcomes] == [RetryAt, RetryAt]


@pytest.mark.parametrize("odd", [None, b"\xff", {1: 2}, "\0", "\ud800", "x" * 70_000, math.nan, 10**400, "", 5.0])
def test_what_an_outcome_says_can_be_kept(odd: Any) -> None:
    deliveries = [Delivery(Notification("anna", "1", f"n{k}"), 0, 0, 1) for k in range(4)]
    given = [Sent(), Failed(odd), RetryAt(odd, odd), Duplicate()]
    first, failed, again, last = attempt(Odd(f"says-{odd!r:.20}", given), deliveries)
    assert (first, last) == (Sent(), Duplicate())
    assert isinstance(failed, Failed) and isinstance(again, RetryAt)
    for error in (failed.error, again.error):
        assert "\0" not in error and len(error) <= MAX_ERROR
        error.encode()
    assert backoff_s(1, again.wait_s) > 0


class Raising(Odd):
    """Raises its answer."""

    def deliver(self, batch: Any) -> Any:
        raise self._answer


@pytest.mark.parametrize("error", [ConnectionError("x"), CancelledError(), BaseException("x")])
def test_whatever_a_channel_raises_is_tried_again(error: BaseException) -> None:
    deliveries = [Delivery(Notification("anna", "1", f"n{k}"), 0, 0, 1) for k in range(2)]
    assert attempt(Raising(f"raises-{error!r}", error), deliveries) == [RetryAt(type(error).__name__)] * 2


@pytest.mark.parametrize("end", [KeyboardInterrupt, SystemExit, WorkerShutdown, WorkerTerminate])
def test_the_end_of_the_process_is_no_failure_of_a_channel(end: type[BaseException]) -> None:
    with pytest.raises(end):
        attempt(Raising("ended", end()), [Delivery(Notification("anna", "1", "n"), 0, 0, 1)])


def test_a_channel_cannot_change_its_batch() -> None:
    """Outcomes are told apart by their place: one who sorts the batch would have the wrong ones booked."""
    seen: list[Any] = []

    class Taking(Odd):
        def deliver(self, batch: Any) -> Any:
            seen.append(batch)
            return [Sent() for _ in batch]

    attempt(Taking("taking", None), [Delivery(Notification("anna", "1", "n"), 0, 0, 1)])
    assert isinstance(seen[0], tuple)


@pytest.mark.parametrize("own", [False, True])
def test_a_channel_with_breakers_of_its_own_is_called_however_often_it_fails(own: bool) -> None:
    channel = Odd(f"fails-{own}", [RetryAt("503")])
    channel.has_own_breakers = own
    for _ in range(FAILURES):
        attempt(channel, [Delivery(Notification("anna", "1", "n"), 0, 0, 1)])
    assert (breakers.wait_s(channel.name) == 0) == own


def test_breakers_remember_a_bounded_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("notifier.channels.breaker.REMEMBERED", 3)
    many = Breakers(lambda: 0.0)
    for name in ("a", "b", "c", "a", "d"):
        for _ in range(FAILURES):
            many.record(name, [RetryAt("503")])
    assert [name for name in "abcd" if many.wait_s(name)] == ["a", "c", "d"]  # b failed longest ago


@pytest.mark.parametrize(("asked_s", "kept_s"), [(math.inf, 0), (math.nan, 0), (-5, 0), (30, 30), (1e18, MAX_SPAN_S)])
def test_what_a_channel_asks_for_is_bounded(asked_s: float, kept_s: float) -> None:
    assert backoff_s(1, asked_s, uniform=lambda _low, _high: 0.0) == kept_s
