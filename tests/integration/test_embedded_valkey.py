"""The Valkey that `up`, the demo and the tests start."""

from __future__ import annotations

import stat
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, RedisError
from redis.retry import Retry

from notifier.embedded.valkey import Valkey
from notifier.errors import Unavailable
from tests.support import eventually

Factory = Callable[..., Valkey]


def test_it_asks_for_a_password_and_shows_it_nowhere(fresh_valkey: Factory) -> None:
    server = fresh_valkey()
    with pytest.raises(AuthenticationError):
        Redis(port=server.port, retry=Retry(NoBackoff(), 0)).ping()
    assert server.password not in " ".join(psutil.Process(server.pid).cmdline())
    assert server.password not in server.log.read_text()
    assert all(
        path.is_dir() or server.password not in path.read_text(errors="replace") for path in server.home.rglob("*")
    )
    assert stat.S_IMODE(server.home.stat().st_mode) == 0o700


def test_its_settings_suit_the_ledger_and_the_feeds(fresh_valkey: Factory) -> None:
    client = Redis.from_url(fresh_valkey(aof="always").url(), decode_responses=True)
    asked = {
        "bind": "127.0.0.1",
        "maxmemory-policy": "noeviction",
        "stream-node-max-bytes": "512",
        "appendonly": "yes",
        "appendfsync": "always",
        "save": "",
    }
    assert {name: client.config_get(name)[name] for name in asked} == asked


def test_what_it_acknowledged_survives_kill_9_on_the_same_port(fresh_valkey: Factory) -> None:
    server = fresh_valkey(aof="everysec")
    url = server.url()
    Redis.from_url(url).set("kept", "yes")
    server.kill()
    assert not server.running
    server.restart()
    assert server.url() == url
    assert Redis.from_url(url).get("kept") == b"yes"


def test_data_is_kept_between_two_runs(tmp_path: Path) -> None:
    data_dir = tmp_path / "a \"directory\" of 'mine' \\ #1"
    with Valkey.start(data_dir) as server:
        Redis.from_url(server.url(3)).set("kept", "yes")
    with Valkey.start(data_dir) as server:
        assert Redis.from_url(server.url(3)).get("kept") == b"yes"


def test_a_frozen_one_answers_nothing_until_it_is_thawed_and_can_be_stopped(fresh_valkey: Factory) -> None:
    server = fresh_valkey()
    client = Redis.from_url(server.url(), socket_timeout=0.2)
    client.ping()
    server.freeze()
    with pytest.raises(RedisError):
        client.ping()
    server.thaw()
    assert eventually(lambda: Redis.from_url(server.url()).ping())
    server.freeze()
    server.stop()
    assert not server.running


def test_two_on_the_same_data_are_refused(fresh_valkey: Factory) -> None:
    server = fresh_valkey()
    with pytest.raises(Unavailable, match="in use by another Valkey"):
        Valkey.start(server.home)
    assert Redis.from_url(server.url()).ping()


def test_a_port_in_use_is_an_error_with_the_reason(fresh_valkey: Factory, tmp_path: Path) -> None:
    server = fresh_valkey()
    with pytest.raises(Unavailable, match="in use"):
        Valkey.start(tmp_path / "other", port=server.port)


def test_a_directory_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Unavailable, match=r"file.*cannot be used.*NOTIFIER_DATA_DIR"):
        Valkey.start(tmp_path / "file" / "data")
