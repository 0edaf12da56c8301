"""The worker's side on real servers: every message ends, waits or has an owner."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import pytest
from redis import Redis

from notifier import channels
from notifier.channels import Delivery, Duplicate, Failed, Outcome, RetryAt, Sent
from notifier.deadletters.schema import Kept
from notifier.embedded.valkey import Valkey
from notifier.errors import DatabaseUnavailable
from notifier.ledger import Ledger
from notifier.licence import Counts
from notifier.limit import Limit
from notifier.notification import Notification
from notifier.redis.keys import done_key, user_key
from notifier.runtime import Runtime
from notifier.settings import Settings
from notifier.wire import Message
from tests.support import eventually, free_port

Make = Callable[..., Runtime]


@pytest.fixture
def make(settings: Settings) -> Iterator[Make]:
    made: list[Runtime] = []

    def runtime(**changes: object) -> Runtime:
        made.append(Runtime(settings.model_copy(update=changes), worker=True))
        return made[-1]

    yield runtime
    for each in made:
        each.close()


def sent(runtime: Runtime, *notifications: Notification) -> list[Message]:
    accepted = runtime.ledger.accept(notifications)
    return [
        Message(n, accepted_us=a.accepted_us, epoch=a.epoch)
        for n, a in zip(notifications, accepted, strict=True)
        if a.status == "queued"
    ]


def note(user: str = "anna", payload: object = "hello", **options: object) -> Notification:
    return Notification.create(user, payload, **options)  # type: ignore[arg-type]


def frames(runtime: Runtime, user: str = "anna") -> list[dict[str, object]]:
    entries = runtime.client.xrange(user_key("feed", user, "websocket"))
    return [json.loads(b"{" + fields[b"f"]) for _, fields in entries]  # type: ignore


def counts(runtime: Runtime) -> Counts:
    c = runtime.ledger.counts()
    assert (
        c.accepted
        == c.delivered + c.digested + c.expired + c.dropped + c.duplicate + c.parked + c.waiting + c.in_flight
    )
    return c


def test_a_burst_within_the_limit_goes_out_at_once_and_the_rest_waits(make: Make) -> None:
    runtime = make(user_limit=Limit.parse("1/min burst 5"), local_bucket=Limit.parse("off"))
    runtime.pipeline.handle(sent(runtime, *[note(payload=k) for k in range(8)]))
    assert [frame["payload"] for frame in frames(runtime)] == [0, 1, 2, 3, 4]
    assert (counts(runtime).delivered, counts(runtime).waiting) == (5, 3)
    runtime.replay.run()
    assert counts(runtime).deferred == 0
    assert counts(runtime).waiting == 3


def test_what_was_denied_goes_out_by_replay_in_order(make: Make) -> None:
    runtime = make(user_limit=Limit.parse("50/s burst 2"), local_bucket=Limit.parse("off"))
    runtime.pipeline.handle(sent(runtime, *[note(payload=k) for k in range(10)]))

    def drained() -> bool:
        runtime.replay.run()
        return counts(runtime).delivered == 10

    eventually(drained)
    assert [frame["payload"] for frame in frames(runtime)] == list(range(10))
    assert counts(runtime).replayed == 10 - 2


def test_granted_at_is_within_the_limit_in_every_window(make: Make) -> None:
    limit = Limit.parse("100/s burst 3")
    runtime = make(user_limit=limit, local_bucket=Limit.parse("off"))
    runtime.pipeline.handle(sent(runtime, *[note() for _ in range(30)]))

    def drained() -> bool:
        runtime.replay.run()
        return counts(runtime).delivered == 30

    eventually(drained)
    tat = 0.0
    for granted_s in sorted(float(str(frame["granted_at"])) for frame in frames(runtime)):
        tat = max(tat, granted_s) + limit.emission_us / 1e6
        assert tat - granted_s <= limit.tolerance_us / 1e6 + 1e-5


def test_a_limit_of_zero_parks(make: Make) -> None:
    runtime = make(user_limit=Limit.parse("0/s"))
    runtime.pipeline.handle(sent(runtime, note()))
    assert counts(runtime).parked == 1
    runtime.replay.run()
    assert counts(runtime).parked == 1


def test_the_policy_may_drop_what_is_denied(make: Make) -> None:
    runtime = make(user_limit=Limit.parse("1/day"), local_bucket=Limit.parse("off"), overflow="drop")
    runtime.pipeline.handle(sent(runtime, note(), note()))
    assert (counts(runtime).delivered, counts(runtime).dropped, counts(runtime).waiting) == (1, 1, 0)


def test_the_limiter_down_without_grace_defers_with_the_reason(make: Make) -> None:
    runtime = make(limiter_redis_url=f"redis://127.0.0.1:{free_port()}/0", grace_seconds=0.0)
    runtime.pipeline.handle(sent(runtime, note()))
    (item,) = runtime.ledger.peek_deferred(10)
    assert item.reason == "limiter_unavailable"
    assert counts(runtime).waiting == 1


def test_with_state_redis_down_the_worker_writes_the_row_and_the_replay_accepts_it(
    make: Make, fresh_valkey: Callable[..., Valkey]
) -> None:
    server = fresh_valkey()
    runtime = make(redis_url=server.url(), state_timeout=0.2)
    messages = sent(runtime, note(payload="one"), note("ben", "two"))
    server.kill()
    runtime.pipeline.handle(messages)
    assert len(runtime.store.missing([m.identity for m in messages])) == 0
    (row, _) = runtime.store.claim_these([m.identity for m in messages])
    assert row.expires_us == row.accepted_us + int(runtime.settings.default_ttl * 1e6)
    runtime.store.finish(kept=[Kept(m.identity, "limiter_unavailable", 1, 0, "") for m in messages])
    server.restart()

    def both() -> bool:
        runtime.replay.run()
        return bool(frames(runtime) and frames(runtime, "ben"))

    eventually(both)
    runtime.pipeline.handle(messages)  # the broker's copy comes late
    assert len(frames(runtime)) == 1
    assert counts(runtime).delivered == 2


def test_with_both_down_nobody_holds_it_and_the_caller_must_know(make: Make) -> None:
    nowhere = f"127.0.0.1:{free_port()}"
    runtime = make(redis_url=f"redis://{nowhere}/0", database_url=f"postgresql+psycopg2://u@{nowhere}/d")
    with pytest.raises(DatabaseUnavailable):
        runtime.pipeline.handle([Message(note())])


def test_a_worker_that_freezes_after_its_grant_asks_again(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = make()
    messages = sent(runtime, note())
    real, asked = Ledger.deliver, []

    def frozen_once(ledger: Ledger, batch: Sequence[Message], grants: Sequence[object]) -> object:
        asked.append(grants)
        if len(asked) == 1:  # as if three seconds had passed between grant and delivery
            grants = [g._replace(deadline_us=ledger.now_us() - 1_000_000) for g in grants]  # type: ignore[attr-defined]
        return real(ledger, batch, grants)  # type: ignore[arg-type]

    monkeypatch.setattr(Ledger, "deliver", frozen_once)
    runtime.pipeline.handle(messages)
    assert len(asked) == 2
    assert len(frames(runtime)) == 1


def test_poison_comes_back_five_times_and_parks(make: Make) -> None:
    runtime = make(user_limit=Limit.parse("1/day"), local_bucket=Limit.parse("off"))
    (message,) = sent(runtime, note())
    again = replace(message, again=True)
    assert [runtime.ledger.begin([again])[0].code for _ in range(4)] == ["go"] * 4
    runtime.pipeline.handle([again])
    assert counts(runtime).parked == 1
    assert not frames(runtime)


def test_a_redelivery_to_a_channel_outside_counts_one_start(make: Make, scripted: Callable[..., Scripted]) -> None:
    runtime = make()
    channel = scripted(*[KeyboardInterrupt()] * 9)  # the process dies while the channel is called
    channel.lease_s = 0.001
    (message,) = sent(runtime, note(channel="scripted"))
    while counts(runtime).parked == 0:
        lease_over_us = runtime.ledger.now_us() + 1_001
        with contextlib.suppress(KeyboardInterrupt):
            runtime.pipeline.handle([replace(message, again=bool(channel.keys))])
        eventually(partial(lambda over_us: runtime.ledger.now_us() > over_us, lease_over_us + 5_000))
    assert len(channel.keys) == 5


def test_an_outage_of_the_limiter_defers_also_where_overflow_is_dropped(make: Make) -> None:
    nowhere = f"redis://127.0.0.1:{free_port()}/0"
    runtime = make(limiter_redis_url=nowhere, grace_seconds=0.0, overflow="drop")
    runtime.pipeline.handle(sent(runtime, note()))
    assert (counts(runtime).waiting, counts(runtime).dropped) == (1, 0)


def test_a_message_sent_by_name_is_remembered_for_a_day(make: Make) -> None:
    runtime = make()
    message = Message(note(notification_id="n1"))
    runtime.pipeline.handle([message])
    ttl_ms = runtime.client.pttl(done_key(message.identity))
    assert int(str(ttl_ms)) > 86_400_000


class Scripted:
    """A channel that gives the outcomes it was told to give."""

    name = "scripted"
    lease_s = 15.0

    def __init__(self, *outcomes: Outcome | BaseException) -> None:
        self.outcomes, self.keys = list(outcomes), list[str]()

    def deliver(self, batch: Sequence[Delivery]) -> list[Outcome]:
        given: list[Outcome] = []
        for delivery in batch:
            self.keys.append(delivery.idempotency_key)
            outcome = self.outcomes.pop(0)
            if isinstance(outcome, BaseException):
                raise outcome
            given.append(outcome)
        return given


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Scripted]:
    def install(*outcomes: Outcome | BaseException) -> Scripted:
        channel = Scripted(*outcomes)
        monkeypatch.setattr(channels, "get", lambda _: channel)
        return channel

    return install


@pytest.mark.parametrize("outcome", [Sent(), Duplicate()])
def test_a_channel_outside_delivers(make: Make, scripted: Callable[..., Scripted], outcome: Outcome) -> None:
    runtime = make()
    channel = scripted(outcome)
    messages = sent(runtime, note(channel="scripted"))
    runtime.pipeline.handle(messages)
    runtime.pipeline.handle(messages)
    assert len(channel.keys) == 1
    assert counts(runtime).delivered == 1


def test_a_permanent_error_parks_with_its_text(make: Make, scripted: Callable[..., Scripted]) -> None:
    runtime = make()
    scripted(Failed("410 gone"))
    runtime.pipeline.handle(sent(runtime, note(channel="scripted")))
    assert counts(runtime).parked == 1
    (item,) = runtime.ledger.peek_deferred(10)
    assert (item.error, item.parked) == ("410 gone", True)


@pytest.mark.parametrize("outcome", [RetryAt("503", wait_s=30.0), RuntimeError("secret")])
def test_a_passing_error_waits_its_backoff_and_keeps_its_key(
    make: Make, scripted: Callable[..., Scripted], outcome: Outcome | Exception
) -> None:
    runtime = make()
    scripted(outcome)
    (message,) = sent(runtime, note(channel="scripted"))
    runtime.pipeline.handle([message])
    (item,) = runtime.ledger.peek_deferred(10)
    assert (item.attempts, item.reason) == (1, "delivery_failed")
    assert "secret" not in item.error
    asked_s = 30.0 if isinstance(outcome, RetryAt) else 0.0
    assert item.retry_at_us > runtime.ledger.now_us() + (asked_s - 20) * 1e6


def test_an_unknown_channel_parks(make: Make) -> None:
    runtime = make()
    runtime.pipeline.handle(sent(runtime, note(channel="pigeon")))
    assert counts(runtime).parked == 1


def test_nothing_is_connected_before_its_first_use(settings: Settings) -> None:
    nowhere = f"redis://127.0.0.1:{free_port()}/0"
    runtime = Runtime(settings.model_copy(update={"redis_url": nowhere, "limiter_redis_url": nowhere}))
    assert runtime.pipeline is not None
    assert runtime.replay is not None
    runtime.close()


def test_the_console_prints_one_line(make: Make, capsys: pytest.CaptureFixture[str], client: Redis) -> None:
    runtime = make()
    runtime.pipeline.handle(sent(runtime, note(channel="console", payload={"a": 1}, notification_id="n1")))
    assert json.loads(capsys.readouterr().out) == {"user_id": "anna", "notification_id": "n1", "payload": {"a": 1}}


@pytest.fixture
def client(valkey: Valkey) -> Iterator[Redis]:
    with Redis.from_url(valkey.url()) as made:
        yield made
