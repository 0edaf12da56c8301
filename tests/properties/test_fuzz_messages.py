"""Whatever is in a message, a worker refuses it with an error it expects, or what it holds fits the rest."""

from __future__ import annotations

import json
from itertools import product
from typing import Any

import hiredis
from hypothesis import example, given
from hypothesis import strategies as st

from notifier.notification import Identity, Notification, Priority
from notifier.wire import Message, batch_from_kwargs, batch_to_kwargs, pack_meta, unpack
from tasks.notifications import checked
from tests.properties.anything import ODD_JSON, json_texts, json_values, nested, pairs, texts
from tests.properties.test_fuzz_notification import bounded

REFUSED = (AttributeError, KeyError, TypeError, ValueError)  # what NotificationTask.work expects
EXACT = 2**53
pack: Any = hiredis.pack_command  # its stub knows tuples of one only
HOUR_US = 3_600_000_000

fields: dict[str, st.SearchStrategy[Any]] = {
    "body": json_texts,
    "notification_id": st.just("n-1"),
    "channel": st.just("websocket"),
    "category": st.just("like"),
    "priority": st.sampled_from([str(priority) for priority in Priority]),
    "ttl_us": st.integers(0, HOUR_US),
    "collapse_key": st.just("") | st.just("key"),
    "not_before_us": st.integers(0, EXACT - 1),
    "chosen": st.booleans(),
    "accepted_us": st.integers(0, EXACT - 1),
    "epoch": st.just("") | st.just("e1"),
    "unledgered": st.booleans(),
    "again": st.booleans(),
    "payload": json_values,
    "of_a_newer_version": json_values,
}
mixed = {name: valid | valid | json_values for name, valid in fields.items()}
one = st.fixed_dictionaries({"user_id": st.just("ann") | json_values}, optional=mixed)
many = st.fixed_dictionaries(
    {"user_ids": json_values | st.lists(texts | json_values, max_size=4)},
    optional={"epochs": json_values | st.lists(texts, max_size=4), **mixed},
)


def usable(message: Message) -> bool:
    """Bounded, and of the types that scripts and rows take."""
    n = message.notification
    times = (n.ttl_us, n.not_before_us, message.accepted_us)
    flags = (n.chosen, message.unledgered, message.again)
    assert bounded(n)
    assert all(type(time_us) is int and 0 <= time_us < EXACT for time_us in times)
    assert all(type(flag) is bool for flag in flags)
    assert len(message.epoch) <= 64
    json.loads(n.body, parse_constant=lambda name: int("no JSON: " + name))
    pack(("EVALSHA", *n.identity, n.body, n.category, *times, message.epoch))
    return True


def refused_or_usable(kwargs: dict[str, Any]) -> Message | None:
    """None: refused."""
    try:
        message = checked(Message.from_kwargs(kwargs))
    except REFUSED:
        return None
    assert usable(message)
    return message


def test_every_pair_of_odd_fields_is_refused_or_usable() -> None:
    whole = {"user_id": "ann", "notification_id": "n-1", "body": "1", "accepted_us": 7}
    for fields_of_it in pairs(("user_id", *fields), ODD_JSON):
        for rest in ({}, whole):
            refused_or_usable({**rest, **fields_of_it})


@given(one)
@example({"user_id": "ann", "notification_id": "n-1", "body": "[" * 60_000})
@example({"user_id": "ann", "notification_id": "n-1", "body": '"\n"', "accepted_us": 7})
@example({"user_id": "ann", "notification_id": "n-1", "body": ":", "accepted_us": 7})
@example({"user_id": "ann", "notification_id": "n-1", "body": "[NaN]", "accepted_us": 7})
@example({"user_id": 7, "notification_id": "n-1", "body": "1", "accepted_us": 7})
@example({"user_id": "ann", "payload": nested(400)})
def test_one_is_refused_or_usable(kwargs: dict[str, Any]) -> None:
    message = refused_or_usable(kwargs)
    if message and message.accepted_us:
        sent = json.loads(json.dumps(message.to_kwargs()))
        assert checked(Message.from_kwargs(sent)) == message


def all_refused_or_usable(kwargs: dict[str, Any]) -> list[Message]:
    """Empty: refused, or to nobody."""
    try:
        messages = [checked(message) for message in batch_from_kwargs(kwargs)]
    except REFUSED:
        return []
    assert isinstance(kwargs["user_ids"], list)
    assert len(messages) == len(kwargs["user_ids"])
    assert all(usable(message) for message in messages)
    return messages


def test_every_pair_of_odd_fields_of_many_is_refused_or_usable() -> None:
    whole = {
        "user_ids": ["ann", "bob"],
        "epochs": ["e1", "e2"],
        "notification_id": "n-1",
        "body": "1",
        "accepted_us": 7,
    }
    for odd in pairs(("user_ids", "epochs", *fields), ODD_JSON):
        all_refused_or_usable({**whole, **odd})
    for user, epoch in product(ODD_JSON, ODD_JSON):
        all_refused_or_usable({**whole, "user_ids": [user, "ann"], "epochs": [epoch, "e1"]})


@given(many)
@example({"user_ids": "ann", "payload": 1})
@example({"user_ids": {"ann": 1}, "payload": 1})
def test_many_are_refused_or_usable(kwargs: dict[str, Any]) -> None:
    messages = all_refused_or_usable(kwargs)
    if messages and messages[0].accepted_us:
        sent = json.loads(json.dumps(batch_to_kwargs(messages)))
        assert [checked(message) for message in batch_from_kwargs(sent)] == messages


names = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=30)


@given(names, names, names, names, st.text(max_size=30), st.text(max_size=30), st.text(max_size=60))
def test_what_redis_keeps_of_one_reads_back(
    user_id: str, channel: str, notification_id: str, category: str, key: str, error: str, body: str
) -> None:
    n = Notification(user_id, body, notification_id, channel, category, Priority.BULK, 7, key, 8, True)
    assert unpack(Identity(user_id, channel, notification_id), f"{pack_meta(n, error)}\n{body}") == (n, error)
