"""Hooks hear what became of a notification, and cannot harm it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest

from notifier import hooks
from notifier.deadletters.crowd import Crowd
from notifier.deadletters.manage import Filter, Manager
from notifier.deadletters.schema import Row
from notifier.hooks import Event
from notifier.ledger import Ledger
from notifier.licence import Denial, End, Grant, RowReply
from tests.deadletters import Bench, MakeBench


@pytest.fixture
def heard() -> Iterator[list[tuple[str, str, str]]]:
    """(what, notification id, reason) of each event."""
    events: list[tuple[str, str, str]] = []

    def hook(event: Event) -> None:
        events.append((event.what, event.notification.notification_id, event.reason))

    hooks.add(hook)
    yield events
    hooks.remove(hook)


def test_denied_then_delivered(make_bench: MakeBench, heard: list[tuple[str, str, str]]) -> None:
    bench = make_bench(user_limit="off")
    bench.deny("anna", 1, notification_id="a")
    bench.replay.run()
    bench.replay.run()
    assert heard == [("deferred", "a", "rate_limited"), ("delivered", "a", "")]


def test_members_of_a_digest(make_bench: MakeBench, heard: list[tuple[str, str, str]]) -> None:
    bench = make_bench(user_limit="off")
    for name in ("a", "b"):
        bench.deny("anna", 1, notification_id=name, collapse_key="k")
    heard.clear()
    bench.replay.run()
    assert heard == [("digested", "a", ""), ("delivered", "b", "")]


def test_parked_dropped_expired(make_bench: MakeBench, heard: list[tuple[str, str, str]]) -> None:
    bench = make_bench(user_limit="off")
    manager = Manager(bench.store, bench.ledger)
    bench.deny("anna", 1, wait_s=60, notification_id="a")
    bench.deny("bert", 1, notification_id="b")
    bench.replay.spill()
    bench.expire("bert", "b")
    heard.clear()
    manager.park(Filter(notification_id="a"))
    manager.drop(Filter(notification_id="a"))
    bench.make_due()
    bench.replay.run()
    assert heard == [("parked", "a", "by_hand"), ("dropped", "a", "by_hand"), ("expired", "b", "")]


def claimed(bench: Bench, *names: str) -> list[Row]:
    for name in names:
        bench.deny("anna", 1, notification_id=name, collapse_key="k")
    bench.replay.spill()
    return bench.store.claim(bench.ledger.now_us())


NOW = Grant(granted_at_us=1, deadline_us=0)
SCRIPTS: list[Callable[[Ledger, list[Row]], list[RowReply]]] = [
    lambda ledger, rows: ledger.deliver_digests([[row] for row in rows], [NOW] * len(rows)),
    lambda ledger, rows: ledger.deliver_digests([rows], [NOW]),
    lambda ledger, rows: ledger.deny_rows(rows, [Denial(1, 0, "rate_limited")] * len(rows)),
    lambda ledger, rows: ledger.check_rows(rows, [0] * len(rows)),
    lambda ledger, rows: ledger.fold_rows(rows),
]


@pytest.mark.parametrize("run", SCRIPTS, ids=["deliver", "digest", "deny", "check", "fold"])
def test_an_expired_row_is_told_of_as_expired_and_once(
    make_bench: MakeBench, heard: list[tuple[str, str, str]], run: Callable[[Ledger, list[Row]], list[RowReply]]
) -> None:
    bench = make_bench(user_limit="off")
    rows = claimed(bench, "a", "b")
    for row in rows:
        bench.expire("anna", row.notification_id)
    heard.clear()
    for _ in range(2):  # the second time they have ended before
        run(bench.ledger, rows[1:])
        run(bench.ledger, rows)
    names = ["b"] if run is SCRIPTS[-1] else ["a", "b"]  # nothing folds into what has ended
    assert sorted(heard) == [("expired", name, "") for name in names]
    assert bench.ledger.counts().expired == len(names)


def test_folded_members_are_digested(make_bench: MakeBench, heard: list[tuple[str, str, str]]) -> None:
    bench = make_bench(user_limit="off")
    rows = claimed(bench, "a", "b", "c")
    bench.expire("anna", "b")
    heard.clear()
    assert Crowd(bench.store, bench.ledger, 2).fold(rows) == 2
    assert heard == [("digested", "a", ""), ("expired", "b", "")]


def test_booked_rows_that_had_ended_are_no_event(make_bench: MakeBench, heard: list[tuple[str, str, str]]) -> None:
    bench = make_bench(user_limit="off")
    rows = claimed(bench, "a", "b")
    heard.clear()
    for _ in range(2):
        bench.ledger.book_rows(rows, [End.DIGESTED, End.PARKED])
    assert heard == [("digested", "a", ""), ("parked", "b", "")]


def test_what_is_only_kept_is_no_event(make_bench: MakeBench, heard: list[tuple[str, str, str]]) -> None:
    bench = make_bench(user_limit="1/hour burst 1", local_bucket="off")
    bench.deny("anna", 3)
    heard.clear()
    bench.replay.run()
    bench.make_due()
    bench.replay.run()
    assert [what for what, _, _ in heard] == ["delivered"]


def test_a_hook_that_raises_harms_nobody(make_bench: MakeBench, heard: list[tuple[str, str, str]]) -> None:
    def broken(event: Event) -> None:
        raise RuntimeError(event.notification.body)

    hooks.add(broken)
    try:
        bench = make_bench(user_limit="off")
        bench.deny("anna", 1, not_before=datetime.now(UTC) - timedelta(hours=1))
        bench.replay.run()
    finally:
        hooks.remove(broken)
    assert len(bench.feed("anna")) == 1
    assert heard[-1][0] == "delivered"


def test_while_hooks_are_being_loaded_other_threads_hear_too(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[Event] = []
    within: list[bool] = []

    class Point:
        name = "audit"

        def load(self) -> hooks.Hook:
            if not within:
                within.append(False)
                within[0] = ThreadPoolExecutor(1).submit(hooks.wanted).result(60)
            return heard.append

    monkeypatch.setattr(hooks, "_installed", None)
    monkeypatch.setattr(hooks, "entry_points", lambda **_: [Point()])
    assert hooks.wanted()
    assert within == [True]
