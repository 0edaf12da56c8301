"""The contract of a channel, and how channels are found.

A channel is a class with a `name` and `deliver`, made without arguments, registered as an entry point:

    [project.entry-points."notifier.channels"]
    sms = "my_package:SmsChannel"

`deliver` gets a batch and gives one outcome for each, in order. It is called again after a crash, with the same
`idempotency_key`: pass it on. It must end within `lease_s` seconds. An exception counts as RetryAt for the whole batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from typing import NamedTuple, Protocol

from notifier.errors import SettingsError
from notifier.notification import Notification

WEBSOCKET = "websocket"  # the feed: delivered by the ledger's own script, no class


class Delivery(NamedTuple):
    """One notification to be delivered now. Times in microseconds."""

    notification: Notification
    accepted_us: int
    granted_us: int
    attempt: int  # 1 for the first
    digest: str = ""  # JSON object, where it stands for several: see docs/dead-letters.md

    @property
    def idempotency_key(self) -> str:
        """The same at every attempt; collision-free over users and channels."""
        n = self.notification
        return f"{len(n.channel)}:{n.channel}:{len(n.user_id)}:{n.user_id}:{n.notification_id}"


@dataclass(frozen=True, slots=True)
class Sent:
    """The other side has it."""


@dataclass(frozen=True, slots=True)
class Duplicate:
    """The other side had it already."""


@dataclass(frozen=True, slots=True)
class RetryAt:
    """Not now. `wait_s` is what the other side asked for, 0 if it did not say; `error` goes into the row."""

    error: str
    wait_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Failed:
    """Never: it parks and waits for a person."""

    error: str


Outcome = Sent | Duplicate | RetryAt | Failed


class Channel(Protocol):
    """What delivers to one kind of address."""

    name: str
    lease_s: float

    def deliver(self, batch: Sequence[Delivery]) -> list[Outcome]:
        """One outcome for each delivery, in order."""
        ...


@cache
def get(name: str) -> Channel:
    """The channel of that name. Raises SettingsError if none is installed."""
    from notifier.channels.console import ConsoleChannel

    if name == ConsoleChannel.name:
        return ConsoleChannel()
    for point in entry_points(group="notifier.channels", name=name):
        channel: Channel = point.load()()
        return channel
    raise SettingsError(f"channel {name!r} is not installed; installed: {', '.join(sorted(known()))}")


@cache
def known() -> frozenset[str]:
    """Names of all channels that a notification may name."""
    return frozenset({WEBSOCKET, "console", *(point.name for point in entry_points(group="notifier.channels"))})
