"""Code of yours that hears what became of notifications: delivered, deferred, dropped, parked, digested, expired.

A hook is a function of one Event, registered as an entry point,

    [project.entry-points."notifier.hooks"]
    audit = "my_package:on_notification"

or with `add` in each process. It is called after the fact has been booked, in the process that booked it: at most once
for each fact, and not at all if that process dies in between. It must be quick; what it raises is counted and dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any, NamedTuple

from notifier import metrics
from notifier.errors import ends_process
from notifier.notification import Notification


@dataclass(frozen=True, slots=True)
class Event:
    """`what`: delivered, deferred, dropped, parked, digested or expired. `reason` as in the table, or "".

    A dropped one may be known by its identity only: category and payload are then empty.
    """

    what: str
    notification: Notification
    reason: str = ""


_NOTHING = frozenset({"gone", "ended", "late", "go", "blocked", "keep"})  # answers that book nothing
Hook = Callable[[Event], object]
_added: list[Hook] = []
_installed: list[Hook] | None = None


def add(hook: Hook) -> Hook:
    """Register a hook in this process. Usable as a decorator."""
    _added.append(hook)
    return hook


def remove(hook: Hook) -> None:
    """Take back what `add` registered."""
    _added.remove(hook)


def wanted() -> bool:
    """Whether there is any hook."""
    return bool(_added or _hooks())


def fire(events: Iterable[Event]) -> None:
    """Tell all hooks. Raises nothing of theirs."""
    for event in events:
        for hook in (*_hooks(), *_added):
            try:
                hook(event)
            except BaseException as error:  # somebody else's code: its text may hold a payload
                if ends_process(error):
                    raise
                metrics.degraded(f"hook_{getattr(hook, '__name__', 'unnamed')}", type(error).__name__)


class Booked(NamedTuple):
    """That the item at `place` of a call was booked as `what`, an Event's, for `reason`."""

    place: int
    what: str
    reason: str


def booked(script: str, extras: Sequence[Any], reply: Sequence[Any]) -> list[Booked]:
    """What a script of the ledger booked: `reply` is the time, then code and number of each item.

    `extras` begins with what each item was asked for: an end and a reason (book), or a reason (deny). What is parked
    without a number was so before.
    """
    found = []
    for k, (code, number) in enumerate(zip(reply[1::2], reply[2::2], strict=True)):
        what = code.decode()
        if what in _NOTHING or (what == "parked" and int(number) == 0):
            continue
        reason = ""
        if script == "book":
            what, reason = str(extras[k][0]), str(extras[k][1])
        elif what in ("deferred", "dropped", "parked"):
            reason = {"dropped": "max_waiting", "parked": "poison"}.get(what) or (
                str(extras[k][0]) if script == "deny" else "order"
            )
        found.append(Booked(k, what, "" if reason == "-" else reason))
    return found


def report(notifications: Sequence[Notification], found: Iterable[Booked]) -> None:
    """Tell all hooks what was booked."""
    fire(Event(what, notifications[place], reason) for place, what, reason in found)


def _hooks() -> list[Hook]:
    global _installed
    if _installed is None:
        found: list[Hook] = []
        for point in entry_points(group="notifier.hooks"):
            try:
                found.append(point.load())
            except Exception as error:
                metrics.degraded(f"hook_{point.name}", f"cannot be loaded: {type(error).__name__}")
        _installed = found  # only now: another thread would miss those that are still being loaded
    return _installed
