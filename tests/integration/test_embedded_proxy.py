"""The proxy of the fault tests, before a real Valkey."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from redis import Redis
from redis.exceptions import ConnectionError, TimeoutError

from notifier.embedded.valkey import Valkey
from notifier.lab.proxy import Proxy
from notifier.redis.client import connect
from tests.support import eventually


@pytest.fixture
def proxy(valkey: Valkey) -> Iterator[Proxy]:
    """A proxy before the state server."""
    with Proxy(valkey.port) as proxy:
        yield proxy


@pytest.fixture
def client(valkey: Valkey, proxy: Proxy) -> Iterator[Redis]:
    """A client through the proxy, without retries."""
    client = connect(valkey.url().replace(f":{valkey.port}/", f":{proxy.port}/"), 0.3)
    yield client
    client.close()


def test_it_passes_on_what_is_said(client: Redis) -> None:
    client.set("key", b"v" * 300_000)
    assert client.get("key") == b"v" * 300_000


def test_a_cut_resets_connections_and_new_ones_work(client: Redis, proxy: Proxy) -> None:
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=5) as connection:
        connection.sendall(b"PING\r\n")
        assert connection.recv(100)
        proxy.cut()
        with pytest.raises(ConnectionResetError):
            connection.recv(100)
    assert client.ping()


def test_a_held_reply_is_lost_by_a_cut_though_the_request_was_done(client: Redis, proxy: Proxy, valkey: Valkey) -> None:
    client.ping()
    proxy.hold(replies_only=True)
    with pytest.raises(TimeoutError):
        client.incr("n")
    direct = Redis.from_url(valkey.url())
    assert direct.get("n") == b"1"
    proxy.cut()
    proxy.release()
    assert eventually(lambda: client.incr("n")) == 2
    direct.close()


def test_a_held_request_is_not_done_before_the_release(client: Redis, proxy: Proxy, valkey: Valkey) -> None:
    client.ping()
    proxy.hold()
    with pytest.raises(TimeoutError):
        client.incr("n")
    direct = Redis.from_url(valkey.url())
    assert direct.get("n") is None
    proxy.release()
    eventually(lambda: direct.get("n") == b"1")
    direct.close()


def test_it_refuses_until_the_release(client: Redis, proxy: Proxy) -> None:
    proxy.refuse()
    with pytest.raises(ConnectionError):
        client.ping()
    proxy.release()
    assert client.ping()
