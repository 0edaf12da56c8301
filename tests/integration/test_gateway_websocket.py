"""A real gateway on a real Valkey: resume, gaps, lost connections, expiry, limits."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from notifier.embedded.valkey import Valkey
from notifier.gateway.auth import make_token
from notifier.gateway.server import WebSocketProtocol
from notifier.settings import Settings
from tests.gateway import Running, Writer, payloads, receive
from tests.support import eventually

SECRET = "a secret of the tests, 32 characters"


def settings_for(server: Valkey, **others: object) -> Settings:
    return Settings(redis_url=server.url(), secret=SECRET, **others)


@pytest.fixture
def gateway(valkey: Valkey) -> Iterator[Running]:
    with Running(settings_for(valkey)).running() as running:
        running.wait_until_ready()
        yield running


@pytest.fixture
def writer(valkey: Valkey) -> Writer:
    return Writer(valkey.url())


def test_hello_then_history_then_pushes(gateway: Running, writer: Writer) -> None:
    first = writer.send("ann", {"text": "ä"})
    with gateway.connect("ann") as connection:
        assert receive(connection) == {
            "type": "hello",
            "recovered": False,
            "last_id": "0-0",
            "read_id": "0-0",
            "unread": 1,
            "counted_to": first,
        }
        frame = receive(connection)
        assert frame == {
            "id": first,
            "notification_id": "n1",
            "seq": 1,
            "category": "like",
            "accepted_at": 1764471120.123456,
            "granted_at": 1764471120.125001,
            "payload": {"text": "ä"},
        }
        writer.send("ann", "pushed")
        assert payloads(connection, 1) == ["pushed"]


def test_resume_by_last_id(gateway: Running, writer: Writer) -> None:
    ids = [writer.send("ann") for _ in range(5)]
    with gateway.connect("ann", ids[2]) as connection:
        hello = receive(connection)
        assert (hello["recovered"], hello["last_id"]) == (True, ids[2])
        assert payloads(connection, 2) == [4, 5]
    for _ in range(60):
        writer.send("ann")
    with gateway.connect("ann", ids[2]) as connection:
        assert receive(connection)["recovered"] is False
        assert payloads(connection, 50) == list(range(16, 66))
    with gateway.connect("ann", "99999999999999-0") as connection:
        hello = receive(connection)
        assert (hello["recovered"], hello["last_id"]) == (False, "0-0")
        assert payloads(connection, 1) == [16]


def test_several_tabs_get_each_push_once(gateway: Running, writer: Writer) -> None:
    with gateway.connect("ann") as one, gateway.connect("ann") as two, gateway.connect("bob") as other:
        for connection in (one, two, other):
            receive(connection)
        for _ in range(20):
            writer.send("ann")
        assert payloads(one, 20) == payloads(two, 20) == list(range(1, 21))
        writer.send("bob", "for bob")
        assert payloads(other, 1) == ["for bob"]


def test_lost_push_is_read_from_the_feed(gateway: Running, writer: Writer) -> None:
    with gateway.connect("ann") as connection:
        receive(connection)
        writer.send("ann")
        writer.send("ann", publish=False)
        writer.send("ann")
        assert payloads(connection, 3) == [1, 2, 3]


def test_tab_that_leaves_and_returns_gets_each_once_in_order(gateway: Running, writer: Writer) -> None:
    """1,000 are sent while the tab connects again and again; the feed is long enough for what it misses meanwhile."""
    writer._length = 1_000
    total, got = 1_000, list[int]()

    def send() -> None:
        for _ in range(total):
            writer.send("ann")
            time.sleep(0.002)  # the pace of the test, nothing is decided by it

    sender = threading.Thread(target=send)
    sender.start()
    last_id, connections = "0-0", 0
    while len(got) < total:
        connections += 1
        with gateway.connect("ann", last_id) as connection:
            assert receive(connection)["recovered"] is True
            leave_at = time.monotonic() + 0.1
            while len(got) < total and time.monotonic() < leave_at:
                try:
                    frame = receive(connection, 0.05)
                except TimeoutError:
                    continue
                got.append(frame["payload"])
                last_id = frame["id"]
    sender.join()
    assert got == list(range(1, total + 1))
    assert connections > 5


@pytest.mark.parametrize("how", ["kill", pytest.param("freeze", marks=pytest.mark.slow)])
def test_lost_redis_connection_skips_nothing_and_repeats_nothing(
    fresh_valkey: Callable[..., Valkey], how: str, caplog: pytest.LogCaptureFixture
) -> None:
    server = fresh_valkey(aof="always")
    writer = Writer(server.url())
    with Running(settings_for(server)).running() as gateway:
        gateway.wait_until_ready()
        with gateway.connect("ann") as connection:
            receive(connection)
            writer.send("ann")
            assert payloads(connection, 1) == [1]
            if how == "kill":
                server.kill()
            else:
                server.freeze()
            eventually(lambda: "no connection to state Redis" in caplog.text)
            assert gateway.get("/readyz").status == 503
            assert gateway.get("/healthz").status == 200
            if how == "kill":
                with pytest.raises(InvalidStatus, match="503"), gateway.connect("bob"):
                    pass
                server.restart()
            else:
                server.thaw()
            writer.send("ann")
            writer.send("ann")
            assert payloads(connection, 2, timeout_s=15) == [2, 3]
            gateway.wait_until_ready()
            writer.send("ann")
            assert payloads(connection, 1) == [4]


def test_what_the_feed_no_longer_keeps_is_named_a_gap(fresh_valkey: Callable[..., Valkey]) -> None:
    server = fresh_valkey(aof="always")
    with Running(settings_for(server, feed_length=3)).running() as gateway:
        gateway.wait_until_ready()
        with gateway.connect("ann") as connection:
            receive(connection)
            writer = Writer(server.url(), length=3)
            last = writer.send("ann")
            assert payloads(connection, 1) == [1]
            for _ in range(5):
                writer.send("ann", publish=False)
            writer.send("ann")
            assert receive(connection) == {"type": "gap", "last_id": last}
            assert payloads(connection, 3) == [5, 6, 7]


def test_expired_token_ends_the_socket(gateway: Running) -> None:
    with gateway.connect("ann", token=gateway.token("ann", ttl_s=1)) as connection:
        receive(connection)
        with pytest.raises(ConnectionClosed) as closed:
            connection.recv(timeout=10)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 4001


def test_refusals_come_before_the_handshake_and_are_no_errors(
    gateway: Running, caplog: pytest.LogCaptureFixture
) -> None:
    cases: dict[int, Any] = {
        401: {"token": make_token("x" * 40, "ann", 60)},
        403: {"headers": {"Origin": "https://evil.example"}},
        400: {"last_id": "$"},
    }
    for status, options in cases.items():
        with pytest.raises(InvalidStatus) as refused, gateway.connect("ann", **options):
            pass
        assert refused.value.response.status_code == status
        assert b'"error"' in (refused.value.response.body or b"")
    assert gateway.get("/healthz").status == 200  # what the server had to say of them, it has said by now
    assert [record for record in caplog.records if record.name.startswith("uvicorn")] == []


def test_a_connection_that_has_ended_leaves_nothing_behind(gateway: Running) -> None:
    """Not even until the garbage collector comes: gateways hold thousands."""

    def left() -> int:
        return sum(type(each) is WebSocketProtocol for each in gc.get_objects())

    gc.collect()
    before = left()
    gc.disable()
    try:
        for _ in range(5):
            with gateway.connect("ann") as connection:
                receive(connection)
        eventually(lambda: left() <= before)
    finally:
        gc.enable()


def test_token_by_subprotocol_and_never_by_query(gateway: Running) -> None:
    url, token = f"ws://127.0.0.1:{gateway.port}/ws", gateway.token("ann")
    with connect(url, subprotocols=["notifier.v1", f"bearer.{token}"], proxy=None) as connection:  # type: ignore[list-item]
        assert connection.subprotocol == "notifier.v1"
        assert receive(connection)["type"] == "hello"
    query = f"?token={token}&access_token={token}"
    with pytest.raises(InvalidStatus, match="401"), connect(url + query, proxy=None):
        pass


def test_a_plain_get_of_the_websocket_is_told_what_it_is(gateway: Running) -> None:
    answer = gateway.get("/ws")
    assert answer.status == 426
    assert answer.headers["upgrade"] == "websocket"
    assert "connect with ws://" in answer.text


def test_slow_client_is_closed_and_the_others_are_not_delayed(gateway: Running, writer: Writer) -> None:
    """The slow one's kernel buffers fill, then its bounded buffer; it resumes afterwards."""
    writer._length = 2_000
    with gateway.connect("ann", max_queue=1) as slow, gateway.connect("ann", max_queue=None) as good:
        receive(good)
        hello = receive(slow)
        total = 400
        for _ in range(total):
            writer.send("ann", "x" * 50_000)
        assert len(payloads(good, total)) == total
        last_id, got = hello["last_id"], 0
        with pytest.raises(ConnectionClosed):
            while True:
                last_id, got = receive(slow)["id"], got + 1
        assert got < total
    with gateway.connect("ann", last_id) as again:
        assert receive(again)["recovered"] is True
        assert len(payloads(again, total - got)) == total - got


def test_too_many_connections_of_one_user(gateway: Running) -> None:
    with ExitStack() as stack:
        for _ in range(32):
            stack.enter_context(gateway.connect("ann"))
        with pytest.raises(InvalidStatus, match="429"), gateway.connect("ann"):
            pass
        with gateway.connect("bob") as connection:
            assert receive(connection)["type"] == "hello"


def test_oversized_client_message_ends_the_connection(gateway: Running) -> None:
    with gateway.connect("ann") as connection:
        receive(connection)
        connection.send("x" * 10_000)
        with pytest.raises(ConnectionClosed) as closed:
            connection.recv(timeout=10)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1009


def test_page_and_script_carry_a_strict_policy(gateway: Running) -> None:
    page = gateway.get("/")
    assert page.status == 200
    assert "<script>" not in page.text
    assert "style=" not in page.text
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert gateway.get("/notifier.js").headers["content-type"].startswith("text/javascript")
    assert gateway.get("/static/../app.py").status == 404
