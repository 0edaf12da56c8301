"""`notifier config`: complete, honest about where a value comes from, and silent about secrets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from notifier.cli import main
from notifier.cli.config import origins
from notifier.settings import RUN_ENV, Settings, mask_url, raw_values

SECRETS = ("hunter2", "p%40ss", "s3cret-that-signs-the-tokens-of-all")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["config", *arguments])


def by_name() -> dict[str, dict[str, object]]:
    return {row["name"]: row for row in json.loads(run("--json").stdout)["settings"]}


def test_every_setting_is_listed_with_what_it_does() -> None:
    listed = by_name()
    assert set(listed) == {f"NOTIFIER_{name.upper()}" for name in Settings.model_fields if name != "per_channel"}
    for name, row in listed.items():
        assert row["from"] == "default"
        assert row["description"], f"{name} lacks a description in Settings"


def test_the_first_place_wins_and_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    RUN_ENV.parent.mkdir()
    RUN_ENV.write_text("NOTIFIER_FEED_LENGTH=1\nNOTIFIER_MAX_WAITING=1\nNOTIFIER_MAX_DEFERRED=1\n")
    Path(".env").write_text("NOTIFIER_FEED_LENGTH=2\nNOTIFIER_MAX_WAITING=2\n")
    monkeypatch.setenv("NOTIFIER_FEED_LENGTH", "3")
    listed = by_name()
    assert [(listed[f"NOTIFIER_{n}"]["value"], listed[f"NOTIFIER_{n}"]["from"]) for n in (
        "FEED_LENGTH", "MAX_WAITING", "MAX_DEFERRED"
    )] == [(3, "environment"), (2, ".env"), (1, str(RUN_ENV))]  # fmt: skip
    assert listed["NOTIFIER_FEED_LENGTH"]["default"] == 50
    assert set(origins()) == set(raw_values()), "config reads other places than Settings"


def test_a_limit_of_one_channel_is_listed_beside_the_general_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFIER_USER_LIMIT__WEBHOOK", "7/min burst 3")
    row = by_name()["NOTIFIER_USER_LIMIT__WEBHOOK"]
    assert (row["value"], row["default"], row["from"]) == ("7/min burst 3", "2/s burst 10", "environment")


@pytest.mark.parametrize("arguments", [(), ("--json",)])
def test_no_secret_is_shown(monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]) -> None:
    monkeypatch.setenv("NOTIFIER_SECRET", SECRETS[2])
    monkeypatch.setenv("NOTIFIER_BROKER_URL", "amqp://guest:hunter2@rabbit:5672/v")
    monkeypatch.setenv("NOTIFIER_REDIS_URL", "redis://:p%40ss@state:6379/1?socket_timeout=1&password=hunter2")
    monkeypatch.setenv("NOTIFIER_DATABASE_URL", "postgresql://app:hunter2@db/notifier")
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    assert not [secret for secret in SECRETS if secret in result.output]
    assert "amqp://guest:***@rabbit:5672/v" in result.output


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://localhost:6379/1", "redis://localhost:6379/1"),
        ("redis://user@h/0", "redis://user@h/0"),
        ("redis://:hunter2@h/0", "redis://:***@h/0"),
        ("postgresql+psycopg2://u:a:b/c@d@h/0", "postgresql+psycopg2://u:***@h/0"),
        ("unix:///run/redis.sock?db=1&PASSWORD=hunter2&x=1", "unix:///run/redis.sock?db=1&PASSWORD=***&x=1"),
    ],
)
def test_passwords_of_urls_are_masked(url: str, shown: str) -> None:
    assert mask_url(url) == shown


def test_a_misspelt_variable_is_pointed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFIER_USR_LIMIT", "5/s")
    monkeypatch.setenv("NOTIFIER_FEED_LENGTH__WEBHOOK", "5")
    monkeypatch.setenv("NOTIFIER_OVERFLOW__", "drop")  # of no channel: it is read
    assert Settings().overflow == "drop"
    assert "NOTIFIER_USR_LIMIT is no setting; NOTIFIER_USER_LIMIT is" in run().stderr
    assert json.loads(run("--json").stdout)["unknown"] == ["NOTIFIER_FEED_LENGTH__WEBHOOK", "NOTIFIER_USR_LIMIT"]


def test_bad_values_are_refused_by_name_all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFIER_USER_LIMIT", "many")
    monkeypatch.setenv("NOTIFIER_DATABASE_URL", "mysql://app:hunter2@db/notifier")
    result = run()
    assert result.exit_code == 1
    assert "NOTIFIER_USER_LIMIT: 'many' is not a limit" in result.output
    assert "NOTIFIER_DATABASE_URL: must begin with postgresql://" in result.output
    assert "hunter2" not in result.output
    assert "Traceback" not in result.output
