"""Processes that die at an exact point, between any two steps of the protocol: each identity still ends once.

A forked child does the work and is killed there; then the broker hands the message out again, the sweep runs, or the
next replayer comes when the claim has run out.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from notifier import producer, runtime
from notifier.deadletters.store import Store
from notifier.ledger import Ledger
from notifier.limit import Limit
from notifier.notification import Notification, Priority
from notifier.runtime import Runtime
from notifier.settings import Settings
from notifier.wire import Message
from tests.deadletters import Bench, MakeBench

BEFORE, AFTER = "before", "after"
When = tuple[type, str, str, int]  # class, method, before or after it, at which call


def die_at(owner: type, method: str, when: str, call: int) -> None:
    """From now on this process is killed at that call of that method."""
    real, calls = getattr(owner, method), [0]

    def dying(*args: Any, **kwargs: Any) -> Any:
        calls[0] += 1
        if calls[0] == call and when == BEFORE:
            os.kill(os.getpid(), signal.SIGKILL)
        result = real(*args, **kwargs)
        if calls[0] == call and when == AFTER:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, method, dying)


def in_a_child(work: Callable[[], object], dies: When) -> None:
    """Run `work` in a forked child that is killed at that point; it is an error if it gets further."""
    pid = os.fork()
    if pid == 0:
        try:
            die_at(*dies)
            work()
        finally:
            os._exit(0)
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status), "it never came to the point where it should have died"


def published(bench: Bench, notifications: Sequence[Notification]) -> list[Message]:
    return [
        Message(n, accepted_us=a.accepted_us, epoch=a.epoch)
        for n, a in zip(notifications, bench.ledger.accept(notifications), strict=True)
        if a.status == "queued"
    ]


def recover(bench: Bench, messages: Sequence[Message]) -> None:
    """What the broker and beat do in the seconds after, without the waiting."""
    with closing(Runtime(bench.settings, worker=True)) as worker:
        for _ in range(20):
            for message in messages:
                worker.pipeline.handle([replace(message, again=True)])
            bench.sql("UPDATE dead_letters SET claimed_until = now() - interval '1 s' WHERE claimed_until IS NOT NULL")
            bench.replay.spill()
            bench.make_due()
            bench.replay.run()
            counts = bench.ledger.counts()
            if not (counts.waiting or counts.in_flight or counts.deferred):
                return
    raise AssertionError(f"it does not come to rest: {bench.ledger.counts()}")


def check(bench: Bench, notifications: Sequence[Notification]) -> None:
    """Each once, in the books as in the feed, and nothing left behind."""
    frames = [frame["notification_id"] for frame in bench.feed("anna")]
    assert sorted(frames) == sorted(n.notification_id for n in notifications)
    counts = bench.ledger.counts()
    assert (counts.accepted, counts.delivered) == (len(notifications), len(notifications))
    assert bench.balanced()
    assert bench.sql("SELECT count(*) FROM dead_letters")[0][0] == 0
    assert not bench.client.keys("*waiting:*")
    assert not bench.client.keys("*bodies*")


@pytest.fixture
def bench(make_bench: MakeBench) -> Bench:
    """A burst of two, then a token a millisecond; nothing is lent, so that denials are certain."""
    return make_bench(user_limit=Limit.parse("1000/s burst 2"), local_bucket=Limit.parse("off"))


def notes(count: int = 6, **options: Any) -> list[Notification]:
    return [Notification.create("anna", {"n": n}, **options) for n in range(count)]


@pytest.mark.parametrize(
    "dies",
    [
        (Ledger, "deliver", BEFORE, 1),  # between grant and delivery
        (Ledger, "deliver", AFTER, 1),  # between delivery and ack
        (Ledger, "deny", BEFORE, 1),
        (Ledger, "deny", AFTER, 1),  # between deny and ack
    ],
    ids=lambda dies: f"{dies[2]} {dies[1]}",
)
def test_a_worker_dies(bench: Bench, dies: When) -> None:
    """celery/celery#3541: whatever it had done, the message comes again."""
    sent = notes()
    messages = published(bench, sent)
    in_a_child(lambda: Runtime(bench.settings, worker=True).pipeline.handle(messages), dies)
    recover(bench, messages)
    check(bench, sent)


