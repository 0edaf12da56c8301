"""notifier why, at every station."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from click.testing import CliRunner

from notifier.cli import main
from notifier.deadletters.manage import Filter, Manager
from notifier.notification import Identity
from notifier.settings import Settings
from notifier.tracing import trace_id
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
    assert "ID: " in why("anna", "n" * 201, code=1)
    assert why("a\x1b[31m", "n\n1", code=1).splitlines()[0] == "n\\n1 to user a\\x1b[31m on websocket"
