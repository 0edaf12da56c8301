"""Whom the webhook channel connects to, and for how long: a real receiver, real sockets."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections import Counter

import pytest

from notifier.channels import Failed, RetryAt, Sent
from notifier.channels.breaker import FAILURES
from notifier.channels.outbound import LOOKUPS, LOOKUPS_OF_A_DOMAIN
from tests.receiver import Make, Receiver, a_delivery, one, receiver, says
from tests.support import free_port


def test_a_redirect_is_not_followed_wherever_it_leads(hook: Receiver, make_webhook: Make) -> None:
    with receiver("127.0.0.2") as inside:
        for status in (301, 302, 303, 307, 308):
            hook.script = says(status, f"Location: {inside.url('/latest/meta-data')}")
            answer = one(make_webhook(hook.url(), webhook_allow_networks="127.0.0.1/32"))
            assert isinstance(answer, Failed)
            assert "redirect" in answer.error
            assert "meta-data" not in answer.error
        assert inside.connections == 0


@pytest.mark.parametrize("host", [
    "127.0.0.1", "localhost", "2130706433", "0x7f.1", "127.1", "[::1]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]",
    "0.0.0.0", "127.0.0.1.", "LOCALHOST", "[::]", "%31%32%37.0.0.1",
])  # fmt: skip
def test_this_machine_is_not_reached_by_default_however_it_is_spelt(
    hook: Receiver, make_webhook: Make, host: str
) -> None:
    answer = one(make_webhook(f"http://{host}:{hook.port}/", webhook_allow_networks=""))
    assert isinstance(answer, (Failed, RetryAt))  # RetryAt: where the resolver knows no such spelling
    if host in ("127.0.0.1", "localhost", "[::1]"):
        assert "public address" in answer.error
    assert hook.connections == 0


def test_a_name_that_changes_its_address_in_between_is_not_followed(
    hook: Receiver, make_webhook: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DNS rebinding: the first answer is permitted, later ones are another machine's."""
    lookups: list[str] = []
    real = socket.getaddrinfo

    def rebinding(host: str, port: int, *args: object, **kwargs: object) -> object:
        if host != "rebind.example.test":
            return real(host, port, *args, **kwargs)  # type: ignore[arg-type]
        lookups.append(host)
        address = "127.0.0.1" if len(lookups) == 1 else "127.0.0.2"
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))]

    monkeypatch.setattr(socket, "getaddrinfo", rebinding)
    with receiver("127.0.0.2", hook.port) as inside:
        channel = make_webhook(f"http://rebind.example.test:{hook.port}/", webhook_allow_networks="127.0.0.1/32")
        assert one(channel) == Sent()
        assert hook.requests[0].headers["host"] == f"rebind.example.test:{hook.port}"
        assert len(lookups) == 1  # looked up once, and connected to that answer
        hook.script = says(200, "Connection: close")
        one(channel)  # on the connection that is there; then it is closed
        answer = one(channel)
        assert len(lookups) == 2
        assert isinstance(answer, Failed)
        assert inside.connections == 0


def test_of_several_addresses_those_permitted_are_tried_in_turn(
    hook: Receiver, make_webhook: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def many(host: str, port: int, *args: object, **kwargs: object) -> object:
        found = ["10.0.0.1", "127.0.0.3", "127.0.0.1"]  # not permitted, nobody there, the receiver
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in found]

    monkeypatch.setattr(socket, "getaddrinfo", many)
    assert one(make_webhook(f"http://many.example.test:{hook.port}/")) == Sent()


@pytest.mark.parametrize("url", [
    "http://h\r\nx-evil: 1/", "http://127.0.0.1/\r\nx-evil: 1", "http://a b/", "http://", "//host/", "ftp://host/",
    "file:///etc/passwd", "gopher://host/", "unix:///x", "http://[::1", "http://host:port/", "http://host:99999/",
    "javascript:alert(1)", "not a url", "http://\u0000/", "https:///path", "http://\ud800/",
    "http://xn--/",
])  # fmt: skip
def test_what_is_no_good_url_fails_for_good_and_is_not_shown(make_webhook: Make, url: str) -> None:
    answer = one(make_webhook(url))
    assert isinstance(answer, Failed)
    assert answer.error.startswith("the address ")


def test_nobody_there_and_no_such_name_are_tried_again(make_webhook: Make) -> None:
    assert one(make_webhook(f"http://127.0.0.1:{(port := free_port())}/")) == RetryAt(
        f"127.0.0.1:{port}: connection refused"
    )
    answer = one(make_webhook("http://nowhere.invalid/"))
    assert answer == RetryAt("nowhere.invalid: its name could not be looked up")
    assert isinstance(one(make_webhook(f"http://{'a' * 64}.example/")), (RetryAt, Failed))


