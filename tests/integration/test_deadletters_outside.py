"""Rows of channels outside: outcomes, backoff, digests, the breaker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta

import pytest

from notifier import channels
from notifier.channels import Delivery, Duplicate, Failed, Outcome, RetryAt, Sent
from notifier.channels.breaker import FAILURES, FIRST_OPEN_S, Breakers
from notifier.deadletters.crowd import Crowd
from notifier.deadletters.replay import Replay
from tests.deadletters import Bench, MakeBench


class Sms:
    """A plugin as a team would write it; `answer` decides."""

    name = "sms"
    lease_s = 5.0

    def __init__(self) -> None:
        self.calls: list[list[Delivery]] = []
        self.answer: Callable[[Delivery], Outcome] = lambda _: Sent()

    def deliver(self, batch: Sequence[Delivery]) -> list[Outcome]:
        self.calls.append(list(batch))
        return [self.answer(delivery) for delivery in batch]


@pytest.fixture
def sms(monkeypatch: pytest.MonkeyPatch) -> Sms:
    channel = Sms()
    monkeypatch.setattr(channels, "get", lambda _: channel)
    monkeypatch.setattr("notifier.channels.attempts.breakers", fresh := Breakers())
    monkeypatch.setattr("notifier.deadletters.claimed.breakers", fresh)
    return channel


def state_of(bench: Bench) -> list[tuple[str, str, int, str]]:
    rows = bench.sql("SELECT state, reason, attempts, last_error FROM dead_letters ORDER BY seq")
    return [tuple(row) for row in rows]


@pytest.mark.parametrize("outcome", [Sent(), Duplicate()])
def test_what_the_other_side_has_is_delivered(make_bench: MakeBench, sms: Sms, outcome: Outcome) -> None:
    sms.answer = lambda _: outcome
    bench = make_bench(user_limit="off")
    bench.deny("anna", 3, channel="sms")
    bench.replay.run()
    assert [d.notification.body for d in sms.calls[0]] == ['{"n":0}', '{"n":1}', '{"n":2}']
    assert len({d.idempotency_key for d in sms.calls[0]}) == 3
    assert bench.ledger.counts().delivered == 3
    assert bench.store.counts() == (0, 0)
    assert bench.balanced()


def test_a_refusal_for_good_parks_at_once(make_bench: MakeBench, sms: Sms) -> None:
    sms.answer = lambda _: Failed("no such number")
    bench = make_bench(user_limit="off")
    bench.deny("anna", 1, channel="sms")
    bench.replay.run()
    assert state_of(bench) == [("parked", "delivery_failed", 1, "no such number")]
    assert bench.ledger.counts().parked == 1


def test_not_now_is_tried_again_never_earlier_than_asked(make_bench: MakeBench, sms: Sms) -> None:
    sms.answer = lambda _: RetryAt("503", wait_s=120)
    bench = make_bench(user_limit="off")
    bench.deny("anna", 1, channel="sms")
    bench.replay.run()
    assert state_of(bench) == [("waiting", "delivery_failed", 1, "503")]
    ((wait_s,),) = bench.sql("SELECT extract(epoch FROM retry_at - now()) FROM dead_letters")
    assert 115 < wait_s < 125
    bench.make_due()
    bench.replay.run()
    assert [call[0].attempt for call in sms.calls] == [1, 2]
    assert state_of(bench)[0][2] == 2


def test_a_denial_is_no_attempt(make_bench: MakeBench, sms: Sms) -> None:
    bench = make_bench(user_limit="1/hour burst 1", local_bucket="off")
    bench.deny("anna", 3, channel="sms")
    bench.replay.run()
    for _ in range(3):
        bench.make_due()
        bench.replay.run()
    assert len(sms.calls) == 1
    assert [(state, attempts) for state, _, attempts, _ in state_of(bench)] == [("waiting", 0)] * 2


def test_a_claim_outlives_the_call_of_a_slow_channel(make_bench: MakeBench, sms: Sms) -> None:
    bench = make_bench(user_limit="off")
    held: list[float] = []

    def look(_: Delivery) -> Outcome:
        held.append(float(bench.sql("SELECT extract(epoch FROM claimed_until - now()) FROM dead_letters")[0][0]))
        return Sent()

    sms.lease_s, sms.answer = 60.0, look
    bench.deny("anna", 1, channel="sms")
    bench.replay.run()
    assert held[0] > 55


def test_a_slow_channel_leaves_the_rest_due_before_the_time_limit_of_its_task(
    make_bench: MakeBench, sms: Sms, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows still claimed when a task is cut off would count as starts, and be parked as poison in the end."""
    monkeypatch.setattr("notifier.deadletters.claimed.CALLS_S", 0.0)
    bench = make_bench(user_limit="off")
    bench.deny("anna", 250, channel="sms")
    bench.replay.spill()
    Replay(bench.store, bench.ledger, bench.limiter, bench.settings, budget_s=0.0).run()
    assert [len(call) for call in sms.calls] == [100]
    waiting = bench.sql("SELECT state, claimed_until, attempts, count(*) FROM dead_letters GROUP BY 1, 2, 3")
    assert [tuple(row) for row in waiting] == [("waiting", None, 0, 150)]
    monkeypatch.setattr("notifier.deadletters.claimed.CALLS_S", 60.0)
    bench.replay.run()
    assert bench.ledger.counts().delivered == 250


