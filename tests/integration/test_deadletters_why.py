"""notifier why, at every station."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from click.testing import CliRunner

from notifier.cli import main
from notifier.deadletters.manage import Filter, Manager
from notifier.deadletters.outbox import Outbox
from notifier.licence import Denial, End
from notifier.notification import Identity, Notification
from notifier.settings import Settings
from notifier.tracing import trace_id
from notifier.wire import Message
from tests.deadletters import MakeBench


@pytest.fixture
def why(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`why("anna", "a")` is what a person reads."""
    for name in ("broker_url", "redis_url", "limiter_redis_url", "database_url"):
        monkeypatch.setenv(f"NOTIFIER_{name.upper()}", str(getattr(settings, name)))

    def ask(*words: str, code: int = 0) -> str:
        result = CliRunner().invoke(main, ["why", *words])
        assert result.exit_code == code, result.output
        return result.output

    return ask


def test_from_the_denial_to_the_feed(why: Any, make_bench: MakeBench) -> None:
    bench = make_bench(user_limit="off")
    bench.deny("anna", 1, wait_s=60, notification_id="first")
    bench.deny("anna", 1, wait_s=60, notification_id="a")
    assert "a limit said no" in why("anna", "first")
    assert "on its way to the table" in why("anna", "a")
    bench.replay.spill()
    told = why("anna", "a")
    assert "seq 2" in told
    assert "an earlier one of this user waits, 1 before it; in the table" in told
    assert "expires" in told
    bench.make_due()
    bench.replay.run()
    told = why("anna", "a")
    assert "delivered" in told
    assert "in the feed" in told


def test_scheduled_parked_dropped_unknown(why: Any, make_bench: MakeBench) -> None:
    bench = make_bench(user_limit="off")
    bench.deny("anna", 1, notification_id="later", not_before=datetime.now(UTC) + timedelta(hours=1))
    assert "its time has not come" in why("anna", "later")
    bench.deny("anna", 1, wait_s=60, notification_id="a")
    bench.replay.spill()
    manager = Manager(bench.store, bench.ledger)
    manager.park(Filter(notification_id="a"))
    assert "parked by hand" in why("anna", "a")
    manager.drop(Filter(notification_id="a"))
    assert "a person did it" in why("anna", "a")
    assert "unknown" in why("anna", "b", code=1)


def test_refused_by_its_receiver(why: Any, make_bench: MakeBench) -> None:
    bench = make_bench(user_limit="off")
    sent = [Notification.create("anna", 1, notification_id=name, channel="webhook") for name in ("a", "b")]
    messages = [Message(n, a.accepted_us, a.epoch) for n, a in zip(sent, bench.ledger.accept(sent), strict=True)]
    bench.ledger.begin(messages, lease_us=1)
    bench.ledger.book(messages[:1], End.PARKED, "delivery_failed", ["shop.example answered 404"])
    bench.ledger.deny(messages[1:], [Denial(60_000_000, 0, "delivery_failed", 1, "shop.example answered 503")])
    bench.replay.spill()
    told = why("anna", "a", "--channel", "webhook")
    assert "parked      refused for good: shop.example answered 404; it waits for" in told
    assert "started" not in told
    assert "tried       1 time; last error: shop.example answered 503" in why("anna", "b", "--channel", "webhook")


@pytest.mark.parametrize(("starts", "channel", "said"), [(1, "websocket", "1 time "), (3, "webhook", "2 times ")])
def test_how_often_whoever_worked_on_it_died(
    why: Any, make_bench: MakeBench, starts: int, channel: str, said: str
) -> None:
    bench = make_bench(user_limit="off")
    bench.deny("anna", 1, wait_s=60, notification_id="a", channel=channel)
    bench.replay.spill()
    bench.sql("UPDATE dead_letters SET starts = :starts", starts=starts)
    assert f"started     {said}without an end" in why("anna", "a", "--channel", channel)


def test_committed_accepted_cancelled(why: Any, make_bench: MakeBench) -> None:
    bench = make_bench(user_limit="off")
    sent = Notification.create("anna", 1, notification_id="a")
    bench.store.run(lambda connection: Outbox(bench.ledger, 60.0).write(connection, [sent]))
    told = why("anna", "a")
    assert "committed" in told and "not accepted yet" in told and "accepted   " not in told
    assert "its time has not come; in the table only" in told
    assert Manager(bench.store, bench.ledger).cancel("anna", "a")
    assert re.search("^dropped .*: it was cancelled$", why("anna", "a"), re.MULTILINE)


def test_folded_into_which_digest(why: Any, make_bench: MakeBench) -> None:
    bench = make_bench(user_limit="off")
    for name in ("a", "b"):
        bench.deny("anna", 1, notification_id=name, collapse_key="k")
    bench.replay.run()
    told = why("anna", "a")
    assert "digested" in told
    assert "in a digest b" in told
    assert "with 1 other as a digest" in why("anna", "b")
    story = json.loads(why("anna", "a", "--json"))
    assert (story["done"]["end"], story["feed"]["notification_id"], story["ledger"]) == ("digested", "b", None)
    assert story["trace_id"] == trace_id(Identity("anna", "websocket", "a"))


def test_without_the_table_the_rest_is_told(
    why: Any, make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch, new_database_url: str
) -> None:
    bench = make_bench(user_limit="off")
    bench.deny("anna", 1, wait_s=60, notification_id="a")
    monkeypatch.setenv("NOTIFIER_DATABASE_URL", new_database_url)
    told = why("anna", "a")
    assert "a limit said no" in told
    assert "notifier migrate" in told


def test_what_is_asked_for_is_checked_and_moves_no_cursor(why: Any) -> None:
    assert "channel: " in why("anna", "n1", "--channel", "\udcff", code=1)
    assert "notification_id: " in why("anna", "n" * 201, code=1)
    assert why("a\x1b[31m", "n\n1", code=1).splitlines()[0] == "n\\n1 to user a\\x1b[31m on websocket"
