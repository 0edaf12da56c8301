"""Digests at replay, folding when too many wait, and crashes between their steps."""

from __future__ import annotations

import pytest

from notifier.deadletters.crowd import Crowd
from notifier.deadletters.manage import Manager
from tests.deadletters import Bench, MakeBench
from tests.support import eventually


def claims_run_out(bench: Bench) -> None:
    bench.sql("UPDATE dead_letters SET claimed_until = now() - interval '1 s' WHERE claimed_until IS NOT NULL")


def to_rows(bench: Bench) -> None:
    """Spill, but fold nothing."""
    items = bench.ledger.peek_deferred(100)
    bench.store.insert(items)
    bench.ledger.settle_deferred([item.notification.identity for item in items])


def test_rows_of_one_collapse_key_go_out_as_one_for_one_token(make_bench: MakeBench) -> None:
    bench = make_bench(user_limit="1/hour burst 1", local_bucket="off")
    bench.deny("anna", 27, collapse_key="likes:post-1")
    bench.replay.run()
    (frame,) = bench.feed("anna")
    ids = frame["digest"]["ids"]
    assert (frame["payload"]["n"], frame["digest"]["count"], len(ids)) == (26, 27, 27)
    assert ids[-1] == frame["notification_id"]
    assert frame["digest"]["first_at"] <= frame["digest"]["last_at"] == frame["accepted_at"]
    counts = bench.ledger.counts()
    assert (counts.delivered, counts.digested, counts.waiting) == (1, 26, 0)
    assert bench.store.counts() == (0, 0)
    assert bench.balanced()


def test_what_is_not_yet_due_goes_with_the_first(make_bench: MakeBench) -> None:
    bench = make_bench(user_limit="off")
    bench.deny("anna", 5, interval_s=600, collapse_key="k")
    bench.replay.run()
    (frame,) = bench.feed("anna")
    assert frame["digest"]["count"] == 5


def test_other_keys_channels_and_users_stay_apart(make_bench: MakeBench) -> None:
    bench = make_bench(user_limit="off")
    for user_id, key in [("anna", "a"), ("anna", "b"), ("bert", "a")]:
        bench.deny(user_id, 2, collapse_key=key)
    bench.replay.run()
    assert [frame["digest"]["count"] for frame in bench.feed("anna")] == [2, 2]
    assert [frame["digest"]["count"] for frame in bench.feed("bert")] == [2]


def test_a_digest_whose_replayer_died_goes_out_as_the_same_digest(make_bench: MakeBench) -> None:
    bench = make_bench(user_limit="off")
    bench.deny("anna", 3, collapse_key="k")
    bench.replay.spill()
    first = bench.store.claim(bench.ledger.now_us())
    claims_run_out(bench)
    bench.deny("anna", 2, collapse_key="k")
    bench.replay.spill()
    again = bench.store.claim_ran_out()
    assert [row.identity for row in again] == [row.identity for row in first]
    claims_run_out(bench)
    bench.replay.run()
    assert [frame["digest"]["count"] for frame in bench.feed("anna")] == [3, 2]


def test_a_digest_waits_until_the_last_of_its_claims_ran_out(make_bench: MakeBench) -> None:
    """They are claimed one after the other, within milliseconds."""
    bench = make_bench(user_limit="off")
    bench.deny("anna", 3, collapse_key="k")
    bench.replay.spill()
    assert len(bench.store.claim(bench.ledger.now_us())) == 3
    bench.sql("UPDATE dead_letters SET claimed_until = now() + (seq - 2) * interval '500 ms'")
    eventually(lambda: bench.replay.run().claimed == 3, timeout_s=60)
    (frame,) = bench.feed("anna")
    assert frame["digest"]["count"] == 3


def test_beyond_max_waiting_rows_fold_and_none_is_forgotten(make_bench: MakeBench) -> None:
    bench = make_bench(user_limit="off", max_waiting=10)
    bench.deny("anna", 150, wait_s=600, collapse_key="k")
    bench.replay.spill()
    assert bench.store.counts().waiting == 1
    assert bench.ledger.counts().digested == 149
    bench.deny("anna", 4, wait_s=600, collapse_key="k")
    bench.replay.spill()
    bench.make_due()
    bench.replay.run()
    (frame,) = bench.feed("anna")
    assert (frame["digest"]["count"], len(frame["digest"]["ids"])) == (154, 100)
    assert frame["digest"]["ids"][-1] == frame["notification_id"]
    assert bench.ledger.counts().digested == 153
    assert bench.balanced()


