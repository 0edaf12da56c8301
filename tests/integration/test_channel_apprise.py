"""Apprise against a real receiver on loopback, by Apprise's own service for any HTTP server."""

from __future__ import annotations

import json
import time

import pytest
from apprise import Apprise

from notifier.channels import Delivery, Failed, Outcome, RetryAt, Sent
from notifier.channels.addresses import Addresses
from notifier.channels.apprise import AppriseChannel, text_of
from notifier.channels.breaker import FAILURES, Breakers
from notifier.settings import Settings
from tests.receiver import Receiver, a_delivery, says
from tests.support import free_port


def channel(*addresses: str, services: str = "") -> AppriseChannel:
    lookup = Addresses([lambda _user, _channel: list(addresses)])
    return AppriseChannel(Settings(apprise_services=services), lookup, Breakers())


def one(made: AppriseChannel, delivery: Delivery | None = None) -> Outcome:
    (outcome,) = made.deliver([delivery or a_delivery(channel="apprise")])
    return outcome


def test_title_and_body_arrive(hook: Receiver) -> None:
    delivery = a_delivery(payload={"title": "Order <7>", "body": "is *on* its way \u2713"}, channel="apprise")
    assert one(channel(f"json://127.0.0.1:{hook.port}/hook"), delivery) == Sent()
    (request,) = hook.requests
    sent = json.loads(request.body)
    assert (sent["title"], sent["message"]) == ("Order <7>", "is *on* its way \u2713")


@pytest.mark.parametrize(("payload", "title", "body"), [
    ("hello", "", "hello"), ({"text": "t", "message": "m"}, "", "t"), ({"body": 7, "message": "m"}, "", "m"),
    ({"title": "only"}, "only", "only"), ({"a": 1}, "", '{"a":1}'), ([1], "", "[1]"), (None, "", "null"),
    ("", "", '""'), ({"title": ["x"], "body": "b"}, "", "b"),
])  # fmt: skip
def test_how_a_payload_is_read(payload: object, title: str, body: str) -> None:
    assert text_of(a_delivery(payload=payload)) == (title, body)


def test_a_digest_tells_of_the_others() -> None:
    assert text_of(a_delivery(payload="hello", digest='{"count":27}')) == ("", "hello\n(and 26 more)")


@pytest.mark.parametrize("status", [400, 404, 500, 503])
def test_what_a_service_did_not_take_is_tried_again(hook: Receiver, status: int) -> None:
    hook.script = says(status)
    assert one(channel(f"json://127.0.0.1:{hook.port}/")) == RetryAt("json did not take it")


def test_a_service_that_does_not_answer_ends_with_the_batch(hook: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("notifier.channels.apprise.BATCH_S", 0.5)
    hook.script = lambda _request, _connection: time.sleep(60)
    made = channel(f"json://127.0.0.1:{hook.port}/?rto=50&cto=50&retry=9")
    outcomes = made.deliver([a_delivery(channel="apprise") for _ in range(40)])
    assert {type(outcome) for outcome in outcomes} == {RetryAt}
    assert len({outcome.error for outcome in outcomes if isinstance(outcome, RetryAt)}) >= 2  # some were not begun


@pytest.mark.parametrize(
    "url", ["nosuch://host", "not a url", "", "slack://too-few", "json://", "\x00", "json://\ud800"]
)
def test_what_is_no_apprise_url_fails_for_good(url: str) -> None:
    assert isinstance(one(channel(url)), Failed)


def test_only_the_services_that_are_allowed(hook: Receiver) -> None:
    url = f"json://127.0.0.1:{hook.port}/"
    assert one(channel(url, services="JSON, mailto")) == Sent()
    answer = one(channel(url, services="mailto"))
    assert isinstance(answer, Failed)
    assert "NOTIFIER_APPRISE_SERVICES" in answer.error
    assert hook.connections == 1


def test_an_address_is_one_service(hook: Receiver) -> None:
    """Apprise reads several URLs out of one text: the allowed one would let in any other."""
    url = f"json://127.0.0.1:{hook.port}/"
    for address in (f"{url}, xml://127.0.0.1:{hook.port}/", f"{url} syslog://"):
        assert isinstance(one(channel(address, services="json")), Failed)
        assert isinstance(one(channel(address)), Failed)
    assert hook.requests == []


def test_what_one_address_took_is_not_sent_to_it_again_for_another(hook: Receiver) -> None:
    """There is no idempotency key that a service would know it by."""
    taken, dead = f"json://127.0.0.1:{hook.port}/", f"json://127.0.0.1:{free_port()}/"
    assert one(channel(taken, dead)) == one(channel(dead, taken)) == Sent()
    assert isinstance(one(channel(dead)), RetryAt)


def test_an_address_that_breaks_apprise_harms_no_other(hook: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    def add(target: Apprise, address: str) -> bool:
        if "bad" in address:
            raise ValueError(address)
        return real(target, address)

    real = Apprise.add
    monkeypatch.setattr(Apprise, "add", add)
    addresses = {"anna": "json://bad/", "bert": f"json://127.0.0.1:{hook.port}/"}
    made = AppriseChannel(Settings(), Addresses([lambda user, _: addresses[user]]), Breakers())
    outcomes = made.deliver([a_delivery(user, channel="apprise") for user in addresses])
    assert outcomes == [RetryAt("apprise: ValueError"), Sent()]


def test_nothing_secret_is_logged(hook: Receiver, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(1)
    caplog.set_level(1, logger="apprise")
    errors = []
    hook.script = says(500)
    for url in (
        f"json://user:pass-word@127.0.0.1:{hook.port}/path-token",
        "slack://path-token",
        "nosuch://u:pass-word@h",
    ):
        answer = one(channel(url), a_delivery(payload="private-words", channel="apprise"))
        assert isinstance(answer, (Failed, RetryAt))
        errors.append(answer.error)
    assert len(hook.requests) == 1
    for secret in ("pass-word", "path-token", "private-words"):
        assert secret not in caplog.text + "".join(errors)


def test_an_address_that_fails_altogether_is_left_alone(hook: Receiver) -> None:
    hook.script = says(500)
    made = channel(f"json://127.0.0.1:{hook.port}/")
    for _ in range(FAILURES + 2):
        one(made)
    assert len(hook.requests) == FAILURES
    answer = one(made)
    assert isinstance(answer, RetryAt)
    assert answer.wait_s > 0
