"""Event streams, read marks, presence, half-open connections, drain, several gateways, and what nobody may do."""

from __future__ import annotations

import base64
import contextlib
import json
import logging
import os
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from redis import Redis
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection

from notifier.embedded.valkey import Valkey
from notifier.gateway.presence import online
from notifier.redis import keys
from notifier.redis.client import connect as connect_redis
from notifier.settings import Settings
from tests.gateway import Events, Running, Writer, payloads, receive
from tests.support import eventually

SECRET = "a secret of the tests, 32 characters"


@pytest.fixture
def settings(valkey: Valkey) -> Settings:
    return Settings(redis_url=valkey.url(), secret=SECRET)


@pytest.fixture
def gateway(settings: Settings) -> Iterator[Running]:
    with Running(settings).running() as running:
        running.wait_until_ready()
        yield running


@pytest.fixture
def writer(valkey: Valkey) -> Writer:
    return Writer(valkey.url())


@pytest.fixture
def redis(valkey: Valkey) -> Iterator[Redis]:
    with contextlib.closing(connect_redis(valkey.url(), 2.0)) as client:
        yield client


def read_event(connection: ClientConnection) -> dict[str, Any]:
    message = receive(connection)
    while message.get("type") != "read":
        message = receive(connection)
    return {name: message[name] for name in ("read_id", "unread")}


def close_code(connection: ClientConnection) -> int:
    with pytest.raises(ConnectionClosed) as closed:
        while True:
            connection.recv(timeout=10)
    return closed.value.rcvd.code if closed.value.rcvd else 1006


# Event streams


def test_event_stream_starts_with_hello_and_resumes_by_last_event_id(gateway: Running, writer: Writer) -> None:
    first = writer.send("ann", "a\nb")
    events = Events(gateway, "ann")
    assert events.response.headers["content-type"] == "text/event-stream"
    assert events.event()["event"] == "hello"
    event = events.event()
    assert (event["id"], json.loads(event["data"])["payload"]) == (first, "a\nb")
    second = writer.send("ann")
    assert events.event()["id"] == second
    events.close()
    third = writer.send("ann")
    again = Events(gateway, "ann", second)
    assert json.loads(again.event()["data"])["recovered"] is True
    assert again.event()["id"] == third
    again.close()


def test_event_stream_of_an_expired_token_says_so_and_ends(gateway: Running) -> None:
    events = Events(gateway, "ann", token=gateway.token("ann", ttl_s=1))
    assert events.event()["event"] == "hello"
    assert json.loads(events.event()["data"])["code"] == 4001
    assert events.event() == {}


def test_event_stream_is_refused_like_a_websocket(gateway: Running) -> None:
    assert gateway.get("/sse").status == 401
    assert json.loads(gateway.get("/sse").text)["error"] == "token_missing"
    assert gateway.get("/sse", {"Authorization": f"Bearer {gateway.token('ann')}", "Origin": "null"}).status == 403


def test_event_stream_that_is_left_is_noticed(gateway: Running, writer: Writer, redis: Redis) -> None:
    events = Events(gateway, "ann")
    events.event()
    assert online(redis, ["ann"]) == {"ann"}
    events.close()
    eventually(lambda: online(redis, ["ann"]) == set())


