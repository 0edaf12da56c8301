"""For the tests of an application: records what it sends, without any server.

With pytest: the fixture `sent_notifications`. Without: `with recording() as sent`. Everything up to the ledger is what
runs in production, so what is refused there is refused here, with the same error.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from datetime import datetime
from functools import cached_property
from typing import Any, cast, overload

from notifier import producer, runtime
from notifier.deadletters.outbox import Outbox
from notifier.deadletters.schema import instant
from notifier.ledger import Ledger
from notifier.licence import Accepted
from notifier.notification import Identity, Notification, Priority, clean_user_id
from notifier.pipeline import Pipeline
from notifier.runtime import Runtime
from notifier.settings import Settings
from notifier.wire import Message


@dataclass(frozen=True, slots=True)
class SentNotification:
    """One notification to one user, as production would have accepted it."""

    user_id: str
    payload: Any  # as it arrives: JSON, so tuples are lists
    notification_id: str
    channel: str
    category: str
    priority: Priority
    ttl: float | None  # seconds
    collapse_key: str | None
    not_before: datetime | None  # aware, UTC


class SentNotifications(Sequence[SentNotification]):
    """What was sent, in order. An identity (user, channel, notification id) that is sent again is there once."""

    def __init__(self) -> None:
        self._sent: dict[Identity, SentNotification] = {}
        self._lock = threading.Lock()

    @overload
    def __getitem__(self, index: int) -> SentNotification: ...
    @overload
    def __getitem__(self, index: slice) -> list[SentNotification]: ...
    def __getitem__(self, index: int | slice) -> SentNotification | list[SentNotification]:
        return list(self._sent.values())[index]

    def __len__(self) -> int:
        return len(self._sent)

    def __repr__(self) -> str:
        return "\n".join(["nothing was sent", *map(repr, self)][bool(self._sent) :])

    def matching(self, **expected: Any) -> list[SentNotification]:
        """Those whose fields have these values: `matching(user_id=42, category="like")`."""
        if unknown := set(expected) - {field.name for field in fields(SentNotification)}:
            raise TypeError(f"a sent notification has no field {', '.join(sorted(unknown))}")
        if "user_id" in expected:
            expected["user_id"] = clean_user_id(expected["user_id"])
        return [sent for sent in self if all(getattr(sent, name) == value for name, value in expected.items())]

    def one(self, **expected: Any) -> SentNotification:
        """The only one with these values. AssertionError, with all that was sent, if there are none or several."""
        found = self.matching(**expected)
        assert len(found) == 1, f"{len(found)} notifications match {expected}, not 1, of:\n{self!r}"
        return found[0]

    def none(self, **expected: Any) -> None:
        """AssertionError if any has these values."""
        found = self.matching(**expected)
        assert not found, f"{len(found)} notifications match {expected}, of:\n{self!r}"

    def clear(self) -> None:
        """Forget them all."""
        with self._lock:
            self._sent.clear()

    def _add(self, n: Notification) -> bool:
        sent = SentNotification(
            user_id=n.user_id,
            payload=json.loads(n.body),
            notification_id=n.notification_id,
            channel=n.channel,
            category=n.category,
            priority=n.priority,
            ttl=n.ttl_us / 1e6 if n.ttl_us else None,
            collapse_key=n.collapse_key or None,
            not_before=instant(n.not_before_us) if n.not_before_us else None,
        )
        with self._lock:
            return self._sent.setdefault(n.identity, sent) is sent


@contextmanager
def recording() -> Iterator[SentNotifications]:
    """Within, whatever this process sends is recorded, and nothing reaches a server. `send_in` waits for its commit."""
    sent = SentNotifications()
    publish, producer.publish = producer.publish, lambda *_: None
    try:
        with runtime.standing_in(_RecordingRuntime(sent)):
            yield sent
    finally:
        producer.publish = publish


class _RecordingRuntime(Runtime):
    """Its ledger, outbox and pipeline are lists. Whoever asks it for another part gets the real one."""

    stands_in = True

    def __init__(self, sent: SentNotifications) -> None:
        super().__init__(Settings())
        self._books = _Books(sent)

    @cached_property
    def ledger(self) -> Ledger:
        return cast(Ledger, self._books)

    @cached_property
    def outbox(self) -> Outbox:
        return cast(Outbox, self._books)

    @cached_property
    def pipeline(self) -> Pipeline:
        return cast(Pipeline, self._books)


class _Books:
    def __init__(self, sent: SentNotifications) -> None:
        self._sent = sent

    def accept(self, notifications: Sequence[Notification], *, in_rows: bool = False) -> list[Accepted]:
        """The ledger's."""
        now_us = int(time.time() * 1e6)
        accepted = []
        for seq, n in enumerate(notifications, len(self._sent) + 1):
            status = "deferred" if n.not_before_us > now_us else "queued"
            status = status if self._sent._add(n) else "duplicate"
            accepted.append(Accepted(status, n.priority, seq, now_us, ""))
        return accepted

    def handle(self, messages: Sequence[Message]) -> bool:
        """The pipeline's: eager mode, and tasks called as functions."""
        self.accept([message.notification for message in messages])
        return True

    def write(self, connection: object, notifications: Sequence[Notification]) -> None:
        """The outbox's: the application's test database need not have the table."""

    def close(self) -> None:
        """Nothing to let go of."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"sent_notifications records what is sent, and no more: {name!r} needs real servers")
