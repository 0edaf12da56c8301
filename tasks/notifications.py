"""send_notification and send_notifications."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import lru_cache
from inspect import signature
from itertools import islice
from typing import Any, TypeVar

from celery import shared_task

from notifier.errors import InvalidNotification, InvalidRecipients
from notifier.notification import (
    EXACT,
    MAX_NAME,
    Notification,
    canonical_body,
    check_body,
    check_fields,
    clean_text,
    parse_body,
)
from notifier.wire import SEND_NOTIFICATION, SEND_NOTIFICATIONS, Message, batch_from_kwargs
from tasks.base import NotificationTask
from tasks.home import in_home_app

SLICE = 1_000  # recipients held in memory at a time, however many there are
T = TypeVar("T")


def _one(
    user_id: object,
    payload: object,
    *,
    channel: str = "websocket",
    category: str = "default",
    notification_id: object = None,
    priority: str = "normal",
    ttl: float | timedelta | None = None,
    collapse_key: str | None = None,
    not_before: datetime | None = None,
) -> Notification:
    """The call's arguments."""
    return Notification.create(
        user_id,
        payload,
        channel=channel,
        category=category,
        notification_id=notification_id,
        priority=priority,
        ttl=ttl,
        collapse_key=collapse_key,
        not_before=not_before,
    )


def _bound(name: str, args: Sequence[Any], kwargs: Mapping[str, Any], first: str) -> dict[str, Any]:
    """The arguments by name. Raises TypeError as a call of `name` would."""
    try:
        return signature(_one).bind(*args, **{"user_id" if k == first else k: v for k, v in kwargs.items()}).arguments
    except TypeError as error:
        raise TypeError(f"{name}(): {str(error).replace('user_id', first)}") from None


class SendNotification(NotificationTask):
    """Arguments: one user."""

    abstract = True

    def read_call(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[list[Notification]]:
        """One."""
        yield [_one(**_bound("send_notification", args, kwargs, "user_id"))]

    def read_message(self, args: Sequence[Any], kwargs: Mapping[str, Any], redelivered: bool) -> list[Message]:
        """One."""
        named = {"notification_id": self.request.id, **dict(zip(("user_id", "payload"), args, strict=False)), **kwargs}
        if "body" not in named and "payload" not in named:
            raise InvalidNotification("payload", "is missing")
        return [checked(Message.from_kwargs(named, redelivered=redelivered))]


class SendNotifications(NotificationTask):
    """Arguments: many users."""

    abstract = True

    def read_call(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[list[Notification]]:
        """One a recipient, all with the same id and body; of bulk priority, unless another is named."""
        named = {"priority": "bulk", **_bound("send_notifications", args, kwargs, "user_ids")}
        users = named.pop("user_id")
        if isinstance(users, (str, bytes, Mapping)) or not isinstance(users, Iterable):
            raise InvalidNotification("user_ids", f"must be a list of user ids, not {type(users).__name__}")
        shared = _one("-", **named)
        rejected: dict[int, str] = {}
        for found in _sliced(enumerate(users)):
            accepted = []
            for position, user in found:
                try:
                    accepted.append(shared.to(user))
                except InvalidNotification as error:
                    rejected[position] = str(error).removeprefix("user_id: ")
            if accepted:
                yield accepted
        if rejected:
            raise InvalidRecipients(shared.notification_id, rejected)

    def read_message(self, args: Sequence[Any], kwargs: Mapping[str, Any], redelivered: bool) -> list[Message]:
        """One a recipient, of one batch or of several. A batch that cannot be read spoils no other."""
        named = {"notification_id": self.request.id, **dict(zip(("user_ids", "payload"), args, strict=False)), **kwargs}
        if "batches" not in named:
            if "body" not in named and "payload" not in named:
                raise InvalidNotification("payload", "is missing")
            return _checked(named, redelivered)
        if not isinstance(named["batches"], list):
            raise InvalidNotification("batches", f"must be a list, not {type(named['batches']).__name__}")
        messages: list[Message] = []
        for batch in named["batches"]:
            with self.unreadable_is_loud():
                if "body" not in batch:  # a bare payload has no id of its own: it would get another at every delivery
                    raise InvalidNotification("body", "is missing")
                messages += _checked(batch, redelivered)
        return messages


def _checked(batch: Mapping[str, Any], redelivered: bool) -> list[Message]:
    return [checked(message) for message in batch_from_kwargs(batch, redelivered=redelivered)]


def checked(message: Message) -> Message:
    """The message, if the rest can rely on it, whoever wrote it. Raises InvalidNotification."""
    n = message.notification
    check_fields(n)
    if message.epoch != "":
        clean_text("epoch", message.epoch, MAX_NAME)
    if type(message.accepted_us) is not int or not 0 <= message.accepted_us < EXACT:
        raise InvalidNotification("accepted_us", f"must be an int from 0 to {EXACT - 1:,}")
    for name, flag in (("unledgered", message.unledgered), ("again", message.again)):
        if type(flag) is not bool:
            raise InvalidNotification(name, "must be true or false")
    if not message.accepted_us:  # no producer of ours made this text
        return replace(message, notification=replace(n, body=_rewritten(n.body)))
    check_body(n.body)
    return message


@lru_cache(maxsize=1)  # the recipients of a message share one body
def _rewritten(body: str) -> str:
    """A stranger's JSON text as we write it. Raises InvalidNotification."""
    return canonical_body(parse_body(body))


def _sliced(items: Iterable[T]) -> Iterator[list[T]]:
    rest = iter(items)
    while part := list(islice(rest, SLICE)):
        yield part


@shared_task(name=SEND_NOTIFICATION, base=SendNotification, bind=True)
def _send_notification(self: SendNotification, *args: Any, **kwargs: Any) -> None:
    """Deliver one notification, or defer it.

    Call: send_notification.delay(user_id, payload, *, channel="websocket", category="default", notification_id=None,
    priority="normal", ttl=None, collapse_key=None, not_before=None). Message: the arguments of wire.Message.
    """
    self.work(args, kwargs)


@shared_task(name=SEND_NOTIFICATIONS, base=SendNotifications, bind=True)
def _send_notifications(self: SendNotifications, *args: Any, **kwargs: Any) -> None:
    """Deliver one payload to many users; the recipients share the notification id.

    Call: send_notifications.delay(user_ids, payload, ...) with the options of send_notification, priority "bulk" unless
    named. `user_ids`: any iterable of any length. A recipient that cannot be spoils nobody else's: InvalidRecipients.
    """
    self.work(args, kwargs)


send_notification = in_home_app(SEND_NOTIFICATION)
send_notifications = in_home_app(SEND_NOTIFICATIONS)