def test_a_single_row_tells_of_what_was_folded_into_it(make_bench: MakeBench) -> None:
    bench = make_bench(user_limit="off", max_waiting=2)
    bench.deny("anna", 5, wait_s=600, collapse_key="k")
    bench.replay.spill()
    bench.make_due()
    bench.replay.run()
    (frame,) = bench.feed("anna")
    assert (frame["digest"]["count"], len(frame["digest"]["ids"])) == (5, 5)


@pytest.mark.parametrize("booked", [False, True])
def test_a_crash_within_a_fold_is_taken_up(make_bench: MakeBench, booked: bool) -> None:
    bench = make_bench(user_limit="off", max_waiting=5)
    bench.deny("anna", 12, wait_s=600, collapse_key="k")
    to_rows(bench)
    (group,) = Crowd(bench.store, bench.ledger, 5)._claim("anna", "websocket")
    if booked:
        bench.ledger.fold_rows(group)
    claims_run_out(bench)
    bench.replay.run()
    assert bench.store.counts().waiting == 1
    bench.make_due()
    bench.replay.run()
    (frame,) = bench.feed("anna")
    assert frame["digest"]["count"] == 12
    assert bench.ledger.counts().digested == 11
    assert bench.balanced()


def test_nothing_folds_into_what_has_ended(make_bench: MakeBench) -> None:
    bench = make_bench(user_limit="off", max_waiting=5)
    bench.deny("anna", 8, wait_s=600, collapse_key="k")
    to_rows(bench)
    crowd = Crowd(bench.store, bench.ledger, 5)
    (group,) = crowd._claim("anna", "websocket")
    assert bench.ledger.cancel(group[-1].identity)
    assert crowd.fold(group) == 1
    assert bench.store.counts().waiting == 7
    assert (bench.ledger.counts().dropped, bench.ledger.counts().digested) == (1, 0)


def test_what_its_fold_left_behind_goes_by_itself(make_bench: MakeBench) -> None:
    """Its replayer died, and the row that it was to fold into has been cancelled."""
    bench = make_bench(user_limit="off", max_waiting=1)
    bench.deny("anna", 3, wait_s=600, collapse_key="k")
    to_rows(bench)
    (group,) = Crowd(bench.store, bench.ledger, 1)._claim("anna", "websocket")
    manager = Manager(bench.store, bench.ledger)
    for row in group[1:]:
        assert manager.cancel("anna", row.notification_id)
    claims_run_out(bench)
    bench.replay.run()
    bench.make_due()
    bench.replay.run()
    assert [frame["payload"] for frame in bench.feed("anna")] == [{"n": 0}]
    assert bench.balanced()


def test_nothing_folds_into_another_than_it_was_to(make_bench: MakeBench) -> None:
    """Only what the newest was claimed with is written into it: in another one it would not be told of."""
    bench = make_bench(user_limit="off", max_waiting=1)
    bench.deny("anna", 3, wait_s=600, collapse_key="k")
    to_rows(bench)
    (group,) = Crowd(bench.store, bench.ledger, 1)._claim("anna", "websocket")
    assert Manager(bench.store, bench.ledger).cancel("anna", group[-1].notification_id)
    claims_run_out(bench)
    bench.replay.run()
    bench.make_due()
    bench.replay.run()
    (frame,) = bench.feed("anna")
    assert (frame["payload"], frame["digest"]["count"]) == ({"n": 1}, 2)
    assert bench.balanced()


def test_what_cannot_fold_is_dropped_and_counted(make_bench: MakeBench) -> None:
    bench = make_bench(user_limit="off", max_waiting=5)
    for k in range(8):
        bench.deny("anna", 1, wait_s=600, collapse_key=f"key-{k}")
    bench.replay.spill()
    counts = bench.ledger.counts()
    assert (bench.store.counts().waiting, counts.dropped, counts.waiting) == (5, 3, 5)
    assert [n for (n,) in bench.sql("SELECT seq FROM dead_letters ORDER BY seq")] == [1, 2, 3, 4, 5]
    assert bench.balanced()


def test_scheduled_rows_are_no_crowd(make_bench: MakeBench) -> None:
    from datetime import UTC, datetime, timedelta

    bench = make_bench(user_limit="off", max_waiting=2)
    bench.deny("anna", 6, not_before=datetime.now(UTC) + timedelta(hours=1))
    bench.replay.spill()
    assert bench.store.counts().waiting == 6
