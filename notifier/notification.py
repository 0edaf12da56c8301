"""The notification as it is accepted: validated once, at the call, and never changed on its way."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from typing import Any, NamedTuple, Self

from notifier.errors import InvalidNotification

WEBSOCKET = "websocket"  # the channel of who names none: a user's feed, which the gateway pushes
MAX_BODY_BYTES = 64 * 1024
MAX_USER_ID = 512
MAX_ID = 200
MAX_NAME = 64
MAX_IDENTITY_BYTES = 2_400  # of user and notification id as UTF-8: an index entry of PostgreSQL holds 2,704
MAX_DEPTH = 500
MAX_SPAN_S = 3_652 * 86_400  # ten years
EXACT = 2**53  # Lua's numbers are exact below


class Priority(StrEnum):
    """critical passes user limit and quota; bulk leaves half of every burst to the others."""

    CRITICAL = "critical"
    NORMAL = "normal"
    BULK = "bulk"


class Identity(NamedTuple):
    """What makes a notification one: keys, primary key, claims and idempotency key are made of it."""

    user_id: str
    channel: str
    notification_id: str


class _Marked:
    """Where Notification keeps a mark that is no field: a copy with another user or body does not have it."""

    __slots__ = ("_sound",)

    @property
    def sound(self) -> bool:
        """Whether create or to made it, and everything about it was checked."""
        return getattr(self, "_sound", False)


@dataclass(frozen=True, slots=True)
class Notification(_Marked):
    """One notification to one user. `body` is the payload as canonical JSON text; times are microseconds, 0 is none."""

    user_id: str
    body: str
    notification_id: str
    channel: str = WEBSOCKET
    category: str = "default"
    priority: Priority = Priority.NORMAL
    ttl_us: int = 0
    collapse_key: str = ""
    not_before_us: int = 0
    chosen: bool = False  # the caller chose the id, so it is remembered for the dedupe window

    @property
    def identity(self) -> Identity:
        """(user_id, channel, notification_id)"""
        return Identity(self.user_id, self.channel, self.notification_id)

    def to(self, user_id: object) -> Notification:
        """The same to another user, with the same id. Raises InvalidNotification."""
        made = self.unchecked_to(clean_recipient(user_id, self.notification_id))
        object.__setattr__(made, "_sound", self.sound)
        return made

    def unchecked_to(self, user_id: str) -> Notification:
        """The same, to a user id that was looked at, or will be by tasks.notifications.checked."""
        return Notification(user_id, self.body, self.notification_id, self.channel, self.category, self.priority,
                            self.ttl_us, self.collapse_key, self.not_before_us, self.chosen)  # fmt: skip

    @classmethod
    def create(
        cls,
        user_id: object,
        payload: object,
        *,
        channel: str = WEBSOCKET,
        category: str = "default",
        notification_id: object = None,
        priority: str = "normal",
        ttl: float | timedelta | None = None,
        collapse_key: str | None = None,
        not_before: datetime | None = None,
    ) -> Self:
        """Validate a call's arguments. Raises InvalidNotification, which names the argument but shows no payload."""
        identifier = new_id() if notification_id is None else _clean_id(notification_id)
        made = cls(
            user_id=clean_recipient(user_id, identifier),
            body=canonical_body(payload),
            notification_id=identifier,
            channel=clean_text("channel", channel, MAX_NAME),
            category=clean_text("category", category, MAX_NAME),
            priority=clean_priority(priority),
            ttl_us=_ttl_us(ttl),
            collapse_key="" if collapse_key is None else clean_text("collapse_key", collapse_key, MAX_ID),
            not_before_us=_instant_us(not_before),
            chosen=notification_id is not None,
        )
        object.__setattr__(made, "_sound", True)
        return made


def new_id() -> str:
    """A fresh notification id."""
    return str(uuid.uuid4())


def clean_user_id(user_id: object) -> str:
    """str, int or UUID, as a str of 1 to 512 characters."""
    if isinstance(user_id, bool) or not isinstance(user_id, (str, int, uuid.UUID)):
        raise InvalidNotification("user_id", f"must be a str, an int or a UUID, not {type(user_id).__name__}")
    text = user_id if isinstance(user_id, str) else _written("user_id", user_id)
    return clean_text("user_id", text, MAX_USER_ID)


