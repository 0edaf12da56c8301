"""Webhooks against a real receiver on loopback, which misbehaves in every way."""

from __future__ import annotations

import base64
import json
import logging
import socket
import time

import pytest
from standardwebhooks import Webhook

from notifier.channels import Failed, RetryAt, Sent
from tests.receiver import SECRET, Make, Receiver, a_delivery, answers, one, receiver, says
from tests.support import eventually

OTHER = "whsec_" + base64.b64encode(b"o" * 24).decode()


def test_the_reference_library_accepts_the_signature(hook: Receiver, make_webhook: Make) -> None:
    delivery = a_delivery("user \u00e9\r\nx-evil: 1", {"text": "caf\u00e9", "n": 1e22}, digest='{"count":3}')
    assert one(make_webhook(hook.url("/a%20b?c=d")), delivery) == Sent()
    (request,) = hook.requests
    assert request.line == "POST /a%20b?c=d HTTP/1.1"
    assert request.headers["host"] == f"127.0.0.1:{hook.port}"
    assert request.headers["content-type"] == "application/json"
    assert "x-evil" not in request.headers
    frame = Webhook(SECRET).verify(request.body, request.headers)
    assert frame == {
        "notification_id": delivery.notification.notification_id,
        "user_id": "user \u00e9\r\nx-evil: 1",
        "category": "default",
        "accepted_at": 1764471118.201,
        "payload": {"text": "caf\u00e9", "n": 1e22},
        "digest": {"count": 3},
    }
    assert b'"accepted_at":1764471118.201000,' in request.body


def test_another_attempt_has_the_same_id_and_body_and_another_user_does_not(hook: Receiver, make_webhook: Make) -> None:
    channel = make_webhook(hook.url())
    first = a_delivery("anna", id="like-7")
    channel.deliver([first, a_delivery("bert", id="like-7")])
    assert one(channel, first._replace(attempt=2)) == Sent()
    ids = [(json.loads(r.body)["user_id"], r.headers["webhook-id"], r.body) for r in hook.requests]
    assert len(set(ids)) == 2
    assert sorted(user for user, _, _ in ids) == ["anna", "anna", "bert"]


@pytest.mark.parametrize(("suffix", "setting", "verifies"), [
    ("", f"{OTHER}, {SECRET}", [OTHER, SECRET]),  # while a secret is replaced, either verifies
    (f"#{OTHER}", SECRET, [OTHER]),  # the address's own
    (f"#{OTHER}", None, [OTHER]),
])  # fmt: skip
def test_which_secrets_sign(
    hook: Receiver, make_webhook: Make, suffix: str, setting: str | None, verifies: list[str]
) -> None:
    assert one(make_webhook(hook.url("/x") + suffix, webhook_secret=setting)) == Sent()
    (request,) = hook.requests
    assert request.line == "POST /x HTTP/1.1"
    assert len(request.headers["webhook-signature"].split()) == len(verifies)
    for secret in verifies:
        Webhook(secret).verify(request.body, request.headers)


@pytest.mark.parametrize(("status", "outcome"), [
    (200, Sent), (202, Sent), (204, Sent), (299, Sent),
    (400, Failed), (401, Failed), (404, Failed), (410, Failed), (422, Failed), (300, Failed), (304, Failed),
    (408, RetryAt), (425, RetryAt), (429, RetryAt), (500, RetryAt), (503, RetryAt), (599, RetryAt), (999, RetryAt),
])  # fmt: skip
def test_what_a_status_means(hook: Receiver, make_webhook: Make, status: int, outcome: type) -> None:
    hook.script = says(status)
    answer = one(make_webhook(hook.url()))
    assert isinstance(answer, outcome)
    if not isinstance(answer, Sent):
        assert answer.error.startswith(f"127.0.0.1:{hook.port} answered {status}")  # type: ignore[union-attr]


@pytest.mark.parametrize(("header", "wait_s"), [
    ("Retry-After: 120", 120), ("retry-after:  7 ", 7), ("Retry-After: 99999999999", 86_400),
    ("Retry-After: -5", 0), ("Retry-After: soon", 0), ("Retry-After: 1e9", 0), ("Retry-After: ", 0),
    ("Retry-After: Wed, 21 Oct 2015 07:28:00 GMT", 0), ("Retry-After: Fri, 31 Dec 9999 23:59:59 GMT", 86_400),
    ("Retry-After: \xb2", 0), ("X: y", 0),
])  # fmt: skip
def test_retry_after_is_obeyed_within_bounds(hook: Receiver, make_webhook: Make, header: str, wait_s: float) -> None:
    hook.script = says(429, header)
    answer = one(make_webhook(hook.url()))
    assert isinstance(answer, RetryAt)
    assert answer.wait_s == wait_s


