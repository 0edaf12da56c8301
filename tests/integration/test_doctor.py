"""`notifier doctor` against real servers, each with one thing wrong."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg2
import pytest
from click.testing import CliRunner, Result
from redis import Redis

from notifier import runtime
from notifier.cli import main
from notifier.deadletters.migrate import upgrade
from notifier.doctor.lines import line_of
from notifier.doctor.workers import Canary, progress, replay
from notifier.embedded.valkey import Valkey
from notifier.redis.keys import PREFIX
from notifier.settings import Settings
from notifier.wire import QUEUES
from tasks.app import create_app
from tests.gateway import Running
from tests.support import eventually, free_port

VARIABLES = ("broker_url", "redis_url", "limiter_redis_url", "database_url")


@pytest.fixture
def servers(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """The environment of a command that finds all servers."""
    for name in VARIABLES:
        monkeypatch.setenv(f"NOTIFIER_{name.upper()}", str(getattr(settings, name)))
    return settings


def run(*arguments: str) -> Result:
    result = CliRunner().invoke(main, ["doctor", *arguments])
    assert result.exit_code in (0, 1), result.output
    assert "Traceback" not in result.output
    return result


def examined(*arguments: str) -> dict[str, dict[str, str]]:
    """Check -> finding, without a canary: there is no worker. Only one finding a check in these tests."""
    result = run("--no-canary", "--json", *arguments)
    report = json.loads(result.stdout.splitlines()[-1])
    assert report["ok"] == (report["problems"] == 0) == (result.exit_code == 0)
    bad = [finding for finding in report["findings"] if finding["level"] != "ok"]
    assert all(finding["why"] and finding["mend"] for finding in bad)
    assert len(bad) == report["problems"] + report["warnings"]
    for name in VARIABLES:
        url = os.environ[f"NOTIFIER_{name.upper()}"]
        password = url.partition("://")[2].partition("@")[0].partition(":")[2]
        assert password not in result.output
    return {finding["check"]: finding for finding in report["findings"]}


def level(check: str, *arguments: str) -> str | None:
    found = examined(*arguments).get(check)
    return found["level"] if found else None


def test_what_is_wrong_with_the_servers_of_tests_and_nothing_else(servers: Settings) -> None:
    bad = {name: finding["level"] for name, finding in examined().items() if finding["level"] != "ok"}
    assert bad == {
        "state.aof": "problem",  # kept in memory
        "broker.aof": "warning",
        "database.fsync": "warning",
        "replay.alive": "problem",  # no beat, no worker
        "gateway.secret": "warning",  # not set
    }


@pytest.fixture
def own(servers: Settings, monkeypatch: pytest.MonkeyPatch, fresh_valkey: Callable[..., Valkey]) -> Iterator[Redis]:
    """A client of a state Redis of the test's own, which keeps a file."""
    server = fresh_valkey(aof="everysec")
    monkeypatch.setenv("NOTIFIER_REDIS_URL", server.url())
    with closing(Redis.from_url(server.url())) as client:
        yield client


def test_a_state_redis_that_keeps_a_file_is_well(own: Redis) -> None:
    found = examined()
    assert [found[check]["level"] for check in ("state.aof", "state.eviction", "state.scripts")] == ["ok"] * 3


