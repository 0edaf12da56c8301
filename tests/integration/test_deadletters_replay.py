"""Spill, claim, pace, deliver, let go: on real servers."""

from __future__ import annotations

import itertools
import json
import threading
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from notifier.deadletters.replay import Replay
from notifier.errors import DatabaseUnavailable
from notifier.licence import Denial
from notifier.notification import Identity, Notification
from notifier.wire import Message
from tests.deadletters import MakeBench
from tests.support import eventually


def test_what_was_denied_is_delivered_in_order_when_its_time_has_come(make_bench: MakeBench) -> None:
    bench = make_bench(user_limit="off")
    bench.deny("anna", 20)
    report = bench.replay.run()
    assert report.spilled == 20
    assert [frame["payload"]["n"] for frame in bench.feed("anna")] == list(range(20))
    assert bench.store.counts() == (0, 0)
    assert bench.balanced()
    assert bench.ledger.counts().delivered == 20


def test_nothing_goes_before_its_time(make_bench: MakeBench) -> None:
    bench = make_bench(user_limit="off")
    bench.deny("anna", 3, wait_s=3_600)
    report = bench.replay.run()
    assert (report.spilled, report.claimed) == (3, 0)
    assert bench.feed("anna") == []
    assert bench.ledger.counts().deferred == 0
    assert bench.replay.run().spilled == 0


@pytest.mark.parametrize("moved_at_once", [2_000, 100])
def test_one_user_is_not_claimed_to_be_denied_again_and_again(
    make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch, moved_at_once: int
) -> None:
    monkeypatch.setattr("notifier.deadletters.queries.MOVED", moved_at_once)
    bench = make_bench(user_limit="6/min burst 5", local_bucket="off")
    bench.deny("anna", 1_300)
    bench.replay.spill()
    bench.make_due()
    report = bench.replay.run()
    assert report.replayed >= 5
    assert report.claimed <= 500
    assert report.paced + report.replayed == 1_300
    assert bench.replay.run().claimed <= 3  # ten seconds for each
    ((distinct, span_s),) = bench.sql(
        "SELECT count(DISTINCT retry_at), extract(epoch FROM max(retry_at) - min(retry_at)) FROM dead_letters"
    )
    left = bench.store.counts().waiting
    assert distinct == left
    assert float(span_s) == pytest.approx((left - 1) * 10, abs=30)


def test_others_go_first_round(make_bench: MakeBench) -> None:
    bench = make_bench(user_limit="1/s burst 5", local_bucket="off")
    bench.deny("noisy", 1_000)
    for k in range(30):
        bench.deny(f"quiet-{k}", 1)
    bench.replay.spill()
    bench.make_due()
    rows = bench.store.claim(bench.ledger.now_us(), 100)
    assert len({row.user_id for row in rows}) == 31


