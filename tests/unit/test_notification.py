"""What delay() takes and what it refuses, by name and without showing the payload."""

from __future__ import annotations

import enum
import json
import math
import pickle
import uuid
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from notifier.errors import InvalidNotification, NotAccepted, NotifierError
from notifier.notification import MAX_BODY_BYTES, MAX_DEPTH, Notification, Priority, check, clean_recipient

SECRET = "canary-7f3a"

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


def nested(depth: int) -> list[Any]:
    outer: list[Any] = []
    for _ in range(depth - 1):
        outer = [outer]
    return outer


def cycle() -> dict[str, Any]:
    loop: dict[str, Any] = {"secret": SECRET}
    loop["self"] = loop
    return loop


def wide_cycle() -> list[Any]:
    loop: list[Any] = []
    loop.extend([loop] * 50)
    return loop


@pytest.mark.parametrize(
    ("given_id", "kept"), [("anna", "anna"), (42, "42"), (uuid.UUID(int=1), str(uuid.UUID(int=1)))]
)
def test_user_ids(given_id: object, kept: str) -> None:
    assert Notification.create(given_id, None).user_id == kept


@pytest.mark.parametrize("user_id", ["", "x" * 513, None, True, 1.5, b"anna", ["anna"], "a\0b", "\ud800"])
def test_bad_user_ids_are_refused_by_name(user_id: object) -> None:
    with pytest.raises(InvalidNotification, match=r"^user_id: ") as refused:
        Notification.create(user_id, None)
    assert refused.value.argument == "user_id"


@pytest.mark.parametrize(
    "payload",
    [
        {"a": math.nan, "secret": SECRET},
        [math.inf, SECRET],
        b"canary-7f3a",
        {"a": {SECRET}},
        datetime.now(UTC),
        uuid.uuid4(),
        {1: SECRET},
        {None: SECRET},
        cycle(),
        wide_cycle(),
        nested(MAX_DEPTH + 1),
        nested(100_000),
        10**5_000,
        SECRET * (MAX_BODY_BYTES // len(SECRET) + 1),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_not_json_or_too_large_is_refused_without_being_shown(payload: object) -> None:
    with pytest.raises(InvalidNotification, match=r"^payload: ") as refused:
        Notification.create("anna", payload)
    assert SECRET not in str(refused.value)
    assert len(str(refused.value)) < 200


def test_the_limits_themselves_are_accepted() -> None:
    assert len(Notification.create("anna", "x" * (MAX_BODY_BYTES - 2)).body) == MAX_BODY_BYTES
    assert json.loads(Notification.create("anna", nested(MAX_DEPTH)).body) == nested(MAX_DEPTH)


@given(json_values)
def test_the_body_says_exactly_what_was_said(payload: object) -> None:
    body = Notification.create("anna", payload).body
    assert body.isascii()
    assert json.dumps(json.loads(body)) == json.dumps(payload)


def test_kinds_of_one_json_value() -> None:
    class Colour(enum.StrEnum):
        RED = "red"

    assert Notification.create("anna", (1, Colour.RED, -0.0, 1e22)).body == '[1,"red",-0.0,1e+22]'


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("priority", "urgent"),
        ("priority", None),
        ("ttl", -1),
        ("ttl", 0),
        ("ttl", math.nan),
        ("ttl", math.inf),
        ("ttl", "1h"),
        ("ttl", True),
        ("ttl", timedelta(days=-1)),
        ("ttl", timedelta(days=5_000)),
        ("not_before", datetime(2030, 1, 1)),
        ("not_before", datetime.now(UTC) + timedelta(days=5_000)),
        ("not_before", 1_764_471_120),
        ("channel", ""),
        ("channel", 7),
        ("category", "x" * 65),
        ("notification_id", ""),
        ("notification_id", "x" * 201),
        ("notification_id", 7),
        ("collapse_key", "a\0"),
    ],
)
def test_bad_options_are_refused_by_name(argument: str, value: object) -> None:
    with pytest.raises(InvalidNotification, match=f"^{argument}: "):
        Notification.create("anna", None, **{argument: value})  # type: ignore[arg-type]


def test_options_are_kept() -> None:
    moment = datetime(2031, 5, 1, 12, tzinfo=UTC)
    n = Notification.create(
        "anna", 1, notification_id=uuid.UUID(int=7), priority="bulk", ttl=timedelta(minutes=1), not_before=moment
    )
    assert (n.notification_id, n.chosen, n.priority) == (str(uuid.UUID(int=7)), True, Priority.BULK)
    assert (n.ttl_us, n.not_before_us) == (60_000_000, int(moment.timestamp()) * 1_000_000)
    assert not Notification.create("anna", 1).chosen


@pytest.mark.parametrize(
    "error", [InvalidNotification("ttl", "is odd"), NotAccepted("n1", ["a", "b"]), NotAccepted("", ["a"], ["n1"])]
)
def test_errors_survive_pickling(error: NotifierError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), vars(copy)) == (type(error), str(error), vars(error))