@pytest.mark.parametrize(
    "dies",
    [
        (Ledger, "peek_deferred", AFTER, 1),
        (Store, "insert", AFTER, 1),  # between the commit and its settlement: D, and a row
        (Ledger, "settle_deferred", AFTER, 1),
        (Store, "claim", AFTER, 1),
        (Ledger, "deliver_digests", BEFORE, 1),
        (Ledger, "deliver_digests", AFTER, 1),  # between delivery and DELETE
        (Store, "finish", BEFORE, 1),
        (Store, "finish", AFTER, 1),
    ],
    ids=lambda dies: f"{dies[2]} {dies[1]}",
)
def test_a_replayer_dies(bench: Bench, dies: When) -> None:
    """laravel/ideas#1364: delivery and DELETE are two systems; the licence decides what still counts."""
    sent = notes()
    messages = published(bench, sent)
    bench.ledger.deny(messages, [_denial()] * len(messages))
    in_a_child(lambda: Bench(bench.settings).replay.run(), dies)
    recover(bench, messages)
    check(bench, sent)


@pytest.mark.parametrize(
    "dies",
    [(Ledger, "deliver_digests", BEFORE, 1), (Ledger, "deliver_digests", AFTER, 1), (Store, "finish", BEFORE, 1)],
    ids=lambda dies: f"{dies[2]} {dies[1]}",
)
def test_a_replayer_dies_with_a_digest(bench: Bench, dies: When) -> None:
    """Its members end together, or not at all: never half of it is sent again as another digest."""
    sent = notes(collapse_key="likes")
    messages = published(bench, sent)
    bench.ledger.deny(messages, [_denial()] * len(messages))
    in_a_child(lambda: Bench(bench.settings).replay.run(), dies)
    recover(bench, messages)
    (frame,) = bench.feed("anna")
    assert frame["notification_id"] == sent[-1].notification_id
    assert frame["digest"]["count"] == len(sent)
    counts = bench.ledger.counts()
    assert (counts.delivered, counts.digested) == (1, len(sent) - 1)
    assert bench.balanced()
    assert bench.sql("SELECT count(*) FROM dead_letters")[0][0] == 0


def test_a_producer_dies_between_accept_and_publish(bench: Bench) -> None:
    """The caller never heard of it, but it is accepted: the sweep publishes it."""
    sent = notes(1)

    def send() -> None:
        runtime.close()
        runtime.get(bench.settings)
        producer.accept_and_publish(_app(bench.settings), sent)

    in_a_child(send, (Ledger, "accept", AFTER, 1))
    counts = bench.ledger.counts()
    assert (counts.accepted, counts.in_flight) == (1, 1)
    found = bench.ledger.overdue(Priority.NORMAL, bench.ledger.now_us() + 1)
    assert [message.identity for message in found] == [sent[0].identity]
    recover(bench, found)
    check(bench, sent)


def test_a_replayer_frozen_past_its_claim_delivers_nothing(bench: Bench) -> None:
    """BasedHardware/omi#8396: another one has taken its rows meanwhile; awake again, it finds that they have ended."""
    sent = notes()
    messages = published(bench, sent)
    bench.ledger.deny(messages, [_denial()] * len(messages))
    pid = os.fork()
    if pid == 0:
        try:
            real = Store.claim

            def freezing(self: Store, *args: Any, **kwargs: Any) -> Any:
                Store.claim = real  # type: ignore[method-assign]
                rows = real(self, *args, **kwargs)
                os.kill(os.getpid(), signal.SIGSTOP)
                return rows

            Store.claim = freezing  # type: ignore[method-assign]
            Bench(bench.settings).replay.run()
        finally:
            os._exit(0)
    os.waitpid(pid, os.WUNTRACED)
    try:
        assert bench.sql("SELECT count(*) FROM dead_letters WHERE claimed_until > now()")[0][0] == len(sent)
        recover(bench, [])
        check(bench, sent)
    finally:
        os.kill(pid, signal.SIGCONT)
        os.waitpid(pid, 0)
    check(bench, sent)


def _denial() -> Any:
    from notifier.licence import Denial

    return Denial(0, 0, "rate_limited")


def _app(settings: Settings) -> Any:
    from celery import Celery

    return Celery("sender", broker=settings.broker_url, set_as_current=False)
