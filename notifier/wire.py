"""The wire format: task names, queues and the keyword arguments of a message. Names and arguments only grow."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from notifier.errors import InvalidNotification
from notifier.notification import Identity, Notification, Priority, clean_priority

SEND_NOTIFICATION = "notifier.send_notification"
SEND_NOTIFICATIONS = "notifier.send_notifications"
REPLAY_DEAD_LETTERS = "notifier.replay_dead_letters"
SWEEP_UNSETTLED = "notifier.sweep_unsettled"
PROBE = "notifier.probe"

QUEUE_OF = {priority: f"notifier.{priority}" for priority in Priority}
CONTROL = "notifier.control"
QUEUES = (*QUEUE_OF.values(), CONTROL)


@dataclass(frozen=True, slots=True)
class Message:
    """A notification as a worker holds it. Times are microseconds of state Redis (of the sender where unledgered)."""

    notification: Notification
    accepted_us: int = 0  # 0: sent by name, never accepted by a producer of ours
    epoch: str = ""  # of the ledger that accepted it
    unledgered: bool = False  # the ledger was down at accept
    again: bool = False  # redelivered or republished: its starts are counted

    @property
    def identity(self) -> Identity:
        """Of the notification."""
        return self.notification.identity

    def to_kwargs(self) -> dict[str, Any]:
        """The task's keyword arguments. What has its default is left out."""
        n = self.notification
        full: dict[str, Any] = {
            "user_id": n.user_id,
            "body": n.body,
            "notification_id": n.notification_id,
            **fields_of(n),
            "accepted_us": self.accepted_us,
            "epoch": self.epoch,
            "unledgered": self.unledgered,
            "again": self.again,
        }
        return {name: value for name, value in full.items() if value != _DEFAULTS.get(name)}

    @classmethod
    def from_kwargs(cls, kwargs: Mapping[str, Any], *, redelivered: bool = False) -> Self:
        """Read a message, ours or one sent by task name with a bare `payload`.

        Unknown arguments, of a newer version, are passed over. Raises InvalidNotification.
        """
        values = {**_DEFAULTS, **kwargs}
        if "body" not in kwargs:
            return cls(
                Notification.create(
                    kwargs.get("user_id"), kwargs.get("payload"), **{k: kwargs[k] for k in _CALL if k in kwargs}
                ),
                again=redelivered,
            )
        return cls(
            Notification(
                user_id=values["user_id"],
                body=values["body"],
                notification_id=values["notification_id"],
                channel=values["channel"],
                category=values["category"],
                priority=clean_priority(values["priority"]),
                ttl_us=values["ttl_us"],
                collapse_key=values["collapse_key"],
                not_before_us=values["not_before_us"],
                chosen=values["chosen"],
            ),
            accepted_us=values["accepted_us"],
            epoch=values["epoch"],
            unledgered=values["unledgered"],
            again=redelivered or values["again"],
        )


def batch_to_kwargs(messages: Sequence[Message]) -> dict[str, Any]:
    """One message to many: they differ in user and epoch (one a shard) only."""
    kwargs = messages[0].to_kwargs() | {"accepted_us": min(m.accepted_us for m in messages)}
    for name in ("user_id", "epoch"):
        kwargs.pop(name, None)
    return {"user_ids": [m.notification.user_id for m in messages], "epochs": [m.epoch for m in messages], **kwargs}


def batch_from_kwargs(kwargs: Mapping[str, Any], *, redelivered: bool = False) -> list[Message]:
    """The inverse of batch_to_kwargs. Raises InvalidNotification."""
    shared = {name: value for name, value in kwargs.items() if name not in ("user_ids", "epochs")}
    users = kwargs["user_ids"]
    if not isinstance(users, (list, tuple)):  # a str would be taken for one user a letter
        raise InvalidNotification("user_ids", f"must be a list, not {type(users).__name__}")
    epochs = kwargs.get("epochs") or [""] * len(users)
    if not users:
        return []
    if "body" not in kwargs:  # sent by name, with a bare payload: each is checked
        return [Message.from_kwargs({**shared, "user_id": user}, redelivered=redelivered) for user in users]
    first = Message.from_kwargs({**shared, "user_id": users[0]}, redelivered=redelivered)
    return [
        Message(first.notification.unchecked_to(user), first.accepted_us, epoch, first.unledgered, first.again)
        for user, epoch in zip(users, epochs, strict=True)
    ]


def parcel_to_kwargs(batches: Sequence[Sequence[Message]]) -> dict[str, Any]:
    """One message for several batches, each as in batch_to_kwargs. Read a batch at a time."""
    return {"batches": [batch_to_kwargs(messages) for messages in batches]}


def fields_of(n: Notification) -> dict[str, Any]:
    """All of a notification but identity's user and id, and body."""
    return {
        "channel": n.channel,
        "category": n.category,
        "priority": str(n.priority),
        "ttl_us": n.ttl_us,
        "collapse_key": n.collapse_key,
        "not_before_us": n.not_before_us,
        "chosen": n.chosen,
    }


_CALL = ("channel", "category", "notification_id", "priority", "ttl", "collapse_key")
_DEFAULTS: dict[str, Any] = {
    **fields_of(Notification("", "", "")),
    "accepted_us": 0,
    "epoch": "",
    "unledgered": False,
    "again": False,
}


def pack_meta(n: Notification, error: str = "") -> str:
    """What `bodies` keeps before the body until a row or an end has it: enough to make message or row again."""
    return json.dumps([n.category, str(n.priority), n.ttl_us, n.collapse_key, n.not_before_us, n.chosen, error])


def unpack(identity: Identity, packed: str) -> tuple[Notification, str]:
    """The notification, and the error of its last try, from `meta newline body`."""
    meta, _, body = packed.partition("\n")
    category, priority, ttl_us, collapse_key, not_before_us, chosen, error = json.loads(meta)
    notification = Notification(
        user_id=identity.user_id,
        body=body,
        notification_id=identity.notification_id,
        channel=identity.channel,
        category=category,
        priority=Priority(priority),
        ttl_us=ttl_us,
        collapse_key=collapse_key,
        not_before_us=not_before_us,
        chosen=chosen,
    )
    return notification, error
