"""`notifier send` and `notifier status` against real servers, some of them away."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from notifier import metrics, runtime
from notifier.cli import main
from notifier.embedded.valkey import Valkey
from notifier.redis.client import connect
from notifier.redis.keys import PREFIX
from notifier.settings import Settings
from tests.support import free_port

NOBODY = f"127.0.0.1:{free_port()}"
DEAD = f"redis://:hunter2@{NOBODY}/0"


@pytest.fixture
def servers(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[Settings]:
    """The environment of a command that finds all servers; a runtime of its own."""
    runtime.close()
    monkeypatch.setattr(metrics, "_last", {})  # an earlier test's warning keeps this one's back
    for name in ("broker_url", "redis_url", "limiter_redis_url", "database_url"):
        monkeypatch.setenv(f"NOTIFIER_{name.upper()}", str(getattr(settings, name)))
    yield settings
    runtime.close()


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


def status() -> dict[str, Any]:
    report: dict[str, Any] = json.loads(run("status", "--json").stdout)
    return report


def replayed_now() -> None:
    """As a worker notes it after a replay."""
    parts = runtime.get()
    parts.client.set(f"{PREFIX}replayed", parts.ledger.now_us())


def test_what_is_sent_is_in_flight_and_nothing_is_degraded(servers: Settings) -> None:
    replayed_now()
    sent = [run("send", "42", '{"text": "hello"}').stdout.strip() for _ in range(3)]
    assert len(set(sent)) == 3
    report = status()
    assert (report["counts"]["accepted"], report["counts"]["in_flight"], report["unaccounted"]) == (3, 3, 0)
    assert report["rows"] == {"waiting": 0, "parked": 0}
    assert set(report["servers"].values()) == {"ok"}
    assert report["degraded"] == []
    assert run("status").exit_code == 0


def test_the_text_names_every_count(servers: Settings) -> None:
    run("send", "42", '"hello"')
    text = run("status").stdout
    for word in (
        "accepted",
        "delivered",
        "digested",
        "expired",
        "dropped",
        "duplicate",
        "parked",
        "waiting",
        "in flight",
    ):
        assert word in text
    assert "degraded: no replay has run" in text


def test_an_id_sent_twice_is_counted_as_duplicate(servers: Settings) -> None:
    for _ in range(2):
        sent = run("send", "42", '"hello"', "--notification-id", "parcel-77", "--json")
        assert json.loads(sent.stdout) == {"notification_id": "parcel-77"}
    counts = status()["counts"]
    assert (counts["accepted"], counts["duplicate"], counts["in_flight"]) == (2, 1, 1)


@pytest.mark.parametrize(
    ("variable", "line"),
    [
        ("NOTIFIER_REDIS_URL", f"state Redis at {NOBODY} cannot be reached"),
        ("NOTIFIER_LIMITER_REDIS_URL", f"limiter Redis at {NOBODY} cannot be used"),
        ("NOTIFIER_BROKER_URL", f"the broker at {NOBODY} cannot be used"),
        ("NOTIFIER_DATABASE_URL", "PostgreSQL cannot be reached"),
    ],
)
def test_a_server_that_is_away_is_named_with_what_follows(
    servers: Settings, monkeypatch: pytest.MonkeyPatch, variable: str, line: str
) -> None:
    replayed_now()
    monkeypatch.setenv(variable, DEAD.replace("redis://", "postgresql://u") if "DATABASE" in variable else DEAD)
    result = run("status")
    assert result.exit_code == 1
    (degraded,) = [text for text in result.stdout.splitlines() if text.startswith("degraded: ")]
    assert line in degraded
    assert "hunter2" not in result.output
    assert "Traceback" not in result.output


def test_a_database_without_the_schema_is_named(
    servers: Settings, monkeypatch: pytest.MonkeyPatch, new_database_url: str
) -> None:
    replayed_now()
    monkeypatch.setenv("NOTIFIER_DATABASE_URL", new_database_url)
    (line,) = status()["degraded"]
    assert "notifier migrate" in line


def test_a_frozen_server_does_not_hold_it_up(
    servers: Settings, monkeypatch: pytest.MonkeyPatch, fresh_valkey: Callable[..., Valkey]
) -> None:
    replayed_now()
    frozen = fresh_valkey(aof=None)
    monkeypatch.setenv("NOTIFIER_LIMITER_REDIS_URL", frozen.url())
    frozen.freeze()
    try:
        (line,) = status()["degraded"]
    finally:
        frozen.thaw()
    assert "limiter Redis" in line


def test_a_server_that_refuses_what_it_is_asked_is_named(
    servers: Settings, monkeypatch: pytest.MonkeyPatch, fresh_valkey: Callable[..., Valkey]
) -> None:
    """It answers, and yet nothing can be accepted or known: that is not ok."""
    state = fresh_valkey(aof=None)
    with connect(state.url(), 5.0) as client:
        client.acl_setuser(
            "watcher", enabled=True, passwords=["+hunter2"], categories=["+@all", "-@scripting"], keys="*"
        )
    monkeypatch.setenv("NOTIFIER_REDIS_URL", state.url().replace(f":{state.password}@", "watcher:hunter2@"))
    result = run("status")
    assert result.exit_code == 1, result.output
    assert "degraded: state Redis refuses: NoPermissionError" in result.output
    assert "hunter2" not in result.output


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("42", "hello"), "payload: is not JSON"),
        (("42", "NaN"), "payload: is not JSON"),
        (("42", "[" * 100_000), "payload: "),
        (("", '"x"'), "user_id: must have 1 to 512 characters"),
        (("42", '"x"', "--channel", "pigeon"), "channel: 'pigeon' is not one of"),
        (("42", '"x"', "--ttl", "-1"), "ttl: must be over 0"),
        (("42", '"x"', "--not-before", "2030-01-01T00:00:00"), "not_before: is naive"),
        (("42", '"x"', "--not-before", "tomorrow"), "not_before: is no time"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_sent_is_refused_by_name(servers: Settings, arguments: tuple[str, ...], complaint: str) -> None:
    result = run("send", *arguments)
    assert result.exit_code == 1
    assert result.output.startswith(f"Error: {complaint}")
    assert result.output.count("\n") == 1


def test_the_payload_can_come_from_stdin(servers: Settings) -> None:
    sent = CliRunner().invoke(main, ["send", "42", "-"], input='{"text": "from a pipe"}')
    assert sent.exit_code == 0, sent.output
    assert status()["counts"]["in_flight"] == 1
    assert os.linesep not in sent.stdout.strip()


def test_nobody_home_is_said_at_once(servers: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFIER_REDIS_URL", DEAD)
    monkeypatch.setenv("NOTIFIER_BROKER_URL", DEAD)
    result = run("send", "42", '"x"', "--notification-id", "a-1")
    assert result.exit_code == 1
    assert "send it again with notification_id='a-1'; start `notifier up` in this directory, or set" in result.output
    assert result.output.count("\n") == 1
    assert "hunter2" not in result.output


def test_one_that_the_broker_alone_took_is_said_to_be_degraded(
    servers: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFIER_REDIS_URL", DEAD)
    result = run("send", "42", '"x"')
    assert result.exit_code == 0
    assert f"degraded: ledger: state Redis at {NOBODY} cannot be reached" in result.stderr


def test_many_are_sent_at_once_each_with_an_id_of_its_own(servers: Settings) -> None:
    assert run("send", "42", '"x"', "--count", "30").stdout == "queued 30\n"
    numbered = json.loads(run("send", "42", '"x"', "--count", "3", "--id", "like", "--json").stdout)
    assert numbered == {"notification_ids": ["like-1", "like-2", "like-3"], "became": {"queued": 3}}
    assert run("send", "42", '"x"', "--count", "4", "--id", "like").stdout == "duplicate 3, queued 1\n"
    assert "delivered once" in run("send", "42", '"x"', "--id", "like-4").stderr


def test_where_nothing_runs_the_status_ends_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("BROKER", "REDIS", "LIMITER_REDIS"):
        monkeypatch.setenv(f"NOTIFIER_{name}_URL", DEAD)
    monkeypatch.setenv("NOTIFIER_DATABASE_URL", DEAD.replace("redis://", "postgresql://u"))
    result = run("status")
    assert result.exit_code == 1
    assert "start `notifier up` in this directory, or set NOTIFIER_BROKER_URL" in result.output.splitlines()[-1]
    assert "hunter2" not in result.output


def test_a_tasks_module_here_that_is_not_ours_is_named_where_nothing_replays(servers: Settings) -> None:
    Path("tasks.py").write_text("")
    (line,) = status()["degraded"]
    assert f"{Path.cwd() / 'tasks.py'} hides Notifier's own `tasks`" in line
    assert "`notifier worker`" in line
    replayed_now()
    assert status()["degraded"] == []