def test_an_identity_fits_into_an_index_alone_and_in_a_batch() -> None:
    user_id, notification_id = "\U0001f600" * 512, "\U0001f600" * 128
    with pytest.raises(InvalidNotification, match=r"^user_id: is over 2,400 bytes"):
        Notification.create(user_id, None, notification_id=notification_id)
    with pytest.raises(InvalidNotification, match=r"^user_id: is over 2,400 bytes"):
        clean_recipient(user_id, notification_id)
    assert clean_recipient(user_id, "n1") == user_id


class Word(str, enum.Enum):  # noqa: UP042
    """Of the older kind, whose str() is its name."""

    SALES = "sales"


class Number(int, enum.Enum):
    OPS = 7


def test_a_member_of_an_enum_is_its_value() -> None:
    n = Notification.create(Word.SALES, 1, category=Word.SALES, collapse_key=Word.SALES, notification_id=Word.SALES)
    assert {*n.identity, n.category, n.collapse_key} == {"sales", "websocket"}
    assert all(type(text) is str for text in (*n.identity, n.category, n.collapse_key))
    assert Notification.create(Number.OPS, 1).user_id == "7"


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"body": "hello"}, "body: is not JSON"),
        ({"body": "[NaN]"}, "body: is not JSON"),
        ({"body": '{"a":\n1}'}, "body: is not JSON as Notification.create writes it"),
        ({"body": "[" * 600 + "]" * 600}, "payload: is nested deeper than 500 levels"),
        ({"category": Word.SALES}, "category: must be a str, not Word"),
        ({"ttl_us": 2**52}, "ttl: is over ten years"),
        ({"body": {"a": 1}}, "body: must be a str, not dict"),
        ({"user_id": 42}, "user_id: must be a str, not int"),
        ({"notification_id": 5}, "notification_id: must be a str, not int"),
        ({"priority": "critical"}, "priority: must be a Priority, not str"),
        ({"ttl_us": 1.5}, "ttl_us: must be an int from 0"),
    ],
)
def test_one_that_create_did_not_make_is_checked(fields: dict[str, Any], problem: str) -> None:
    made = Notification.create("anna", 1)
    check(made)
    other = replace(made, **fields)
    assert made.sound and made.to("bert").sound and not other.sound
    with pytest.raises(InvalidNotification, match=f"^{problem}"):
        check(other)


def test_the_same_goes_to_another_user() -> None:
    first = Notification.create("anna", {"a": 1}, notification_id="n1", priority="critical", ttl=5, collapse_key="k")
    assert first.to(42) == Notification.create("42", {"a": 1}, notification_id="n1", priority="critical", ttl=5,
                                               collapse_key="k")  # fmt: skip
    with pytest.raises(InvalidNotification, match=r"^user_id: must have 1 to 512 characters"):
        first.to("")
