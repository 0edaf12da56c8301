"""notifier dead-letters and notifier migrate, as a person or a script uses them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner, Result

from notifier.cli import main
from notifier.settings import Settings
from tests.deadletters import MakeBench


@pytest.fixture
def run(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`run("dead-letters", "list")` against the test's servers."""
    for name in ("broker_url", "redis_url", "limiter_redis_url", "database_url"):
        monkeypatch.setenv(f"NOTIFIER_{name.upper()}", str(getattr(settings, name)))

    def command(*words: str, code: int = 0) -> Result:
        result = CliRunner().invoke(main, list(words))
        assert result.exit_code == code, result.output
        return result

    return command


def test_list_shows_what_waits_without_payloads(run: Any, make_bench: MakeBench) -> None:
    bench = make_bench()
    bench.deny("anna", 3, wait_s=60, category="like")
    bench.replay.spill()
    bench.deny("anna", 1, wait_s=60)
    output = run("dead-letters", "list", "--limit", "2").output
    assert "3 dead letters, 1 of them not shown" in output
    assert "1 more on their way" in output
    found = json.loads(run("dead-letters", "list", "--user", "anna", "--json").output)
    assert (found["total"], found["rows"][0]["category"]) == (3, "like")
    assert "payload" not in found["rows"][0]


def test_what_is_due_first_comes_first_and_no_id_is_wrapped(run: Any, make_bench: MakeBench) -> None:
    bench = make_bench()
    ids = [f"{number}-{'long' * 40}" for number in range(3)]
    for wait_s, given_id in zip((90, 30, 60), ids, strict=True):
        bench.deny(f"user-{wait_s}\x1b[2J", 1, wait_s=wait_s, notification_id=given_id)
    bench.replay.spill()
    run("dead-letters", "park", "--id", ids[1])
    listed = run("dead-letters", "list").output.splitlines()[1:-1]
    assert [next(word for word in line.split() if word in ids) for line in listed] == [ids[2], ids[0], ids[1]]
    assert "\x1b" not in "".join(listed)
    shown = json.loads(run("dead-letters", "list", "--json", "--limit", "2").output)["rows"]
    assert [row["notification_id"] for row in shown] == [ids[2], ids[0]]


@pytest.mark.parametrize(("command", "word"), [("replay", "due now"), ("park", "parked"), ("drop", "dropped")])
def test_what_was_done_is_said(run: Any, make_bench: MakeBench, command: str, word: str) -> None:
    bench = make_bench()
    bench.deny("anna", 2, wait_s=60)
    assert run("dead-letters", command, "--all").output == f"2 dead letters {word}.\n"


def test_show_tells_all_about_one(run: Any, make_bench: MakeBench) -> None:
    bench = make_bench()
    bench.deny("anna", 1, wait_s=60, notification_id="a")
    bench.replay.spill()
    assert json.loads(run("dead-letters", "show", "anna", "a", "--payload", "--json").output)["payload"] == {"n": 0}
    assert "rate_limited" in run("dead-letters", "show", "anna", "a").output
    assert "notifier why" in run("dead-letters", "show", "anna", "b", code=1).output


@pytest.mark.parametrize("command", ["replay", "park", "drop"])
def test_everything_is_touched_only_with_all(run: Any, make_bench: MakeBench, command: str) -> None:
    bench = make_bench()
    bench.deny("anna", 2, wait_s=60)
    assert "--all" in run("dead-letters", command, code=2).output
    forecast = json.loads(run("dead-letters", command, "--dry-run", "--json").output)
    assert (forecast["total"], forecast["last_in_s"]) == (2, 1.0)
    assert "nothing was changed" in run("dead-letters", command, "--dry-run").output
    assert bench.store.counts() == (2, 0)
    assert json.loads(run("dead-letters", command, "--all", "--json").output)["changed"] == 2


def test_what_was_sent_again_is_replayed(run: Any, make_bench: MakeBench) -> None:
    bench = make_bench(user_limit="off")
    bench.deny("anna", 2, wait_s=600)
    assert "2 dead letters due now." in run("dead-letters", "replay", "--since", "1h").output
    bench.replay.run()
    assert len(bench.feed("anna")) == 2


def test_export_is_one_json_object_a_line(run: Any, make_bench: MakeBench) -> None:
    bench = make_bench()
    bench.deny("anna", 3, wait_s=60)
    bench.replay.spill()
    lines = run("dead-letters", "export", "--payload").output.splitlines()
    assert sorted(json.loads(line)["payload"]["n"] for line in lines) == [0, 1, 2]


@pytest.mark.parametrize(
    ("option", "value"), [("--since", "yesterday"), ("--older-than", "5"), ("--reason", "because"), ("--state", "gone")]
)
def test_bad_filters_are_refused_by_name(run: Any, option: str, value: str) -> None:
    assert option in run("dead-letters", "list", option, value, code=2).output


def test_migrate_says_where_the_schema_is(run: Any, new_database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFIER_DATABASE_URL", new_database_url)
    assert "run `notifier migrate`" in run("migrate", "--check", code=1).output
    assert "notifier migrate" in run("dead-letters", "list", code=1).output
    assert json.loads(run("migrate", "--json").output)["before"] == ""
    assert "Nothing to do" in run("migrate").output
    assert json.loads(run("migrate", "--check", "--json").output)["up_to_date"] is True
    assert "base" in run("migrate", "--to", "base", "--yes").output
