"""Addresses come from a function of somebody else's: whatever it does, nothing is lost and the reason is clear."""

from __future__ import annotations

from asyncio import CancelledError

import pytest

from notifier.channels import Duplicate, Failed, Outcome, RetryAt, Sent
from notifier.channels.addresses import MOST, REMEMBERED_S, Addresses, merged
from notifier.notification import Notification

NOTE = Notification.create("anna", 1, channel="webhook")


def of(*given: object) -> list[str] | Outcome:
    return Addresses([lambda _user, _channel, value=value: value for value in given]).of(NOTE)  # type: ignore[misc]


@pytest.mark.parametrize(("given", "addresses"), [
    ("https://a", ["https://a"]), (["https://a", "https://b"], ["https://a", "https://b"]), (("x",), ["x"]),
    (["x", "", "x"], ["x"]),
])  # fmt: skip
def test_what_may_be_given(given: object, addresses: list[str]) -> None:
    assert of(given) == addresses


@pytest.mark.parametrize("given", [None, "", [], [""], ()])
def test_no_address_parks_with_the_reason(given: object) -> None:
    assert of(given) == Failed("user has no address on channel webhook")


@pytest.mark.parametrize(("given", "problem"), [
    (7, "gave int"), ({"secret-url": 1}, "gave dict"), (b"secret-url", "gave bytes"),
    (["secret-url", 7], "a list with int"), (["secret-url" * 1_000], "an address of 10,000 characters"),
    ([f"secret-url{n}" for n in range(MOST + 1)], f"gave {MOST + 1} addresses"),
    (iter(["secret-url"]), "gave list_iterator"),
])  # fmt: skip
def test_what_cannot_be_used_is_tried_again_and_named_but_not_shown(given: object, problem: str) -> None:
    outcome = of(given)
    assert isinstance(outcome, RetryAt)
    assert problem in outcome.error
    assert "notifier.addresses" in outcome.error
    assert "secret-url" not in outcome.error


@pytest.mark.parametrize("error", [ConnectionError("postgresql://shop:password@db"), CancelledError()])
def test_an_error_is_tried_again_and_keeps_its_type_only(error: BaseException) -> None:
    def lookup(_user: str, _channel: str) -> object:
        raise error

    assert Addresses([lookup]).of(NOTE) == RetryAt(f"notifier.addresses: {type(error).__name__}")


def test_who_takes_an_address_off_the_list_takes_it_off_his_own() -> None:
    addresses = Addresses([lambda _user, _channel: ["first", "second"]])
    for _ in range(3):
        found = addresses.of(NOTE)
        assert isinstance(found, list)
        assert found.pop(0) == "first"


def test_without_any_function_it_waits_and_says_what_is_missing() -> None:
    outcome = Addresses().of(NOTE)
    assert isinstance(outcome, RetryAt)
    assert "docs/channels.md" in outcome.error


def test_the_first_that_knows_one_is_taken() -> None:
    assert of(None, "second", "third") == ["second"]


def test_addresses_are_remembered_for_a_while_and_their_lack_is_not() -> None:
    now_s = [0.0]
    given: list[object] = [None, "a", "b"]
    addresses = Addresses([lambda _user, _channel: given.pop(0)], clock=lambda: now_s[0])
    assert isinstance(addresses.of(NOTE), Failed)
    assert addresses.of(NOTE) == ["a"]
    now_s[0] = REMEMBERED_S - 1
    assert addresses.of(NOTE) == ["a"]
    now_s[0] = REMEMBERED_S
    assert addresses.of(NOTE) == ["b"]


def test_users_and_channels_are_told_apart_and_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("notifier.channels.addresses.REMEMBERED", 3)
    asked: list[tuple[str, str]] = []

    def lookup(user: str, channel: str) -> str:
        asked.append((user, channel))
        return f"{user}@{channel}"

    addresses = Addresses([lookup])
    for user, channel in [("anna", "mail"), ("anna", "sms"), ("bert", "sms"), ("cleo", "sms"), ("anna", "mail")]:
        assert addresses.of(Notification.create(user, 1, channel=channel)) == [f"{user}@{channel}"]
    assert len(asked) == 5  # the fourth pushed out the first


@pytest.mark.parametrize(("outcomes", "outcome"), [
    ([Sent()], Sent()), ([Sent(), Failed("x")], Sent()), ([Failed("x"), Duplicate()], Duplicate()),
    ([Failed("x"), Failed("y")], Failed("x")),
    ([Sent(), RetryAt("x", 3), RetryAt("y", 9), Failed("z")], RetryAt("y", 9)),
])  # fmt: skip
def test_what_becomes_of_one_to_several_addresses(outcomes: list[Outcome], outcome: Outcome) -> None:
    assert merged(outcomes) == outcome