def test_credentials_are_sent_and_shown_nowhere(
    hook: Receiver, make_webhook: Make, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    url = f"http://user:pa%0d%0a%3Ass@127.0.0.1:{hook.port}/path-token?key=query-token#{OTHER}"
    payload = {"text": "private-words"}
    assert one(make_webhook(url), a_delivery(payload=payload)) == Sent()
    assert hook.requests[0].headers["authorization"] == "Basic " + base64.b64encode(b"user:pa\r\n:ss").decode()
    errors = []
    for script in (says(500), says(404), says(302), answers(b"garbage private-words\r\n\r\n")):
        hook.script = script
        answer = one(make_webhook(url), a_delivery(payload=payload))
        assert isinstance(answer, (Failed, RetryAt))
        errors.append(answer.error)
    shown = "\n".join([caplog.text, *errors])
    for secret in ("pa%0d", "path-token", "query-token", OTHER[6:], SECRET[6:], "private-words", "Basic "):
        assert secret not in shown


@pytest.mark.parametrize(("raw", "reason"), [
    (b"SSH-2.0-OpenSSH_9.2\r\n", "not HTTP"),
    (b"HTTP/1.1 two-hundred OK\r\n\r\n", "not HTTP"),
    (b"\x00" * 1_000 + b"\r\n\r\n", "not HTTP"),
    (b"HTTP/1.1 503 x\r\nRetry-After: 5\r\nRetry-After\r\n\r\n", "not HTTP"),
    (b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", "not HTTP"),
    (b"", ""),
])  # fmt: skip
def test_a_garbled_answer_is_tried_again(hook: Receiver, make_webhook: Make, raw: bytes, reason: str) -> None:
    def script(_: object, connection: socket.socket) -> None:
        connection.sendall(raw)
        connection.shutdown(socket.SHUT_RDWR)

    hook.script = script
    answer = one(make_webhook(hook.url()))
    assert isinstance(answer, RetryAt)
    assert reason in answer.error


@pytest.mark.parametrize("head", [b"HTTP/1.1 100 Continue\r\n\r\n", b"X-Filler: y\r\n", b"z"])
def test_an_answer_without_end_ends_at_the_deadline(hook: Receiver, make_webhook: Make, head: bytes) -> None:
    """Each part arrives soon after the one before, so no read ever times out by itself."""

    def drip(_: object, connection: socket.socket) -> None:
        if head.startswith(b"X"):
            connection.sendall(b"HTTP/1.1 200 OK\r\n")
        while True:
            connection.sendall(head)
            time.sleep(0.02)

    hook.script = drip
    answer = one(make_webhook(hook.url(), webhook_timeout=0.5))
    assert isinstance(answer, RetryAt)
    assert "did not answer within 0.5 s" in answer.error


def test_headers_without_end_are_not_kept(hook: Receiver, make_webhook: Make) -> None:
    def flood(_: object, connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\n")
        while True:
            connection.sendall(b"X-Filler: " + b"y" * 60_000 + b"\r\n")

    hook.script = flood
    assert one(make_webhook(hook.url())) == RetryAt(f"127.0.0.1:{hook.port}: its answer is not HTTP")


@pytest.mark.parametrize("pause_s", [0.0, 0.05])
def test_the_status_counts_and_the_body_is_left_unread_beyond_a_bound(
    hook: Receiver, make_webhook: Make, pause_s: float
) -> None:
    """An endless body, as fast as it can or dripping: it has said 200, so it has it."""
    sent = [0]
    gone: list[bool] = []

    def endless(_: object, connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n")
        try:
            while True:
                sent[0] += connection.send(b"x" * (65_536 if pause_s == 0 else 1))
                time.sleep(pause_s)
        except OSError:
            gone.append(True)
            raise

    hook.script = endless
    assert one(make_webhook(hook.url())) == Sent()
    eventually(lambda: gone, timeout_s=60)
    assert sent[0] < 64 * 2**20  # what sockets buffer, not what it would have sent


def test_what_was_taken_at_the_end_of_a_batch_was_taken(
    hook: Receiver, make_webhook: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its time is up while the body is being read: it has said 200, so it has it."""
    monkeypatch.setattr("notifier.channels.webhook.BATCH_S", 3.0)
    monkeypatch.setattr("notifier.channels.webhook.LATE_S", 60.0)
    monkeypatch.setattr("notifier.channels.outbound.BODY_S", 60.0)

    def late(_: object, connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n")
        time.sleep(3.5)
        connection.sendall(b"x")

    hook.script = late
    assert one(make_webhook(hook.url())) == Sent()


def test_several_addresses_of_one_user(hook: Receiver, make_webhook: Make) -> None:
    with receiver() as other:
        channel = make_webhook([hook.url(), other.url(), hook.url()])
        assert one(channel) == Sent()
        assert (len(hook.requests), len(other.requests)) == (1, 1)
        assert hook.requests[0].headers["webhook-id"] == other.requests[0].headers["webhook-id"]
        other.script = says(410)
        assert one(channel) == Sent()
        other.script = says(503, "Retry-After: 9")
        assert one(channel) == RetryAt(f"127.0.0.1:{other.port} answered 503", 9)
        hook.script = other.script = says(410)
        assert isinstance(one(channel), Failed)


def test_nothing_is_sent_unsigned(hook: Receiver, make_webhook: Make) -> None:
    for address in (hook.url(), hook.url() + "#top"):
        answer = one(make_webhook(address, webhook_secret=None))
        assert isinstance(answer, Failed)
        assert "whsec_" in answer.error or "NOTIFIER_WEBHOOK_SECRET" in answer.error
    assert hook.connections == 0
