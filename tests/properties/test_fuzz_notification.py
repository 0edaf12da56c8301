"""Whatever a call is given, it is refused by the argument's name or fits what the rest relies on."""

from __future__ import annotations

import json
import math
import pickle
from itertools import product
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from notifier.cli.send import _moment, _payload
from notifier.errors import InvalidNotification
from notifier.notification import (
    MAX_BODY_BYTES,
    MAX_ID,
    MAX_IDENTITY_BYTES,
    MAX_NAME,
    MAX_SPAN_S,
    MAX_USER_ID,
    Notification,
    Priority,
)
from tasks.options import translate
from tests.properties.anything import CANARY, ODD, json_texts, json_values, objects, pairs, texts

OPTIONS = ("channel", "category", "notification_id", "priority", "ttl", "collapse_key", "not_before")
good: dict[str, st.SearchStrategy[Any]] = {
    "channel": st.just("websocket"),
    "category": st.just("like"),
    "notification_id": st.none() | st.just("n-1"),
    "priority": st.sampled_from(Priority).map(str),
    "ttl": st.none() | st.floats(1e-6, MAX_SPAN_S),
    "collapse_key": st.none() | st.just("key"),
    "not_before": st.none(),
}
options = st.fixed_dictionaries({}, optional={name: objects | valid for name, valid in good.items()})


def bounded(n: Notification) -> bool:
    """What every part behind the call relies on."""
    names = ((n.user_id, MAX_USER_ID), (n.notification_id, MAX_ID), (n.channel, MAX_NAME), (n.category, MAX_NAME))
    return (
        all(1 <= len(text) <= longest and "\0" not in text and text.encode() for text, longest in names)
        and len(n.collapse_key) <= MAX_ID
        and len(n.user_id.encode()) + len(n.notification_id.encode()) <= MAX_IDENTITY_BYTES
        and n.body.isascii()
        and 1 <= len(n.body) <= MAX_BODY_BYTES
        and "\n" not in n.body
        and "\r" not in n.body
        and isinstance(n.priority, Priority)
        and 0 <= n.ttl_us <= MAX_SPAN_S * 10**6
        and 0 <= n.not_before_us < 2**53
    )


@given(objects | st.just("ann"), objects | st.just({"text": "hello"}), options)
def test_a_call_is_refused_by_name_or_fits(user_id: Any, payload: Any, given_options: dict[str, Any]) -> None:
    try:
        n = Notification.create(user_id, payload, **given_options)
    except InvalidNotification as error:
        assert error.argument in ("user_id", "payload", *OPTIONS)
        assert str(error).startswith(f"{error.argument}: ")
        assert len(str(error)) < 400
        assert str(pickle.loads(pickle.dumps(error))) == str(error)
    else:
        assert bounded(n)


@given(st.recursive(objects, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3)))
@example("x" * MAX_BODY_BYTES)
@example(math.nan)
@example({1, 2})
def test_a_refused_payload_is_not_shown(payload: Any) -> None:
    try:
        n = Notification.create("ann", {CANARY: [CANARY, payload]})
    except InvalidNotification as error:
        assert error.argument == "payload"
        assert CANARY not in str(error)
        assert error.__cause__ is None
    else:
        assert bounded(n)


@given(json_values)
def test_what_is_accepted_arrives_as_it_was_said(payload: Any) -> None:
    try:
        n = Notification.create("ann", payload)
    except InvalidNotification:
        return
    assert json.loads(n.body) == payload
    assert Notification.create("ann", json.loads(n.body)).body == n.body


CELERYS = ("countdown", "eta", "expires", "priority", "link", "queue")
celery_options = st.fixed_dictionaries({}, optional=dict.fromkeys(CELERYS, objects))


@given(options, celery_options, st.none() | texts)
def test_celerys_options_are_refused_by_name_or_become_ours(
    kwargs: dict[str, Any], given_options: dict[str, Any], task_id: str | None
) -> None:
    translated(kwargs, given_options, task_id)


def test_every_pair_of_odd_arguments_is_refused_by_name_or_fits() -> None:
    for given_options in pairs(OPTIONS, ODD):
        translated(given_options, {}, None)
    for given_options in pairs(CELERYS, ODD):
        translated({}, given_options, None)
    for name, option in product(OPTIONS, CELERYS):
        for value, other in product(ODD, ODD):
            translated({name: value}, {option: other}, "t-1")


def translated(kwargs: dict[str, Any], given_options: dict[str, Any], task_id: str | None) -> None:
    """Refused, or bounded."""
    try:
        n = Notification.create("ann", 1, **translate(dict(kwargs), task_id, given_options))
    except InvalidNotification as error:
        assert error.argument in (*OPTIONS, *given_options)
    else:
        assert bounded(n)


@given(json_texts)
def test_json_from_the_shell_is_read_or_refused_without_being_shown(text: str) -> None:
    with pytest.raises(InvalidNotification) as refused:
        _payload(f"{text}{CANARY}")
    assert CANARY not in str(refused.value)
    try:
        value = _payload(text if text != "-" else CANARY)
    except InvalidNotification as error:
        assert error.argument == "payload"
        assert len(str(error)) < 200
    else:
        if not (isinstance(value, float) and math.isnan(value)):
            assert json.loads(text) == value or "NaN" in text


@given(texts | st.datetimes(timezones=st.none() | st.timezones()).map(str))
def test_a_time_from_the_shell_is_read_or_refused(text: str) -> None:
    try:
        Notification.create("ann", 1, not_before=_moment(text))
    except InvalidNotification as error:
        assert error.argument == "not_before"


@pytest.mark.parametrize("name", ["user_id", "ttl", "priority", "notification_id", "payload"])
def test_a_number_longer_than_python_writes_is_refused_by_name(name: str) -> None:
    arguments: dict[str, Any] = {"user_id": "ann", "payload": 1, name: 10**5_000}
    with pytest.raises(InvalidNotification, match=f"^{name}: "):
        Notification.create(**arguments)


def test_the_checks_here_can_fail() -> None:
    n = Notification.create("ann", 1)
    assert bounded(n)
    assert not bounded(Notification("ann", "{\n}", "n-1"))
    with pytest.raises(AssertionError):
        assert bounded(n.unchecked_to("x" * 513))