def test_after_a_slow_call_no_other_is_begun_within_the_same_task(
    make_bench: MakeBench, sms: Sms, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What its time limit cuts off may have been taken, and would be sent again."""
    monkeypatch.setattr("notifier.deadletters.claimed.CALLS_S", 0.0)
    bench = make_bench(user_limit="off")
    bench.deny("anna", 1, channel="sms")
    bench.replay.spill()
    bench.store.claim(bench.ledger.now_us())
    bench.sql("UPDATE dead_letters SET claimed_until = now() - interval '1 s'")
    bench.deny("bert", 1, channel="sms")
    bench.deny("carl", 1)
    Replay(bench.store, bench.ledger, bench.limiter, bench.settings, budget_s=0.4).run()
    assert [d.notification.user_id for call in sms.calls for d in call] == ["anna"]
    assert len(bench.feed("carl")) == 1
    bench.replay.run()
    assert [d.notification.user_id for call in sms.calls for d in call] == ["anna", "bert"]
    assert bench.ledger.counts().delivered == 3
    assert bench.balanced()


def test_what_failed_does_not_hold_back_what_follows(make_bench: MakeBench, sms: Sms) -> None:
    sms.answer = lambda d: RetryAt("busy") if d.notification.body == '{"n":0}' else Sent()
    bench = make_bench(user_limit="off")
    bench.deny("anna", 3, channel="sms")
    bench.replay.run()
    assert bench.ledger.counts().delivered == 2


def test_an_exception_keeps_its_type_and_no_text(make_bench: MakeBench, sms: Sms) -> None:
    def explode(delivery: Delivery) -> Outcome:
        raise ValueError(delivery.notification.body)

    sms.answer = explode
    bench = make_bench(user_limit="off")
    bench.deny("anna", 1, channel="sms")
    bench.replay.run()
    assert state_of(bench) == [("waiting", "delivery_failed", 1, "ValueError")]


def test_a_channel_that_is_gone_parks_and_says_so(make_bench: MakeBench) -> None:
    bench = make_bench(user_limit="off")
    bench.deny("anna", 1, channel="pigeon")
    bench.replay.run()
    ((state, _, _, error),) = state_of(bench)
    assert state == "parked"
    assert "pigeon" in error


def test_a_digest_outside_is_one_delivery_and_stays_the_same_when_tried_again(make_bench: MakeBench, sms: Sms) -> None:
    sms.answer = lambda _: RetryAt("timeout")
    bench = make_bench(user_limit="off")
    bench.deny("anna", 3, channel="sms", collapse_key="k")
    bench.replay.run()
    bench.deny("anna", 2, channel="sms", collapse_key="k")
    sms.answer = lambda _: Sent()
    bench.make_due()
    bench.replay.run()
    first, again = sms.calls[0][0], next(d for call in sms.calls[1:] for d in call if '"count":3' in d.digest)
    assert first.idempotency_key == again.idempotency_key
    assert first.digest == again.digest
    counts = bench.ledger.counts()
    assert (counts.delivered, counts.digested) == (2, 3)
    assert bench.store.counts() == (0, 0)
    assert bench.balanced()


@pytest.mark.parametrize("crowded", [False, True])
def test_what_was_tried_alone_carries_no_others(make_bench: MakeBench, sms: Sms, crowded: bool) -> None:
    """The other side may have it, and would take the digest for the same thing again: the others would be lost."""
    sms.answer = lambda _: RetryAt("timeout")
    bench = make_bench(user_limit="off")
    later = datetime.now(UTC) + timedelta(hours=1)
    bench.deny("anna", 2, channel="sms", collapse_key="k", not_before=later)
    bench.deny("anna", 1, channel="sms", collapse_key="k")
    bench.replay.run()
    (tried,) = sms.calls.pop()
    bench.sql("UPDATE dead_letters SET reason = 'rate_limited'")  # all due meanwhile, and denied
    bench.make_due()
    if crowded:
        crowd = Crowd(bench.store, bench.ledger, 1)
        assert [crowd.fold(group) for group in crowd._claim("anna", "sms")] == [1]
    sms.answer = lambda _: Sent()
    bench.replay.run()
    again = {d.idempotency_key: d for call in sms.calls for d in call}
    assert len(again) == 2
    assert again[tried.idempotency_key].digest == tried.digest == ""
    assert bench.balanced()


def test_a_channel_that_fails_altogether_is_left_alone_for_a_while(make_bench: MakeBench, sms: Sms) -> None:
    sms.answer = lambda _: RetryAt("503")
    bench = make_bench(user_limit="off")
    bench.deny("anna", 1, channel="sms")
    for _ in range(FAILURES + 3):
        bench.replay.run()
        bench.make_due()
    assert len(sms.calls) == FAILURES
    assert state_of(bench) == [("waiting", "breaker_open", FAILURES, "503")]


def test_a_breaker_opens_longer_each_time_and_closes_on_success() -> None:
    now_s = [0.0]
    breakers = Breakers(lambda: now_s[0])
    for _ in range(FAILURES - 1):
        breakers.record("sms", [RetryAt("503")])
    assert breakers.wait_s("sms") == 0
    breakers.record("sms", [RetryAt("503")])
    assert breakers.wait_s("sms") == FIRST_OPEN_S
    now_s[0] = FIRST_OPEN_S
    assert breakers.wait_s("sms") == 0
    breakers.record("sms", [RetryAt("503")])
    assert breakers.wait_s("sms") == 2 * FIRST_OPEN_S
    breakers.record("sms", [RetryAt("503"), Failed("never")])
    assert breakers.wait_s("sms") == 0
    assert breakers.wait_s("mail") == 0
