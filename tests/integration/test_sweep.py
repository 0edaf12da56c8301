"""The sweep on real servers: probes tell a loss from a backlog; reconciling tells an end that was lost."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import cast

import pytest

from notifier.embedded.valkey import Valkey
from notifier.licence import Denial
from notifier.notification import Identity, Notification, Priority
from notifier.redis.keys import PREFIX
from notifier.runtime import Runtime
from notifier.settings import Settings
from notifier.sweep import SETTLE_US, Sweep
from notifier.wire import Message

RATE_LIMITED = Denial(wait_us=3_600_000_000, interval_us=500_000, reason="rate_limited")


class Broker:
    """Notes what is published; a message is lost where a test does not hand it on."""

    def __init__(self) -> None:
        self.messages: list[tuple[Priority, Message]] = []
        self.probes: list[tuple[Priority, int]] = []

    def publish(self, messages: list[tuple[Priority, Message]]) -> None:
        self.messages += messages

    def send_probe(self, queue: Priority, published_us: int) -> None:
        self.probes.append((queue, published_us))


@pytest.fixture
def runtime(settings: Settings) -> Iterator[Runtime]:
    made = Runtime(settings, worker=True)
    yield made
    made.close()


def accept(runtime: Runtime, user: str = "anna") -> Message:
    n = Notification.create(user, "hello")
    (a,) = runtime.ledger.accept([n])
    return Message(n, accepted_us=a.accepted_us, epoch=a.epoch)


def run(sweep: Sweep, broker: Broker) -> int:
    return sweep.run(broker.publish, broker.send_probe)


def let_five_seconds_pass(runtime: Runtime) -> None:
    """The probes that have run did so long ago."""
    for queue in Priority:
        key = f"{PREFIX}passed:{queue}"
        for member in cast("list[bytes]", runtime.client.zrange(key, 0, -1)):
            runtime.client.zincrby(key, -SETTLE_US, member)


def probe_comes_back(runtime: Runtime, broker: Broker) -> None:
    for queue, published_us in broker.probes:
        runtime.sweep.probe_ran(queue, published_us)
    broker.probes.clear()


def test_one_probe_a_queue_travels_at_a_time(runtime: Runtime) -> None:
    broker = Broker()
    run(runtime.sweep, broker)
    run(runtime.sweep, broker)
    assert [queue for queue, _ in broker.probes] == [Priority.CRITICAL, Priority.NORMAL, Priority.BULK]
    probe_comes_back(runtime, broker)
    run(runtime.sweep, broker)
    assert len(broker.probes) == 3


def test_probe_again_when_one_does_not_come_back(runtime: Runtime) -> None:
    broker = Broker()
    run(runtime.sweep, broker)
    for queue in Priority:
        assert runtime.client.pttl(f"{PREFIX}probe:{queue}") > 0  # type: ignore[operator,unused-ignore]
        runtime.client.delete(f"{PREFIX}probe:{queue}")  # its ten seconds are over
    run(runtime.sweep, broker)
    assert len(broker.probes) == 6


def test_a_backlog_is_not_a_loss(runtime: Runtime) -> None:
    broker = Broker()
    accept(runtime)
    run(runtime.sweep, broker)
    let_five_seconds_pass(runtime)
    assert run(runtime.sweep, broker) == 0  # the probe waits behind the message: nothing is known


def test_what_was_published_before_a_probe_and_is_not_settled_is_published_again_once(runtime: Runtime) -> None:
    broker = Broker()
    lost, settled = accept(runtime), accept(runtime, "ben")
    runtime.ledger.deny([settled], [RATE_LIMITED])
    run(runtime.sweep, broker)
    later = accept(runtime, "carl")
    probe_comes_back(runtime, broker)
    assert run(runtime.sweep, broker) == 0  # it gets five seconds to be settled
    let_five_seconds_pass(runtime)
    assert run(runtime.sweep, broker) == 1
    ((queue, message),) = broker.messages
    assert (queue, message.identity, message.again) == (Priority.NORMAL, lost.identity, True)
    let_five_seconds_pass(runtime)
    assert run(runtime.sweep, broker) == 0
    runtime.pipeline.handle([message, later])
    assert runtime.ledger.counts().delivered == 2


def test_what_is_claimed_is_left_alone(runtime: Runtime) -> None:
    broker = Broker()
    runtime.ledger.begin([accept(runtime)], lease_us=60_000_000)
    run(runtime.sweep, broker)
    probe_comes_back(runtime, broker)
    let_five_seconds_pass(runtime)
    assert run(runtime.sweep, broker) == 0


def test_queue_age_comes_from_the_probes(runtime: Runtime) -> None:
    broker = Broker()
    assert set(runtime.sweep.queue_ages_s().values()) == {None}
    run(runtime.sweep, broker)
    for queue, published_us in broker.probes:
        runtime.sweep.probe_ran(queue, published_us - 7_000_000)
    assert all(7 <= age < 60 for age in runtime.sweep.queue_ages_s().values() if age is not None)


def held(runtime: Runtime, user: str) -> Identity:
    message = accept(runtime, user)
    runtime.ledger.deny([message], [RATE_LIMITED])
    runtime.replay.run()
    return message.identity


def test_reconcile_ends_what_has_no_row_after_a_restart(
    settings: Settings, fresh_valkey: Callable[..., Valkey]
) -> None:
    server = fresh_valkey(aof="always")
    runtime = Runtime(settings.model_copy(update={"redis_url": server.url()}), worker=True)
    try:
        assert runtime.sweep.reconcile() == 0  # gets to know server and database
        ended, waits = held(runtime, "anna"), held(runtime, "ben")
        runtime.store.finish(ended=[ended])  # its end was booked in a tail that Redis lost
        assert runtime.sweep.reconcile() == 0  # the same Redis: nothing is looked at
        server.restart()
        assert runtime.sweep.reconcile() == 1
        assert runtime.ledger.counts().dropped == 1
        assert runtime.store.missing([waits]) == []
        assert runtime.ledger.counts().waiting == 1
        assert runtime.sweep.reconcile() == 0
    finally:
        runtime.close()


def test_reconcile_refuses_a_database_that_is_not_the_one_it_was(
    settings: Settings,
    fresh_valkey: Callable[..., Valkey],
    new_database_url: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    from notifier.deadletters.migrate import upgrade

    upgrade(new_database_url)
    server = fresh_valkey(aof="always")
    mine = settings.model_copy(update={"redis_url": server.url()})
    runtime = Runtime(mine, worker=True)
    runtime.sweep.reconcile()
    held(runtime, "anna")
    server.restart()
    runtime.close()
    other = Runtime(mine.model_copy(update={"database_url": new_database_url}), worker=True)
    try:
        with caplog.at_level(logging.WARNING):
            assert other.sweep.reconcile() == 0
        assert "database_changed" in caplog.text
        assert other.ledger.counts().waiting == 1
    finally:
        other.close()


def test_a_great_loss_is_made_good_at_once(runtime: Runtime) -> None:
    broker = Broker()
    runtime.ledger.accept([Notification.create(f"user-{k}", "hello") for k in range(1_000)])
    run(runtime.sweep, broker)
    probe_comes_back(runtime, broker)
    let_five_seconds_pass(runtime)
    assert run(runtime.sweep, broker) == 1_000