def test_a_resolver_that_hangs_costs_no_more_than_the_deadline_and_others_nothing(
    hook: Receiver, make_webhook: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, over = socket.getaddrinfo, threading.Event()

    def hanging(host: str, *args: object, **kwargs: object) -> object:
        if host.endswith(".example.test"):
            over.wait(60)
            raise socket.gaierror(socket.EAI_AGAIN, "Try again")
        return real(host, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "getaddrinfo", hanging)
    addresses = [f"http://h{n}.example.test/" for n in range(15)] + [hook.url()] * 5
    channel = make_webhook(lambda user, _channel: addresses[int(user)], webhook_timeout=0.5)
    outcomes = channel.deliver([a_delivery(str(n)) for n in range(20)])
    over.set()
    assert outcomes[0] == RetryAt("h0.example.test did not answer within 0.5 s")
    assert {type(outcome) for outcome in outcomes[:15]} == {RetryAt}
    assert outcomes[15:] == [Sent()] * 5


def test_a_name_server_that_hangs_leaves_room_for_names_of_others(
    hook: Receiver, make_webhook: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, over = Counter[str](), threading.Event()

    def lookup(host: str, port: int, *args: object, **kwargs: object) -> object:
        asked[host] += 1
        if ".slow.test" in host:
            over.wait(60)
            raise socket.gaierror(socket.EAI_AGAIN, "Try again")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]

    monkeypatch.setattr(socket, "getaddrinfo", lookup)
    addresses = [f"http://h{n // 2}.slow.test{'.' * (n // 2 % 2)}/" for n in range(2 * LOOKUPS + 2)]
    addresses += [f"http://h{n}.quick.test:{hook.port}/" for n in range(2 * LOOKUPS_OF_A_DOMAIN)]
    channel = make_webhook(lambda user, _channel: addresses[int(user)], webhook_timeout=1.0)
    outcomes = channel.deliver([a_delivery(str(n)) for n in range(len(addresses))])
    slow = [count for host, count in asked.items() if ".slow.test" in host]
    over.set()
    assert outcomes[-2 * LOOKUPS_OF_A_DOMAIN :] == [Sent()] * 2 * LOOKUPS_OF_A_DOMAIN
    assert slow == [1] * LOOKUPS_OF_A_DOMAIN


def test_international_names_go_out_in_ascii(
    hook: Receiver, make_webhook: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def lookup(host: str, port: int, *args: object, **kwargs: object) -> object:
        asked.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]

    monkeypatch.setattr(socket, "getaddrinfo", lookup)
    assert one(make_webhook(f"http://b\u00fccher.example:{hook.port}/\u00fc")) == Sent()
    assert asked == ["xn--bcher-kva.example"]
    assert hook.requests[0].line == "POST /%C3%BC HTTP/1.1"
    assert hook.requests[0].headers["host"] == f"xn--bcher-kva.example:{hook.port}"


def test_slow_hosts_hold_up_no_others_and_the_batch_ends(hook: Receiver, make_webhook: Make) -> None:
    with receiver() as slow:
        slow.script = lambda _request, _connection: time.sleep(60)
        addresses = {f"user{n}": slow.url() if n % 2 else hook.url() for n in range(40)}
        channel = make_webhook(lambda user, _channel: addresses[user], webhook_timeout=1.0)
        outcomes = channel.deliver([a_delivery(f"user{n}") for n in range(40)])
        assert all(outcome == Sent() for outcome in outcomes[::2])
        assert all(isinstance(outcome, RetryAt) for outcome in outcomes[1::2])
        assert len(hook.requests) == 20
        assert one(make_webhook(hook.url())) == Sent()
        assert channel.deliver([a_delivery("user0")]) == [Sent()]  # what was cut off left no connection taken


def test_the_batch_ends_however_many_hosts_are_slow(make_webhook: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("notifier.channels.webhook.BATCH_S", 1.0)
    with receiver() as slow:
        slow.script = lambda _request, _connection: time.sleep(60)
        outcomes = make_webhook(slow.url(), webhook_timeout=5.5).deliver([a_delivery() for _ in range(100)])
    errors = {outcome.error for outcome in outcomes if isinstance(outcome, RetryAt)}
    assert len(errors) == 2  # those that were cut off, and those that were not even begun
    assert len(outcomes) == 100


def test_a_host_that_fails_altogether_is_left_alone_and_others_are_not(hook: Receiver, make_webhook: Make) -> None:
    with receiver() as failing:
        failing.script = says(503)
        channel = make_webhook(lambda user, _channel: failing.url() if user == "anna" else hook.url())
        for _ in range(FAILURES + 3):
            assert isinstance(one(channel), RetryAt)
            assert one(channel, a_delivery("bert")) == Sent()
        assert len(failing.requests) == FAILURES
        answer = one(channel)
        assert isinstance(answer, RetryAt)
        assert 0 < answer.wait_s <= 5


def test_connections_are_kept_and_used_again(hook: Receiver, make_webhook: Make) -> None:
    channel = make_webhook(hook.url())
    for _ in range(5):
        assert one(channel) == Sent()
    assert hook.connections == 1
    assert len(hook.requests) == 5


def test_a_forked_process_has_connections_of_its_own(hook: Receiver, make_webhook: Make) -> None:
    channel = make_webhook(hook.url())
    assert one(channel) == Sent()
    pid = os.fork()
    if pid == 0:
        try:
            os._exit(0 if one(channel, a_delivery("bert")) == Sent() else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert one(channel) == Sent()
    assert hook.connections == 2


def test_the_environment_s_proxy_is_not_asked(
    hook: Receiver, make_webhook: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{free_port()}")
    assert one(make_webhook(hook.url())) == Sent()
