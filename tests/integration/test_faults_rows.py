"""Rows whose seq or epoch is not the ledger's: written by a worker, or older than their Redis."""

from __future__ import annotations

import pytest

from notifier.licence import Deferred, Reason
from notifier.limit import Limit
from notifier.notification import Notification
from notifier.redis.keys import done_key
from tests.deadletters import Bench, MakeBench
from tests.support import eventually


@pytest.fixture
def bench(make_bench: MakeBench) -> Bench:
    """One token at a time."""
    return make_bench(user_limit=Limit.parse("200/s burst 1"), local_bucket=Limit.parse("off"))


def written_by_a_worker(bench: Bench, notification: Notification) -> None:
    """As a worker does that reaches PostgreSQL, but not state Redis."""
    item = Deferred(notification, 0, "", 0, bench.ledger.now_us(), 0, Reason.LIMITER_UNAVAILABLE, 0, False, 0, "")
    bench.store.insert([item])


def drained(bench: Bench, count: int) -> bool:
    bench.make_due()
    bench.replay.run()
    return len(bench.feed("anna")) == count


def test_a_row_that_a_worker_wrote_lets_earlier_ones_go_first(bench: Bench) -> None:
    """Accepted late, it comes after those that wait; its row must not take their turns and tokens for ever."""
    bench.deny("anna", 5)
    bench.replay.spill()
    for n in (5, 6):
        written_by_a_worker(bench, Notification.create("anna", {"n": n}))
    eventually(lambda: drained(bench, 7), timeout_s=30)
    assert [frame["payload"]["n"] for frame in bench.feed("anna")][:5] == list(range(5))
    assert bench.balanced()


def test_rows_older_than_their_redis_and_new_ones_do_not_block_each_other(bench: Bench) -> None:
    """Their seqs are of two series: the ledger gives new ones to the old rows when it sees them."""
    bench.deny("anna", 8)
    bench.replay.spill()
    bench.client.flushall()
    bench.deny("anna", 4)
    eventually(lambda: drained(bench, 12), timeout_s=30)
    assert bench.balanced()


def test_a_row_older_than_its_redis_that_outlives_its_end_by_an_hour(bench: Bench) -> None:
    """Delivered, but the DELETE failed, and PostgreSQL was away for longer than an ordinary done mark lives."""
    bench.deny("anna", 1)
    bench.replay.spill()
    bench.client.flushall()
    (identity,) = (row.identity for row in bench.store.claim(bench.ledger.now_us()))
    bench.sql("UPDATE dead_letters SET claimed_until = NULL")
    assert drained(bench, 1)
    life_s = bench.client.ttl(done_key(identity))
    assert isinstance(life_s, int)
    assert life_s > 86_400
