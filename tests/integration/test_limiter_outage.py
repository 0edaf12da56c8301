"""Every kind of outage on a real server: noticed, survived on grace, then deferred; charged and recovered after it."""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from redis import Redis
from redis.exceptions import RedisError

from notifier import Limiter, Settings
from notifier.embedded.valkey import Valkey
from notifier.lab.proxy import Proxy
from notifier.limits.limiter import Request
from notifier.notification import Identity
from notifier.redis import keys
from notifier.redis.client import Command, Connections, connect
from tests.support import eventually, free_port

# A busy machine may keep a healthy server silent for longer than the default of 50 ms.
LIMITS: dict[str, Any] = {"user_limit": "1/hour burst 100", "local_bucket": "20/s burst 5", "limiter_timeout": 0.3}


@pytest.fixture
def server(fresh_valkey: Callable[..., Valkey]) -> Valkey:
    return fresh_valkey(aof="always")


@pytest.fixture
def admin(server: Valkey) -> Iterator[Redis]:
    with contextlib.closing(connect(server.url(), 5.0)) as client:
        yield client


@contextlib.contextmanager
def limiter_at(url: str, **settings: Any) -> Iterator[Limiter]:
    limiter = Limiter.from_settings(Settings(limiter_redis_url=url, **(LIMITS | settings)))
    try:
        yield limiter
    finally:
        limiter.close()