@pytest.mark.parametrize(
    ("configured", "check", "expected"),
    [
        ({"maxmemory-policy": "allkeys-lru"}, "state.eviction", "problem"),
        ({"appendonly": "no"}, "state.aof", "problem"),
        ({"appendfsync": "no"}, "state.aof", "warning"),
        ({"replicaof": f"127.0.0.1 {free_port()}"}, "state.primary", "problem"),
        ({"user": "default on >hunter2 ~* &* +@all -@scripting"}, "state.scripts", "problem"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_state_redis_configured_wrongly(own: Redis, configured: dict[str, str], check: str, expected: str) -> None:
    for name, value in configured.items():
        if name == "replicaof":
            own.execute_command("REPLICAOF", *value.split())
        elif name == "user":
            own.execute_command("ACL", "SETUSER", *value.split())
        else:
            own.config_set(name, value)
    assert level(check) == expected


def test_a_limiter_that_evicts_is_a_risk(
    servers: Settings, monkeypatch: pytest.MonkeyPatch, fresh_valkey: Callable[..., Valkey]
) -> None:
    server = fresh_valkey(aof=None)
    monkeypatch.setenv("NOTIFIER_LIMITER_REDIS_URL", server.url())
    with closing(Redis.from_url(server.url())) as client:
        client.config_set("maxmemory-policy", "allkeys-lfu")
    found = examined()
    assert (found["limiter.eviction"]["level"], found.get("limiter.aof")) == ("warning", None)


def test_a_server_that_is_nearly_full(own: Redis) -> None:
    used: Any = own.info("memory")
    own.config_set("maxmemory", int(used["used_memory"] * 1.05))
    assert level("state.memory") == "warning"


def test_a_wrong_password_is_said_without_it(servers: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    port = servers.redis_url.rpartition(":")[2]
    monkeypatch.setenv("NOTIFIER_REDIS_URL", f"redis://:hunter2@127.0.0.1:{port}")
    finding = examined()["state.reachable"]
    assert finding["level"] == "problem"
    assert "authentication" in finding["what"]


def test_dead_servers_are_all_named_at_once(servers: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES[:3]:
        monkeypatch.setenv(f"NOTIFIER_{name.upper()}", f"redis://:hunter2@127.0.0.1:{free_port()}/0")
    monkeypatch.setenv("NOTIFIER_DATABASE_URL", f"postgresql://app:hunter2@127.0.0.1:{free_port()}/app")
    text = run().output
    for check in ("state", "limiter", "broker", "database"):
        assert f"problem  {check}.reachable" in text
    assert "warning  replay.alive" in text
    assert "warning  workers.consume" in text
    assert "hunter2" not in text


def test_servers_that_never_answer_hide_nothing(
    servers: Settings, monkeypatch: pytest.MonkeyPatch, fresh_valkey: Callable[..., Valkey]
) -> None:
    frozen = fresh_valkey(aof=None)
    monkeypatch.setenv("NOTIFIER_LIMITER_REDIS_URL", frozen.url())
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("NOTIFIER_DATABASE_URL", f"postgresql://app:hunter2@127.0.0.1:{silent.getsockname()[1]}/app")
        frozen.freeze()
        try:
            found = examined()
        finally:
            frozen.thaw()
    assert [found[f"{name}.reachable"]["level"] for name in ("state", "limiter", "broker", "database")] == [
        "ok",
        "problem",
        "ok",
        "problem",
    ]


def test_a_database_that_is_not_migrated(
    servers: Settings, monkeypatch: pytest.MonkeyPatch, new_database_url: str
) -> None:
    monkeypatch.setenv("NOTIFIER_DATABASE_URL", new_database_url)
    finding = examined()["database.migrations"]
    assert (finding["level"], finding["mend"]) == ("problem", "notifier migrate")


def test_a_database_where_the_user_may_not_write(
    servers: Settings, monkeypatch: pytest.MonkeyPatch, new_database_url: str
) -> None:
    upgrade(new_database_url)
    with closing(psycopg2.connect(new_database_url.replace("+psycopg2", ""))) as connection, connection:
        connection.cursor().execute("REVOKE INSERT, DELETE ON dead_letters FROM CURRENT_USER")
    read_only = "options=-cdefault_transaction_read_only%3Don"
    monkeypatch.setenv("NOTIFIER_DATABASE_URL", f"{new_database_url}?{read_only}")
    found = examined()
    assert found["database.writable"]["level"] == "problem"
    assert found["database.rights"]["what"] == "the user lacks INSERT, DELETE on dead_letters"


def test_a_gateway_that_is_named_and_one_that_is_not_there(servers: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    with Running(servers).running() as gateway:
        gateway.wait_until_ready()
        assert level("gateway.reachable", "--gateway", f"http://127.0.0.1:{gateway.port}") == "ok"
    port = str(free_port())
    assert level("gateway.reachable", "--gateway", f"http://127.0.0.1:{port}") == "problem"
    assert level("gateway.reachable") is None
    monkeypatch.setenv("NOTIFIER_GATEWAY_PORT", port)
    assert level("gateway.reachable") == "warning"


def test_bad_settings_are_findings_too(servers: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFIER_USER_LIMIT", "many")
    text = run().output
    assert "problem  settings.values" in text
    assert "NOTIFIER_USER_LIMIT" in text


def test_an_app_that_cannot_be_loaded_and_one_that_can(servers: Settings, tmp_path: Path) -> None:
    assert level("app.load", "--app", "nobodys.app") == "problem"
    (tmp_path / "shop_of_doctor.py").write_text(
        f"from celery import Celery\napp = Celery('shop', broker={servers.broker_url!r}, include=['tasks'])\n"
    )
    found = examined("-A", "shop_of_doctor")
    assert (found["app.broker"]["level"] if "app.broker" in found else None, found["app.rules"]["level"]) == (
        None,
        "ok",
    )
    assert found["app.prefetch"]["level"] == "warning"


@pytest.mark.parametrize(
    ("ago_s", "stand_in", "expected"),
    [(0, False, "ok"), (8, False, "warning"), (5, True, "warning"), (300, False, "problem"), (None, False, "problem")],
)
def test_when_the_replay_last_ran(settings: Settings, ago_s: float | None, stand_in: bool, expected: str) -> None:
    with closing(Redis.from_url(settings.redis_url)) as client:
        seconds, _ = client.time()  # type: ignore[misc]
        if ago_s is not None:
            client.set(f"{PREFIX}replayed", int((seconds - ago_s) * 1e6))
        if stand_in:
            client.set(f"{PREFIX}replay-sender", 1)
        (finding,) = replay(settings)
    assert finding.level == expected
    assert ("beat is absent" in finding.what) == stand_in


@pytest.fixture
def canaries(settings: Settings) -> Iterator[Callable[[], dict[str, Any]]]:
    """Sends canaries where no worker is, and waits for half a second."""
    runtime.close()
    app = create_app(settings)
    yield lambda: {finding.check: finding for finding in Canary(settings, app, wait_s=0.5).check()}
    runtime.close()


def test_a_canary_that_nobody_takes_is_a_problem_and_is_taken_back(
    settings: Settings, valkey: Valkey, canaries: Callable[[], dict[str, Any]]
) -> None:
    with closing(Redis.from_url(valkey.url(1))) as broker:
        broker.rpush("notifier.bulk", *(b"{}" for _ in range(1_000)))
        found = canaries()
        assert {finding.level for finding in found.values()} == {"problem"}
        assert list(found) == [f"workers.{queue}" for queue in QUEUES]
        assert "1,000 messages wait" in found["workers.notifier.bulk"].what
        assert [broker.llen(queue) for queue in QUEUES] == [0, 0, 1_000, 0]
    with closing(Redis.from_url(settings.redis_url)) as state:
        assert state.dbsize() == 0


def test_while_a_canary_is_awaited_it_is_said_for_what(settings: Settings) -> None:
    said: list[str] = []
    watched = Canary(settings, create_app(settings))
    tick = progress(watched, said.append, every_s=0.0)
    tick()
    watched.waiting = {"notifier.bulk": 12_000, "notifier.control": 0}
    tick()
    (line,) = said
    assert line.startswith("waiting for workers, 0 of at most 10 s: ")
    assert line.endswith("notifier.bulk (12,000 ahead), notifier.control")


def test_a_long_queue_that_moves_is_only_late(
    settings: Settings, valkey: Valkey, canaries: Callable[[], dict[str, Any]]
) -> None:
    with closing(Redis.from_url(valkey.url(1))) as broker:
        broker.rpush("notifier.normal", *(str(number).encode() for number in range(1_000)))
        with closing(line_of(create_app(settings))) as line:
            before = line.glance("notifier.normal")
            broker.rpop("notifier.normal")
            assert line.glance("notifier.normal").next_up != before.next_up
        taking = threading.Thread(target=lambda: _take_one_more(broker))
        taking.start()
        finding = canaries()["workers.notifier.normal"]
        taking.join()
    assert finding.level == "warning"
    assert "999 messages were ahead" in finding.what


def _take_one_more(broker: Redis) -> None:
    eventually(lambda: (broker.llen("notifier.normal") or 0) > 999)  # the canary is in
    broker.rpop("notifier.normal")