def _written(argument: str, value: object) -> str:
    try:
        return str(int(value) if isinstance(value, int) else value)  # of a member of an enum the value, not the name
    except ValueError:  # Python writes no int of more than 4,300 digits
        raise InvalidNotification(argument, "is a number too long to be written") from None


def clean_recipient(user_id: object, notification_id: str) -> str:
    """A user id that fits into one identity with this notification id."""
    user = clean_user_id(user_id)
    if len(user.encode()) + len(notification_id.encode()) > MAX_IDENTITY_BYTES:
        raise InvalidNotification("user_id", f"is over {MAX_IDENTITY_BYTES:,} bytes together with notification_id")
    return user


def clean_identity(user_id: object, channel: object, notification_id: object) -> Identity:
    """The identity of one that was sent. Raises InvalidNotification."""
    identifier = _clean_id(notification_id)
    return Identity(clean_recipient(user_id, identifier), clean_text("channel", channel, MAX_NAME), identifier)


def canonical_body(payload: object) -> str:
    """The payload's one JSON text: ASCII, no spaces, the caller's key order. That text travels everywhere."""
    try:
        _check_shape(payload)
        body = json.dumps(payload, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    except InvalidNotification:
        raise
    except RecursionError:
        raise InvalidNotification("payload", f"is nested deeper than {MAX_DEPTH} levels") from None
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidNotification("payload", f"is not JSON: {_reason(error)}") from None
    if len(body) > MAX_BODY_BYTES:
        raise InvalidNotification("payload", f"is {len(body):,} bytes as JSON; at most {MAX_BODY_BYTES:,} are carried")
    return body


def check(n: Notification) -> None:
    """What create promises, of one that was made otherwise. Raises InvalidNotification."""
    check_fields(n)
    if canonical_body(parse_body(n.body)) != n.body:
        raise InvalidNotification("body", "is not JSON as Notification.create writes it; use that")
    if n.ttl_us > MAX_SPAN_S * 10**6 or n.not_before_us > (time.time() + MAX_SPAN_S) * 10**6:
        raise InvalidNotification("not_before" if n.not_before_us else "ttl", "is over ten years")


def check_fields(n: Notification) -> None:
    """All but that the body is JSON as we write it. Raises InvalidNotification."""
    for name, longest in (("notification_id", MAX_ID), ("channel", MAX_NAME), ("category", MAX_NAME)):
        clean_text(name, getattr(n, name), longest)
    for name in ("user_id", "notification_id", "channel", "category", "collapse_key", "body"):
        if type(getattr(n, name)) is not str:  # create takes a number, or a member of an enum, and makes a text of it
            raise InvalidNotification(name, f"must be a str, not {type(getattr(n, name)).__name__}")
    clean_recipient(n.user_id, n.notification_id)
    if n.collapse_key != "":
        clean_text("collapse_key", n.collapse_key, MAX_ID)
    clean_text("body", n.body, MAX_BODY_BYTES)
    if not isinstance(n.priority, Priority):
        raise InvalidNotification("priority", f"must be a Priority, not {type(n.priority).__name__}")
    for name, value in (("ttl_us", n.ttl_us), ("not_before_us", n.not_before_us)):
        if type(value) is not int or not 0 <= value < EXACT:
            raise InvalidNotification(name, f"must be an int from 0 to {EXACT - 1:,}")
    if type(n.chosen) is not bool:
        raise InvalidNotification("chosen", "must be true or false")


@lru_cache(maxsize=1)  # the recipients of a message share one body
def check_body(body: str) -> None:
    """That this is JSON, and one line of ASCII: it is spliced into frames and digests. Raises InvalidNotification."""
    if not body.isascii() or "\n" in body or "\r" in body:  # a line break would end a frame of an event stream
        raise InvalidNotification("body", "must be ASCII, on one line")
    parse_body(body)


def parse_body(body: str) -> Any:
    """The payload. Raises InvalidNotification."""
    try:
        return _JSON.decode(body)
    except RecursionError:
        raise InvalidNotification("body", "is nested too deep") from None
    except ValueError:  # its text quotes the body
        raise InvalidNotification("body", "is not JSON") from None


def _no_json(name: str) -> None:
    raise ValueError(name)


_JSON = json.JSONDecoder(parse_constant=_no_json)


def _reason(error: Exception) -> str:
    """The encoder's complaint, without any value of the payload in it."""
    if isinstance(error, TypeError):
        return f"{error}; send str, int, float, bool, None, list or dict"
    text = str(error)
    if "ircular" in text:
        return "it contains itself"
    if "Out of range" in text:
        return "NaN and Infinity have no JSON form; send None or a str"
    return "a number is too long to be written"


def _check_shape(payload: object) -> None:
    """Refuse keys that JSON would silently turn into strings, and nesting that readers cannot follow."""
    level: list[object] = [payload]
    depth, seen = 0, 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise InvalidNotification("payload", f"is nested deeper than {MAX_DEPTH} levels, or contains itself")
        below: list[object] = []
        for container in level:
            below.extend(child for child in _children(container) if isinstance(child, (dict, list, tuple)))
        seen += len(below)
        if seen > MAX_BODY_BYTES:  # two bytes a container: it cannot fit, or it contains itself
            raise InvalidNotification("payload", f"is over {MAX_BODY_BYTES:,} bytes as JSON, or contains itself")
        level = below


def _children(container: object) -> Iterator[object]:
    if isinstance(container, dict):
        for key, value in container.items():
            if not isinstance(key, str):
                raise InvalidNotification("payload", f"has a key of type {type(key).__name__}; JSON keys are strings")
            yield value
    elif isinstance(container, (list, tuple)):
        yield from container


def clean_text(argument: str, value: object, longest: int) -> str:
    """A str of 1 to `longest` characters that UTF-8 and PostgreSQL can hold."""
    if not isinstance(value, str):
        raise InvalidNotification(argument, f"must be a str, not {type(value).__name__}")
    if not 1 <= len(value) <= longest:
        raise InvalidNotification(argument, f"must have 1 to {longest} characters, has {len(value)}")
    if "\0" in value:
        raise InvalidNotification(argument, "must not contain NUL")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidNotification(argument, "contains a lone surrogate, which UTF-8 cannot say") from None
    return str.__str__(value)  # the value of a member of a (str, Enum), whose str() is its name


def _clean_id(value: object) -> str:
    return clean_text("notification_id", str(value) if isinstance(value, uuid.UUID) else value, MAX_ID)


def clean_priority(value: object) -> Priority:
    """A priority by its name."""
    if not isinstance(value, str):  # no look at its text: a thousand lists in one another have none
        raise InvalidNotification("priority", f"must be one of {', '.join(Priority)}, not {type(value).__name__}")
    try:
        return Priority(value)
    except ValueError:
        raise InvalidNotification("priority", f"must be one of {', '.join(Priority)}, not {value!r:.50}") from None


def _ttl_us(ttl: Any) -> int:
    if ttl is None:
        return 0
    seconds = ttl.total_seconds() if isinstance(ttl, timedelta) else ttl
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        raise InvalidNotification("ttl", f"must be seconds or a timedelta, not {type(ttl).__name__}")
    if not 0 < seconds <= MAX_SPAN_S:
        shown = _written("ttl", seconds)
        raise InvalidNotification("ttl", f"must be over 0 and at most ten years of seconds, not {shown:.50}")
    return max(1, int(seconds * 1_000_000))


def _instant_us(moment: Any) -> int:
    if moment is None:
        return 0
    if not isinstance(moment, datetime):
        raise InvalidNotification("not_before", f"must be an aware datetime, not {type(moment).__name__}")
    if moment.utcoffset() is None:
        raise InvalidNotification(
            "not_before", "is naive; add a time zone, e.g. datetime.now(UTC) + timedelta(hours=1)"
        )
    instant_us = int(moment.timestamp() * 1_000_000)
    if instant_us > (datetime.now(moment.tzinfo).timestamp() + MAX_SPAN_S) * 1_000_000:
        raise InvalidNotification("not_before", "is over ten years away")
    return max(0, instant_us)