def test_walk_over_users_when_more_is_due_than_the_window(
    make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("notifier.deadletters.queries.WINDOW", 50)
    bench = make_bench(user_limit="off")
    bench.deny("a noisy", 200)
    for k in range(30):
        bench.deny(f"quiet-{k:02}", 2)
    bench.replay.spill()
    bench.make_due()
    now_us = bench.ledger.now_us()
    first = bench.store.claim(now_us, 20)
    second = bench.store.claim(now_us, 20)
    assert len({row.user_id for row in first}) == 20
    assert len({row.user_id for row in first} | {row.user_id for row in second}) == 31


def test_rows_whose_claim_ran_out_go_alone_and_park_at_five_starts(make_bench: MakeBench) -> None:
    bench = make_bench(user_limit="off")
    bench.deny("anna", 3)
    bench.replay.spill()
    for starts in range(1, 5):
        bench.sql("UPDATE dead_letters SET claimed_until = now() - interval '1 second' WHERE seq = 1")
        (row,) = bench.store.claim_ran_out()
        assert (row.seq, row.starts, row.claim_ran_out) == (1, starts, True)
    bench.sql("UPDATE dead_letters SET claimed_until = now() - interval '1 second' WHERE seq = 1")
    report = bench.replay.run()
    assert report.parked == 1
    assert bench.sql("SELECT seq, state, reason FROM dead_letters") == [(1, "parked", "poison")]
    assert bench.ledger.counts().parked == 1
    assert bench.ledger.counts().delivered == 2
    assert bench.balanced()


def test_expired_rows_end_as_expired_and_take_no_token(make_bench: MakeBench) -> None:
    bench = make_bench(user_limit="1/hour burst 1", local_bucket="off")
    bench.deny("anna", 2, ttl=1, wait_s=600)
    bench.deny("anna", 1, wait_s=600)
    bench.replay.spill()
    assert bench.store.counts().waiting == 3
    over_us = bench.ledger.now_us() + 1_000_000
    eventually(lambda: bench.ledger.now_us() > over_us)
    bench.replay.run()  # at their expiry, not when their turn would have come
    assert bench.ledger.counts().expired == 2
    bench.make_due()
    bench.replay.run()
    counts = bench.ledger.counts()
    assert (counts.expired, counts.delivered) == (2, 1)
    assert bench.store.counts() == (0, 0)


def test_many_replayers_at_once_deliver_each_once(make_bench: MakeBench) -> None:
    benches = [make_bench(user_limit="off") for _ in range(4)]
    for k in range(40):
        benches[0].deny(f"user-{k}", 25)
    threads = [threading.Thread(target=lambda b=bench: [b.replay.run() for _ in range(4)]) for bench in benches]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    while benches[0].store.counts().waiting or benches[0].ledger.counts().deferred:  # a slow machine: time was up
        benches[0].replay.run()
    assert benches[0].ledger.counts().delivered == 1_000
    for k in range(40):
        assert [frame["seq"] for frame in benches[0].feed(f"user-{k}")] == list(range(1, 26))
    assert benches[0].store.counts() == (0, 0)


def test_without_a_table_nothing_is_lost(make_bench: MakeBench, new_database_url: str) -> None:
    bench = make_bench(user_limit="off")
    bench.deny("anna", 3)
    homeless = make_bench(user_limit="off", database_url=new_database_url)
    with pytest.raises(DatabaseUnavailable, match="notifier migrate"):
        homeless.replay.run()
    assert bench.ledger.counts().deferred == 3
    bench.replay.run()
    assert len(bench.feed("anna")) == 3


def test_a_repeated_spill_makes_no_second_row(make_bench: MakeBench) -> None:
    bench = make_bench(user_limit="off")
    bench.deny("anna", 3, wait_s=60)
    items = bench.ledger.peek_deferred(10)
    bench.store.insert(items)
    assert bench.replay.spill() == 3
    assert bench.store.counts().waiting == 3


def test_exactly_the_named_ones_are_sent(make_bench: MakeBench) -> None:
    bench = make_bench(user_limit="off")
    bench.deny("anna", 3, wait_s=60)
    bench.replay.spill()
    ((first,),) = bench.sql("SELECT notification_id FROM dead_letters WHERE seq = 1")
    assert bench.replay.run_ids([Identity("anna", "websocket", first)]).replayed == 1
    assert [frame["seq"] for frame in bench.feed("anna")] == [1]


def test_what_json_can_say_survives_the_table(make_bench: MakeBench) -> None:
    bench = make_bench(user_limit="off")
    payload = {"nul": "a\0b", "emoji": "😀", "big": 1e22, "zero": -0.0, "b": 1, "a": [None, True, "\\u0000", "%s :x"]}
    n = Notification.create("anna", payload)
    (accepted,) = bench.ledger.accept([n])
    bench.ledger.deny([Message(n, accepted.accepted_us, epoch=accepted.epoch)], [Denial(0, 0, "rate_limited")])
    bench.replay.run()
    (frame,) = bench.feed("anna")
    assert json.dumps(frame["payload"]) == json.dumps(payload)


def test_connections_of_a_parent_are_not_used_by_its_child(make_bench: MakeBench) -> None:
    import multiprocessing

    bench = make_bench(user_limit="off")
    parent = bench.sql("SELECT pg_backend_pid()")
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe()

    def child() -> None:
        sender.send([tuple(row) for row in bench.sql("SELECT pg_backend_pid()")])

    process = context.Process(target=child)
    process.start()
    with closing(receiver):
        assert receiver.recv() != parent
    process.join()
    assert bench.sql("SELECT pg_backend_pid()") == parent


def test_the_lowest_seqs_go_when_later_ones_are_due_first(make_bench: MakeBench) -> None:
    bench = make_bench(user_limit="1/hour burst 3", local_bucket="off")
    bench.deny("anna", 10, wait_s=600, interval_s=1)
    bench.replay.spill()
    bench.sql("UPDATE dead_letters SET retry_at = now() - interval '1 s' WHERE seq IN (5, 8, 10)")
    report = bench.replay.run()
    assert (report.claimed, report.denied) == (3, 0)
    assert [frame["seq"] for frame in bench.feed("anna")] == [1, 2, 3]
    ((due, later),) = bench.sql(
        "SELECT count(*) FILTER (WHERE retry_at <= now()), count(DISTINCT retry_at) FROM dead_letters"
    )
    assert (due, later) == (0, 7)


def test_a_scheduled_row_is_not_taken_before_its_time(make_bench: MakeBench) -> None:
    bench = make_bench(user_limit="off")
    bench.deny("anna", 1, not_before=datetime.now(UTC) + timedelta(hours=1))
    bench.deny("anna", 2)
    bench.replay.run()
    assert [frame["seq"] for frame in bench.feed("anna")] == [2, 3]
    assert bench.store.counts().waiting == 1


def test_a_channel_s_limit_is_one_line_for_all_users(make_bench: MakeBench) -> None:
    bench = make_bench(user_limit="off", channel_limit="10/s burst 20", local_bucket="off")
    for k in range(300):
        bench.deny(f"user-{k}", 2)
    bench.replay.spill()
    bench.make_due()
    report = bench.replay.run()
    assert report.claimed < 520  # the rest is paced unclaimed; a few places fall due meanwhile
    assert report.replayed + report.denied + report.paced >= 600
    ((rows, times, span_s),) = bench.sql(
        "SELECT count(*), count(DISTINCT retry_at), extract(epoch FROM max(retry_at) - min(retry_at)) FROM dead_letters"
    )
    assert rows == 600 - report.replayed
    assert times >= rows - 2
    assert float(span_s) == pytest.approx(rows / 10, rel=0.1)


def test_after_an_outage_of_the_replay_nobody_is_denied_again_and_again(make_bench: MakeBench) -> None:
    bench = make_bench(user_limit="1/min burst 10", local_bucket="off")
    bench.deny("anna", 200, interval_s=60)
    bench.replay.spill()
    # Two hours without replay: 120 rows are due, and the bucket holds no more than its burst.
    bench.sql("UPDATE dead_letters SET retry_at = retry_at - interval '120 min'")
    first = bench.replay.run()
    assert 10 <= first.replayed <= 12
    assert 100 <= first.denied <= 112
    later = [bench.replay.run() for _ in range(5)]
    assert sum(report.denied for report in later) <= 3


def test_a_flood_that_is_spilled_does_not_keep_from_going_what_is_due(make_bench: MakeBench) -> None:
    bench = make_bench(user_limit="off", max_waiting=100_000)
    bench.deny("quiet", 1)
    bench.replay.spill()
    bench.deny("noisy", 2_500, wait_s=600)
    ticks = itertools.count()
    slow = Replay(bench.store, bench.ledger, bench.limiter, bench.settings, clock=lambda: float(next(ticks)))
    report = slow.run()  # every look at the clock takes longer than the whole budget
    assert report.spilled == 0
    assert len(bench.feed("quiet")) == 1


@pytest.mark.parametrize("user_limit", ["off", "1/day burst 1"])
def test_what_had_ended_or_expires_is_not_replayed(make_bench: MakeBench, user_limit: str) -> None:
    bench = make_bench(user_limit=user_limit, local_bucket="off")
    for name in ("a", "b", "c"):
        bench.deny("anna", 1, notification_id=name)
    bench.replay.spill()
    bench.make_due()
    bench.sql("UPDATE dead_letters SET expires_at = to_timestamp(1) WHERE notification_id = 'c'")
    bench.expire("anna", "a")  # only the ledger knows
    bench.ledger.cancel(Identity("anna", "websocket", "b"))
    report = bench.replay.run()
    assert (report.claimed, report.ended, report.replayed, report.denied) == (3, 3, 0, 0)
    assert bench.balanced()


def test_expired_rows_are_booked_together(make_bench: MakeBench) -> None:
    bench = make_bench(user_limit="off")
    calls = []
    for count in (2, 20):
        bench.deny("anna", count)
        bench.replay.spill()
        bench.sql("UPDATE dead_letters SET expires_at = to_timestamp(1)")
        bench.client.config_resetstat()
        assert bench.replay.run().ended == count
        stats: Any = bench.client.info("commandstats")
        calls.append(stats["cmdstat_evalsha"]["calls"])
    assert calls[0] == calls[1]