def threads_that_call(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Filled, from now on, with a number for each call to a server."""
    askers: list[int] = []
    send = Connections.send

    def noted(self: Connections, commands: Sequence[Command]) -> Any:
        askers.append(threading.get_ident())
        return send(self, commands)

    monkeypatch.setattr(Connections, "send", noted)
    return askers


@contextlib.contextmanager
def refused(server: Valkey, admin: Redis) -> Iterator[None]:
    server.kill()
    yield
    server.restart()


@contextlib.contextmanager
def hung(server: Valkey, admin: Redis) -> Iterator[None]:
    server.freeze()
    yield
    server.thaw()


@contextlib.contextmanager
def busy(server: Valkey, admin: Redis) -> Iterator[None]:
    admin.config_set("busy-reply-threshold", 1)

    def spin() -> None:
        with contextlib.suppress(RedisError):
            connect(server.url(), 30.0).eval("while true do end", 0)

    spinner = threading.Thread(target=spin)
    spinner.start()
    eventually(lambda: _refuses(admin, "BUSY"))
    yield
    admin.script_kill()
    spinner.join()


def _refuses(client: Redis, word: str) -> bool:
    try:
        client.ping()
    except RedisError as error:
        return word.lower() in f"{type(error).__name__} {error}".lower()
    return False


@contextlib.contextmanager
def configured(admin: Redis, **values: Any) -> Iterator[None]:
    before = {name: str(admin.config_get(name)[name]) for name in values}
    for name, value in values.items():
        admin.config_set(name, value)
    yield
    for name, value in before.items():
        admin.config_set(name, value)


@contextlib.contextmanager
def out_of_memory(server: Valkey, admin: Redis) -> Iterator[None]:
    with configured(admin, maxmemory=1):
        yield


@contextlib.contextmanager
def readonly(server: Valkey, admin: Redis) -> Iterator[None]:
    admin.replicaof("127.0.0.1", free_port())
    yield
    admin.replicaof("NO", "ONE")


@contextlib.contextmanager
def masterdown(server: Valkey, admin: Redis) -> Iterator[None]:
    with configured(admin, **{"replica-serve-stale-data": "no"}), readonly(server, admin):
        yield


@contextlib.contextmanager
def authentication(server: Valkey, admin: Redis) -> Iterator[None]:
    password = server.password
    admin.config_set("requirepass", "another")
    admin.client_kill_filter(_type="normal", skipme=True)
    yield
    admin.config_set("requirepass", password)


KINDS = {
    "unreachable": refused,
    "timeout": hung,
    "busy": busy,
    "out of memory": out_of_memory,
    "readonly": readonly,
    "masterdown": masterdown,
    "authentication": authentication,
}


@pytest.mark.parametrize("kind", KINDS)
def test_an_outage_is_named_survived_and_over_when_it_is_over(
    kind: str, server: Valkey, admin: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    with limiter_at(server.url(), grace_seconds=60) as limiter:
        assert limiter.acquire("a").source == "local"
        assert limiter.acquire("b", priority="bulk").source == "shared"
        with KINDS[kind](server, admin):
            eventually(lambda: not limiter.acquire("b", priority="bulk").granted, timeout_s=5)
            # some begin as a lost connection, and a replica without its primary is first of all read-only
            eventually(lambda: limiter.state().outage in (kind, "readonly" if kind == "masterdown" else None))
            verdicts = [limiter.acquire(f"user-{n}") for n in range(50)]
            sources = [verdict.source for verdict in verdicts if verdict.granted]
            assert set(sources) == {"grace"}
            assert 1 <= len(sources) < 50  # the local bucket's burst, and what has come since
            denied = [verdict for verdict in verdicts if not verdict.granted]
            assert {(v.level, v.retry_after > 0) for v in denied} == {("unavailable", True)}
            askers = threads_that_call(monkeypatch)
            limiter.acquire_many([Request("x")] * 1_000)
            assert threading.get_ident() not in askers  # nobody waits for a server that is known to be away
        eventually(lambda: limiter.state().up, timeout_s=5)
        eventually(lambda: limiter.state().loans == 0, timeout_s=5)
        assert limiter.acquire("b", priority="bulk").source == "shared"
        assert admin.exists(*[keys.user_key("bucket", f"user-{n}", "websocket") for n in range(50)]) == len(sources)


def test_a_server_that_loads_its_data_is_waited_for(tmp_path: Any) -> None:
    class Slow(Valkey):
        def _config(self) -> list[str]:
            return [*super()._config(), "key-load-delay 20000", "loading-process-events-interval-bytes 1024"]

    with Valkey.start(tmp_path / "data", aof="always") as server:
        client = connect(server.url(), 1.0)
        client.mset({f"filler:{n}": secrets.token_hex(1_000) for n in range(80)})
        client.bgrewriteaof()  # loading is slowed down for a snapshot only
        eventually(lambda: not client.info("persistence")["aof_rewrite_in_progress"])
        client.close()
        port = server.port
    slow = Slow(tmp_path / "data", port, server.password, "always", 0)
    process = slow._spawn()
    try:
        with limiter_at(slow.url()) as limiter:
            eventually(lambda: limiter.acquire("a") and limiter.state().outage == "loading", interval_s=0.001)
            eventually(lambda: limiter.acquire("a").granted, timeout_s=20)
            assert limiter.state().up
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("password", ["", ":wrong@"])
def test_a_wrong_password_is_a_loud_configuration_error(
    server: Valkey, password: str, caplog: pytest.LogCaptureFixture
) -> None:
    with limiter_at(f"redis://{password}127.0.0.1:{server.port}/0") as limiter:
        verdict = limiter.acquire("a")
        assert (verdict.granted, verdict.level) == (False, "unavailable")
        assert limiter.state().outage == "authentication"
    assert any(record.levelname == "ERROR" and "authentication" in record.message for record in caplog.records)
    assert "wrong" not in caplog.text


def test_grace_ends(server: Valkey) -> None:
    with limiter_at(server.url(), grace_seconds=0.3, local_bucket="1000/s burst 1000") as limiter:
        limiter.acquire("a")
        server.kill()
        eventually(lambda: limiter.acquire("b", priority="bulk").level == "unavailable")
        assert limiter.acquire("c").source == "grace"
        eventually(lambda: limiter.acquire(f"user-{time.monotonic()}").level == "unavailable", interval_s=0.005)
        assert limiter.state().grace_left_s == 0
        server.restart()


def test_who_never_reached_redis_has_no_grace(server: Valkey) -> None:
    server.kill()
    with limiter_at(server.url()) as limiter:
        assert {limiter.acquire(f"user-{n}").level for n in range(20)} == {"unavailable"}
    server.restart()


def test_grace_gives_one_user_no_more_than_his_rate(server: Valkey) -> None:
    with limiter_at(server.url(), user_limit="1/hour burst 1", local_bucket="20/s burst 20") as limiter:
        limiter.acquire("somebody")
        server.kill()
        eventually(lambda: limiter.acquire("b", priority="bulk").level == "unavailable")
        assert sum(limiter.acquire("noisy").granted for _ in range(20)) == 1
        assert limiter.acquire("quiet").source == "grace"
        server.restart()


def test_where_none_pass_an_outage_lets_none_pass(server: Valkey) -> None:
    with limiter_at(server.url(), user_limit="0/s") as limiter:
        server.kill()
        assert limiter.acquire("a").level == "unavailable" or limiter.acquire("a").level == "user"
        assert limiter.acquire("a").level == "user"
        server.restart()


def test_loans_outlive_an_outage_and_are_charged_once(server: Valkey, admin: Redis) -> None:
    with limiter_at(server.url(), user_limit="1/hour burst 10", local_bucket="20/s burst 20") as limiter:
        limiter.acquire("somebody")
        eventually(lambda: limiter.state().loans == 0)
        server.freeze()  # what is sent now will be executed after the thaw, and its reply is lost
        assert limiter.acquire("a").source == "local"
        eventually(lambda: not limiter.state().up)
        server.thaw()
        eventually(lambda: limiter.state().up and limiter.state().loans == 0, timeout_s=5)
        assert sum(limiter.acquire("a").granted for _ in range(20)) == 9


def test_the_fallback_is_given_once_redis_is_back(server: Valkey) -> None:
    with limiter_at(server.url(), grace_seconds=0) as limiter:
        limiter.acquire("a")
        server.kill()
        eventually(lambda: limiter.acquire("b", priority="bulk").level == "unavailable")
        waiting = [Identity("b", "websocket", str(n)) for n in range(3)]
        limiter.fall_back(waiting)
        assert limiter.drain_fallback() == []
        limiter.fall_back(Identity("c", "websocket", str(n)) for n in range(20_000))
        assert limiter.state().fallback == 10_000
        server.restart()
        eventually(lambda: limiter.state().up, timeout_s=5)
        assert limiter.drain_fallback()[-1] == Identity("c", "websocket", "19999")
        assert limiter.drain_fallback() == []


def test_a_connection_that_the_server_closed_is_no_outage(server: Valkey, admin: Redis) -> None:
    with limiter_at(server.url()) as limiter:
        limiter.acquire("b", priority="bulk")
        for _, connection in enumerate(limiter._routes._first._idle):
            limiter._routes._first._idle[_] = (connection[0], 0.0)  # as if not used for long
        admin.client_kill_filter(_type="normal", skipme=True)
        assert limiter.acquire("b", priority="bulk").source == "shared"
        assert limiter.state().outages == 0


def test_lost_connections_are_not_counted_against_a_bound(server: Valkey, admin: Redis) -> None:
    """redis-py's pool stops at 100 connections made, the lost ones included."""
    with limiter_at(server.url()) as limiter:
        for _ in range(150):
            eventually(lambda: limiter.acquire("b", priority="bulk").level != "unavailable")
            admin.client_kill_filter(_type="normal", skipme=True)
        eventually(lambda: limiter.acquire("b", priority="bulk").level != "unavailable")


def test_replies_that_come_too_late_are_an_outage_and_their_loans_are_charged_once(server: Valkey) -> None:
    """The server is well and has done it; only nobody hears."""
    with contextlib.closing(Proxy(server.port)) as proxy:
        url = server.url().replace(f":{server.port}/", f":{proxy.port}/")
        with limiter_at(url, user_limit="1/hour burst 10", local_bucket="20/s burst 20") as limiter:
            limiter.acquire("somebody")
            eventually(lambda: limiter.state().loans == 0)
            proxy.hold(replies_only=True)
            assert limiter.acquire("a").source == "local"
            eventually(lambda: limiter.state().outage == "timeout")
            proxy.release()
            eventually(lambda: limiter.state().up and limiter.state().loans == 0)
            assert sum(limiter.acquire("a").granted for _ in range(20)) == 9
