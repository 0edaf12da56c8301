"""What people do with dead letters."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import TypeVar

import pytest
from sqlalchemy import Connection

from notifier.deadletters.erase import erase
from notifier.deadletters.manage import Backlog, Done, Filter, Manager, forecast_s
from notifier.deadletters.schema import Row
from notifier.deadletters.store import Store
from notifier.errors import InvalidNotification, StateUnavailable
from notifier.ledger import Ledger
from notifier.licence import Deferred
from notifier.limit import Limit
from notifier.limits.overrides import Editor
from notifier.redis.client import connect
from notifier.redis.keys import user_key
from notifier.redis.state import connect_state
from notifier.settings import Settings
from tests.deadletters import Bench, MakeBench
from tests.support import free_port

EVERYTHING = Filter()
T = TypeVar("T")


def manager(bench: Bench) -> Manager:
    return Manager(bench.store, bench.ledger)


def all_rows(bench: Bench, which: Filter = EVERYTHING) -> list[Row]:
    return [row for page in manager(bench).pages(which, size=3) for row in page]


def poisoned(bench: Bench, count: int = 1) -> None:
    """Rows that are parked because their replayers died."""
    bench.deny("anna", count)
    bench.replay.spill()
    for _ in range(count):
        bench.sql("UPDATE dead_letters SET starts = 4, claimed_until = now() - interval '1 s' WHERE state = 'waiting'")
    bench.replay.run()
    assert bench.ledger.counts().parked == count


def test_pages_show_every_row_once_and_filters_hold(make_bench: MakeBench) -> None:
    bench = make_bench()
    bench.deny("anna", 8, wait_s=60, category="like")
    bench.deny("bert", 5, wait_s=60, channel="console")
    bench.deny("bert", 1, not_before=datetime.now(UTC) + timedelta(hours=1))
    bench.replay.spill()
    assert len({row.identity for row in all_rows(bench)}) == len(all_rows(bench)) == 14
    assert {row.body for row in all_rows(bench)} == {""}
    assert len(all_rows(bench, Filter(user_id="anna"))) == 8
    assert len(all_rows(bench, Filter(channel="console"))) == 5
    assert len(all_rows(bench, Filter(category="like"))) == 8
    assert len(all_rows(bench, Filter(reason="scheduled"))) == 1
    assert len(all_rows(bench, Filter(state="parked"))) == 0
    now_us = bench.ledger.now_us()
    assert len(all_rows(bench, Filter(until_us=now_us))) == 14
    assert len(all_rows(bench, Filter(since_us=now_us))) == 0


def test_summary_counts_a_digest_as_one_token(make_bench: MakeBench) -> None:
    bench = make_bench()
    bench.deny("anna", 8, wait_s=60, collapse_key="k")
    bench.deny("anna", 2, wait_s=60)
    bench.deny("bert", 1, wait_s=60)
    bench.replay.spill()
    summary = manager(bench).summary(EVERYTHING)
    assert (summary.total, summary.users) == (11, 2)
    assert summary.backlogs == [Backlog("websocket", 4, 3)]


def test_forecast_follows_the_tightest_limit() -> None:
    settings = Settings(user_limit=Limit.parse("2/s"), channel_limit=Limit.parse("10/s"))
    assert forecast_s([Backlog("websocket", 100, 50)], settings) == pytest.approx(25, rel=0.01)
    assert forecast_s([Backlog("websocket", 1_000, 50)], settings) == pytest.approx(100, rel=0.01)
    assert forecast_s([], settings) == 0
    assert forecast_s([Backlog("websocket", 1, 1)], Settings(user_limit=Limit.parse("0/s"))) == float("inf")


def test_parked_rows_sent_again_are_delivered(make_bench: MakeBench) -> None:
    bench = make_bench(user_limit="off")
    poisoned(bench, 2)
    assert manager(bench).send_again(Filter(state="parked")) == (2, 0)
    assert bench.ledger.counts().parked == 0
    bench.replay.run()
    assert len(bench.feed("anna")) == 2
    assert bench.balanced()


def test_what_waits_goes_at_once_but_what_is_scheduled_does_not(make_bench: MakeBench) -> None:
    bench = make_bench(user_limit="off")
    bench.deny("anna", 2, wait_s=600)
    bench.deny("bert", 1, not_before=datetime.now(UTC) + timedelta(hours=1))
    bench.replay.spill()
    assert manager(bench).send_again(EVERYTHING) == (2, 1)
    bench.replay.run()
    assert (len(bench.feed("anna")), len(bench.feed("bert"))) == (2, 0)
    assert manager(bench).send_again(Filter(reason="scheduled")) == (1, 0)
    bench.replay.run()
    assert len(bench.feed("bert")) == 1


def test_parked_by_hand_nothing_goes_until_a_person_decides(make_bench: MakeBench) -> None:
    bench = make_bench(user_limit="off")
    bench.deny("anna", 3)
    bench.replay.spill()
    assert manager(bench).park(Filter(user_id="anna")) == (3, 0)
    bench.replay.run()
    assert bench.feed("anna") == []
    assert bench.ledger.counts().parked == bench.store.counts().parked == 3
    assert bench.balanced()


def test_dropped_rows_end_as_dropped(make_bench: MakeBench) -> None:
    bench = make_bench(user_limit="off")
    poisoned(bench, 1)
    bench.deny("bert", 2)
    bench.replay.spill()
    assert manager(bench).drop(EVERYTHING) == (3, 0)
    assert bench.store.counts() == (0, 0)
    counts = bench.ledger.counts()
    assert (counts.dropped, counts.parked, counts.waiting) == (3, 0, 0)
    assert bench.balanced()


def test_a_row_that_a_replayer_has_is_left_to_it(make_bench: MakeBench) -> None:
    bench = make_bench(user_limit="off")
    bench.deny("anna", 2)
    bench.replay.spill()
    bench.store.claim(bench.ledger.now_us(), 1)
    assert manager(bench).drop(EVERYTHING) == (1, 1)


@pytest.mark.parametrize("command", [Manager.park, Manager.drop])
def test_without_redis_rows_are_given_back(make_bench: MakeBench, command: Callable[[Manager, Filter], Done]) -> None:
    bench = make_bench(user_limit="off")
    poisoned(bench, 1)
    bench.deny("bert", 3, wait_s=60)
    bench.replay.spill()
    before = bench.sql("SELECT state, reason, retry_at, starts, attempts FROM dead_letters ORDER BY user_id, seq")
    client = connect_state(f"redis://127.0.0.1:{free_port()}/0", 1.0)
    with closing(Ledger(client, bench.settings)) as away, pytest.raises(StateUnavailable):
        command(Manager(bench.store, away), EVERYTHING)
    after = bench.sql("SELECT state, reason, retry_at, starts, attempts FROM dead_letters ORDER BY user_id, seq")
    assert after == before
    assert bench.sql("SELECT count(*) FROM dead_letters WHERE claimed_until IS NOT NULL") == [(0,)]


def test_rows_that_outlived_their_redis_can_be_dropped(make_bench: MakeBench) -> None:
    bench = make_bench(user_limit="off")
    poisoned(bench, 1)
    bench.deny("bert", 1)
    bench.replay.spill()
    bench.client.flushall()
    assert manager(bench).drop(EVERYTHING).changed == 2
    assert bench.store.counts() == (0, 0)
    bench.replay.run()
    assert bench.feed("bert") == []
    assert bench.balanced()


def test_cancel_takes_what_waits_and_what_is_scheduled(make_bench: MakeBench) -> None:
    bench = make_bench(user_limit="off")
    bench.deny("anna", 1, notification_id="a")
    bench.deny("anna", 1, notification_id="b", not_before=datetime.now(UTC) + timedelta(hours=1))
    bench.replay.spill()
    assert manager(bench).cancel("anna", "a")
    assert manager(bench).cancel("anna", "b")
    assert not manager(bench).cancel("anna", "a")
    assert not manager(bench).cancel("anna", "unknown")
    assert bench.store.counts() == (0, 0)
    assert bench.ledger.counts().dropped == 2


def test_cancel_takes_the_user_id_of_the_call_and_refuses_what_is_none(make_bench: MakeBench) -> None:
    bench = make_bench(user_limit="off")
    bench.deny("42", 1, notification_id="a")
    assert manager(bench).cancel(42, "a")
    with pytest.raises(InvalidNotification, match="notification_id: contains a lone surrogate"):
        manager(bench).cancel("42", "\ud800")


def test_parked_rows_are_dropped_after_their_retention_and_counted(make_bench: MakeBench) -> None:
    bench = make_bench(user_limit="off", parked_retention=3_600)
    poisoned(bench, 2)
    bench.sql("UPDATE dead_letters SET updated_at = now() - interval '61 minutes' WHERE seq = 1")
    fresh = make_bench(user_limit="off", parked_retention=3_600)
    fresh.replay.run()
    assert bench.store.counts() == (0, 1)
    counts = bench.ledger.counts()
    assert (counts.dropped, counts.parked) == (1, 1)
    assert bench.balanced()


def test_nothing_is_left_of_an_erased_user(make_bench: MakeBench) -> None:
    bench = make_bench(user_limit="off")
    bench.deny("anna", 2)
    bench.replay.run()
    bench.deny("anna", 3, wait_s=60)
    bench.replay.spill()
    bench.deny("anna", 1, wait_s=60)
    bench.deny("bert", 1, wait_s=60)
    assert erase("anna", bench.store, bench.ledger, bench.settings)[:2] == (4, 3)
    assert not bench.client.exists(user_key("feed", "anna", "websocket"))
    assert bench.sql("SELECT count(*) FROM dead_letters WHERE user_id = 'anna'") == [(0,)]
    bench.replay.run()
    assert bench.store.counts().waiting == 1
    assert bench.balanced()
    assert erase("anna", bench.store, bench.ledger, bench.settings)[:2] == (0, 0)


class SpilledBehind(Store):
    """While a user is erased a spill goes on with what it had read before."""

    def __init__(self, database_url: str, items: list[Deferred]) -> None:
        super().__init__(database_url)
        self.items = items

    def run(self, work: Callable[[Connection], T], *, scan: bool = False) -> T:
        result = super().run(work, scan=scan)
        items, self.items = self.items, []
        self.insert(items)
        return result


def test_a_spill_that_runs_meanwhile_brings_nothing_back(make_bench: MakeBench) -> None:
    bench = make_bench(user_limit="off")
    bench.deny("anna", 3, wait_s=60)
    store = SpilledBehind(bench.settings.database_url, bench.ledger.peek_deferred(10))
    with closing(store):
        assert erase("anna", store, bench.ledger, bench.settings)[:2] == (3, 3)
    assert bench.sql("SELECT count(*) FROM dead_letters") == [(0,)]


def test_an_erased_user_has_no_limit_of_his_own(make_bench: MakeBench) -> None:
    bench = make_bench()
    with closing(Editor(bench.settings)) as editor:
        assert erase("anna", bench.store, bench.ledger, bench.settings).limits == 0
        with closing(connect(bench.settings.limiter_url, 2.0)) as limiter:
            assert not limiter.keys("*")  # where no user has a limit of his own, nobody need look for it
        for channel in ("websocket", "console"):
            editor.set_user("anna", channel, Limit.parse("9/s"))
        editor.set_user("bert", "websocket", Limit.parse("9/s"))
        assert erase("anna", bench.store, bench.ledger, bench.settings).limits == 2
        left = [editor.user(user, channel) for user in ("anna", "bert") for channel in ("websocket", "console")]
    assert left == [None, None, Limit.parse("9/s"), None]
