"""The contract of a channel, and how channels are found.

A channel is a class with a `name` and `deliver`, made without arguments, registered as an entry point:

    [project.entry-points."notifier.channels"]
    sms = "my_package:SmsChannel"

`deliver` gets a batch and gives one outcome for each, in order. It is called again after a crash, with the same
`idempotency_key`: pass it on. It must end within `lease_s` seconds, and within the 8 s that a task may take. An
exception counts as RetryAt for the whole batch. A channel with an attribute `has_own_breakers = True` is called however
often it fails: it keeps breakers itself, say one for each host. See docs/channels.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from pkgutil import resolve_name
from typing import NamedTuple, Protocol

from notifier import metrics
from notifier.errors import ExtraMissing, NotifierError, SettingsError, ends_process
from notifier.notification import WEBSOCKET, Notification

MAX_LEASE_S = 300.0
BATCH_S = 5.5  # what our own take for a batch: a task is cut off at 8 s, and has more to do


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


def get(name: str) -> Channel:
    """The channel of that name. Raises SettingsError if it is not installed, is no channel or can never be made.

    One that could not be made now, for want of a server, say, is made when it is next asked for. What is sent until
    then waits.
    """
    try:
        return _made(name)
    except SettingsError as error:
        metrics.degraded("channel", error)
        raise
    except _NotNow as error:
        metrics.degraded("channel", error)
        return _Unmade(name, str(error))


class _NotNow(Exception):
    """A channel's class, or its module, raised what may pass."""


class _Unmade:
    """Stands for a channel that could not be made."""

    def __init__(self, name: str, problem: str) -> None:
        self.name, self.lease_s, self._problem = name, 15.0, problem

    def deliver(self, batch: Sequence[Delivery]) -> list[Outcome]:
        """Later."""
        return [RetryAt(self._problem) for _ in batch]


@cache
def _made(name: str) -> Channel:
    try:
        if name in _BUILT_IN:
            return _checked(name, resolve_name(_BUILT_IN[name])())
        for point in entry_points(group="notifier.channels", name=name):
            return _checked(name, point.load()())
    except NotifierError as error:
        raise SettingsError(f"channel {name!r}: {error}") from error
    except ModuleNotFoundError as error:
        if name in _BUILT_IN:
            raise SettingsError(str(ExtraMissing(f"channel {name!r}", name))) from error
        raise SettingsError(f"channel {name!r} cannot be imported: no module {error.name!r}") from error
    except BaseException as error:  # a plugin's: its text may hold anything
        if ends_process(error):
            raise
        problem = f"channel {name!r} cannot be made: {type(error).__name__}"
        if isinstance(error, (ImportError, AttributeError, TypeError, SyntaxError)):  # so it will be next time
            raise SettingsError(problem) from error
        raise _NotNow(problem) from error
    raise SettingsError(f"channel {name!r} is not installed; installed: {', '.join(sorted(known()))}")


def _checked(name: str, channel: Channel) -> Channel:
    lease_s = getattr(channel, "lease_s", None)
    if not isinstance(lease_s, (int, float)) or not 0 < lease_s <= MAX_LEASE_S:
        raise SettingsError(f"lease_s must be a number of seconds, over 0 and at most {MAX_LEASE_S}")
    if getattr(channel, "name", None) != name:
        raise SettingsError("its class has another name than its entry point")
    if not callable(getattr(channel, "deliver", None)):
        raise SettingsError("it has no method deliver")
    return channel


@cache
def known() -> frozenset[str]:
    """Names of all channels that a notification may name."""
    # WEBSOCKET is delivered by the ledger's own script: no class
    return frozenset({WEBSOCKET, *_BUILT_IN, *(point.name for point in entry_points(group="notifier.channels"))})


_BUILT_IN = {  # imported when first used; all but the console need the extra of their name
    "console": "notifier.channels.console:ConsoleChannel",
    "webhook": "notifier.channels.webhook:WebhookChannel",
    "apprise": "notifier.channels.apprise:AppriseChannel",
}