def test_event_stream_that_nobody_reads_is_let_go(
    gateway: Running, writer: Writer, redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """With all that it never took; the other tab of the same user is not delayed."""
    writer._length = 1_000
    frozen = Events(gateway, "ann")
    frozen.event()
    with gateway.connect("ann") as other:
        receive(other)
        for _ in range(200):
            writer.send("ann", "x" * 50_000)
        assert len(payloads(other, 200)) == 200
    eventually(lambda: online(redis, ["ann"]) == set())
    eventually(lambda: not gateway.server.server_state.connections)
    frozen.close()
    assert caplog.text == ""


# Read marks


def test_reading_in_one_tab_tells_the_others(gateway: Running, writer: Writer) -> None:
    ids = [writer.send("ann") for _ in range(3)]
    with gateway.connect("ann") as one, gateway.connect("ann") as two, gateway.connect("bob") as other:
        assert (receive(one)["unread"], receive(two)["unread"], receive(other)["unread"]) == (3, 3, 0)
        one.send(json.dumps({"type": "read", "id": ids[1]}))
        assert read_event(one) == read_event(two) == {"read_id": ids[1], "unread": 1}
        two.send(json.dumps({"type": "read", "id": ids[0]}))  # behind the mark: it stays
        two.send(json.dumps({"type": "read", "id": "99999999999999-0"}))  # beyond the feed: up to its end
        assert read_event(one) == {"read_id": ids[2], "unread": 0}
    writer.send("ann")
    with gateway.connect("ann") as again, gateway.connect("bob") as other:
        hello = receive(again)
        assert (hello["read_id"], hello["unread"]) == (ids[2], 1)
        assert receive(other)["read_id"] == "0-0"


def test_read_mark_expires_with_the_feed_and_outlives_none(gateway: Running, writer: Writer, redis: Redis) -> None:
    last = writer.send("ann")
    with gateway.connect("ann") as connection:
        connection.send(json.dumps({"type": "read", "id": last}))
        read_event(connection)
    assert 0 < int(redis.ttl(keys.user_key("read", "ann", "websocket"))) <= 604_800
    redis.delete(keys.user_key("feed", "ann", "websocket"))
    with gateway.connect("ann") as connection:
        assert receive(connection)["read_id"] == "0-0"


def test_read_mark_is_told_again_after_the_connection_to_redis_was_lost(
    gateway: Running, writer: Writer, redis: Redis
) -> None:
    """What was read in another tab meanwhile would be missed else."""
    last = writer.send("ann")
    with gateway.connect("ann") as connection:
        payloads(connection, 1)
        redis.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
        assert read_event(connection) == {"read_id": "0-0", "unread": 1}
        connection.send(json.dumps({"type": "read", "id": last}))
        assert read_event(connection) == {"read_id": last, "unread": 0}


def test_feed_that_cannot_be_read_is_tried_again(gateway: Running, writer: Writer, redis: Redis) -> None:
    key = keys.user_key("feed", "ann", "websocket")
    redis.set(key, "not a stream")
    with gateway.connect("ann") as connection:
        with pytest.raises(TimeoutError):
            connection.recv(timeout=0.3)
        redis.delete(key)
        assert receive(connection)["type"] == "hello"
        writer.send("ann", "after all")
        assert payloads(connection, 1) == ["after all"]


def test_client_is_closed_rather_than_kept_in_silence_when_sending_fails(
    gateway: Running, writer: Writer, redis: Redis
) -> None:
    """Here by an entry that is none of ours."""
    key = keys.user_key("feed", "ann", "websocket")
    redis.xadd(key, {"x": "y"})
    with gateway.connect("ann") as connection:
        assert close_code(connection) == 1011
    redis.delete(key)
    with gateway.connect("ann") as connection:
        assert receive(connection)["type"] == "hello"


# Presence and half-open connections


def test_presence_spans_gateways_and_ends_with_the_last_tab(gateway: Running, settings: Settings, redis: Redis) -> None:
    assert online(redis, []) == set()
    with Running(settings).running() as second:
        second.wait_until_ready()
        with gateway.connect("ann") as one, second.connect("ann") as two, second.connect("böb"):
            receive(one)
            receive(two)
            eventually(lambda: online(redis, ["ann", "böb", "eve"]) == {"ann", "böb"})
            one.close()
            assert online(redis, ["ann"]) == {"ann"}
        eventually(lambda: online(redis, ["ann", "böb", "eve"]) == set())


def frozen_client(gateway: Running, user_id: str) -> socket.socket:
    """Shakes hands, and never reads again."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    client.connect(("127.0.0.1", gateway.port))
    client.sendall(
        f"GET /ws HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
        f"Sec-WebSocket-Key: {base64.b64encode(os.urandom(16)).decode()}\r\n"
        f"Authorization: Bearer {gateway.token(user_id)}\r\n\r\n".encode()
    )
    assert client.recv(12) == b"HTTP/1.1 101"
    return client


@pytest.mark.slow
@pytest.mark.parametrize("unsent", [0, 60, 200])
def test_half_open_connection_is_found_and_let_go(
    settings: Settings, writer: Writer, redis: Redis, unsent: int
) -> None:
    """Also with buffers full of what it never took (60: the transport's, 200: ours too): dropped, not waited for."""
    with Running(settings, ping_s=0.5).running() as gateway:
        gateway.wait_until_ready()
        frozen = frozen_client(gateway, "ann")
        with gateway.connect("bob") as alive, contextlib.closing(frozen):
            receive(alive)
            eventually(lambda: online(redis, ["ann"]) == {"ann"})
            for _ in range(unsent):
                writer.send("ann", "x" * 50_000)
            eventually(lambda: online(redis, ["ann", "bob"]) == {"bob"})
            writer.send("bob", "still here")
            assert payloads(alive, 1) == ["still here"]


# Drain


def test_drain_tells_every_client_to_come_back_and_ends_soon(settings: Settings, writer: Writer) -> None:
    running = Running(settings)
    with contextlib.ExitStack() as stack:
        gateway = stack.enter_context(running.running())
        gateway.wait_until_ready()
        stack.enter_context(contextlib.closing(frozen_client(gateway, "frozen")))
        clients = [stack.enter_context(gateway.connect(f"user-{n}")) for n in range(30)]
        for client in clients:
            receive(client)
        events = Events(gateway, "ann")
        events.event()
        gateway.server.should_exit = True
        assert {close_code(client) for client in clients} == {1012}
        assert json.loads(events.event()["data"])["code"] == 1012
        events.close()
        eventually(lambda: not running.alive)  # the frozen one holds nobody up


# Several gateways


def test_each_tab_gets_each_once_whatever_gateway_it_is_on(
    gateway: Running, settings: Settings, writer: Writer
) -> None:
    with Running(settings).running() as second:
        second.wait_until_ready()
        with gateway.connect("ann") as one, second.connect("ann") as two, second.connect("ann") as three:
            for tab in (one, two, three):
                receive(tab)
            for _ in range(30):
                writer.send("ann")
            for tab in (one, two, three):
                assert payloads(tab, 30) == list(range(1, 31))
                with pytest.raises(TimeoutError):
                    tab.recv(timeout=0.1)


# What nobody may do


@pytest.mark.parametrize("victim", ["bob", "ann:x", "9:websocket:ann", "ann\n", "*", "{0001}"])
def test_nobody_reads_the_feed_of_another(gateway: Running, writer: Writer, victim: str) -> None:
    secret = writer.send(victim, "not for ann")
    tries = [
        {"type": "read", "id": secret},
        {"type": "read", "id": secret, "user_id": victim, "sub": victim},
        {"type": "subscribe", "user_id": victim},
    ]
    for last_id in (None, "0-0", secret):
        with gateway.connect("ann", last_id) as connection:
            assert receive(connection)["unread"] == 0
            for said in tries:
                with contextlib.suppress(ConnectionClosed):
                    connection.send(json.dumps(said))
            writer.send(victim, "not for ann either")
            with contextlib.suppress(ConnectionClosed, TimeoutError):
                while True:
                    assert "not for ann" not in str(connection.recv(timeout=0.2))
    with gateway.connect(victim) as connection:
        assert receive(connection)["unread"] == 4


@pytest.mark.parametrize(
    "said", ["", "{}", "[]", "nonsense", '{"type":"read"}', '{"type":"read","id":"$"}', "[" * 4_000]
)
def test_nonsense_from_a_client_ends_its_connection(gateway: Running, said: str) -> None:
    with gateway.connect("ann") as connection:
        connection.send(said)
        assert close_code(connection) == 1008


def test_binary_and_floods_from_a_client_end_its_connection(gateway: Running) -> None:
    with gateway.connect("ann") as connection:
        connection.send(b"\0\1")
        assert close_code(connection) == 1008
    with gateway.connect("ann") as connection:
        with contextlib.suppress(ConnectionClosed):
            for _ in range(100):
                connection.send('{"type":"ping"}')
        assert close_code(connection) == 1008


def test_ping_is_answered(gateway: Running) -> None:
    with gateway.connect("ann") as connection:
        receive(connection)
        connection.send('{"type":"ping"}')
        assert receive(connection) == {"type": "pong"}


def test_no_token_and_no_payload_in_any_log(
    gateway: Running, writer: Writer, valkey: Valkey, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    logging.getLogger("websockets").setLevel(logging.WARNING)  # the test's own client
    token = gateway.token("ann")
    with gateway.connect("ann", token=token) as connection:
        receive(connection)
        writer.send("ann", "canary payload")
        payloads(connection, 1)
        with contextlib.closing(connect_redis(valkey.url(), 2.0)) as client:
            client.publish(keys.user_key("feed", "ann", "websocket"), "no push: canary payload")
        connection.send("canary payload")
        close_code(connection)
    gateway.get(f"/ws?token={token}")
    gateway.get(f"/sse?token={token}")
    assert "no push" in caplog.text
    assert "canary" not in caplog.text
    assert token not in caplog.text


def test_metrics_count_clients_messages_and_refusals(gateway: Running, writer: Writer) -> None:
    with gateway.connect("ann") as connection:
        receive(connection)
        gateway.get("/sse")
        text = gateway.get("/metrics").text
    assert 'notifier_gateway_clients{transport="websocket"} 1.0' in text
    assert 'notifier_gateway_refused_total{kind="token_missing"}' in text
    assert "notifier_gateway_sent_total" in text
