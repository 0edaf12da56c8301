"""The message form: read back as written, also from older and newer senders."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from notifier.notification import Identity, Notification, Priority
from notifier.redis.keys import identity_part, parse_identity, shard_of, user_part
from notifier.wire import Message, batch_from_kwargs, batch_to_kwargs, pack_meta, unpack

text = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=20)
notifications = st.builds(
    Notification, text, st.just('{"a":1}'), text, text, text, st.sampled_from(Priority), st.integers(0, 2**50), text
)


@given(notifications, st.integers(0, 2**53), st.booleans(), st.booleans())
def test_reads_back(n: Notification, accepted_us: int, unledgered: bool, again: bool) -> None:
    message = Message(n, accepted_us, "e1", unledgered, again)
    assert Message.from_kwargs(message.to_kwargs()) == message


@given(notifications, text)
def test_what_bodies_keep_reads_back(n: Notification, error: str) -> None:
    assert unpack(n.identity, f"{pack_meta(n, error)}\n{n.body}") == (n, error)


@given(notifications, st.lists(st.tuples(text, text), min_size=1, max_size=5))
def test_a_batch_reads_back(n: Notification, recipients: list[tuple[str, str]]) -> None:
    messages = [Message(replace(n, user_id=user), 7, epoch) for user, epoch in recipients]
    assert batch_from_kwargs(batch_to_kwargs(messages)) == messages


def test_arguments_of_a_newer_version_are_passed_over() -> None:
    kwargs = Message(Notification("anna", "1", "n1")).to_kwargs()
    assert Message.from_kwargs({**kwargs, "from_the_future": 1}).notification.user_id == "anna"


def test_a_bare_payload_sent_by_name_is_understood() -> None:
    message = Message.from_kwargs({"user_id": 7, "payload": {"__type__": "x"}, "category": "like"}, redelivered=True)
    assert (message.notification.user_id, message.notification.body) == ("7", '{"__type__":"x"}')
    assert (message.notification.category, message.accepted_us, message.again) == ("like", 0, True)


@given(text, text, text)
def test_identities_read_back(user_id: str, channel: str, notification_id: str) -> None:
    identity = Identity(user_id, channel, notification_id)
    assert parse_identity(identity_part(identity)) == identity


def test_keys_do_not_collide() -> None:
    assert user_part("b:c", "a") != user_part("c", "a:b")
    assert identity_part(Identity("a:b", "x", "c")) != identity_part(Identity("a", "x", "b:c"))


@given(text)
def test_a_shard_is_one_of_1024(user_id: str) -> None:
    assert 0 <= shard_of(user_id) < 1024
