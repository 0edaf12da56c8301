"""What a user wants: categories he opted out of, hours in which he is not to be disturbed. A function of the team says.

It is a callable `(user_id) -> Preferences | None`, the one entry point of the group `notifier.preferences`,

    [project.entry-points."notifier.preferences"]
    shop = "shop.notifications:preferences"

or given to `use` in each worker. It is asked before a notification takes a token, and again whenever its row is due.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import NamedTuple, Protocol, TypeVar

from notifier import metrics
from notifier.errors import InvalidPreferences, ends_process
from notifier.licence import Denial, Reason
from notifier.notification import Priority
from notifier.quiet_hours import QuietHours

__all__ = ["Objection", "Preferences", "QuietHours", "asked", "objections", "use"]

GROUP = "notifier.preferences"
REMEMBERED = 10_000  # users of one process
MOST = 1_000  # opt-outs of one user
BATCH_S = 1.0  # the function is called for this long in a batch; who is left waits
RETRY_S = 5.0  # on average, where it failed
OPTED_OUT = "opted_out"


@dataclass(frozen=True, slots=True)
class Preferences:
    """Of one user. `opted_out`: categories, or (category, channel) where it is for one channel only.

    Raises InvalidPreferences, which names the field.
    """

    opted_out: AbstractSet[str | tuple[str, str]] = frozenset()
    quiet_hours: QuietHours | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.opted_out, AbstractSet):
            raise InvalidPreferences("Preferences.opted_out", f"must be a set, not {type(self.opted_out).__name__}")
        if len(self.opted_out) > MOST:
            raise InvalidPreferences("Preferences.opted_out", f"has {len(self.opted_out):,} entries; at most {MOST:,}")
        for entry in self.opted_out:
            names = entry if isinstance(entry, tuple) and len(entry) == 2 else (entry,)
            if not all(isinstance(name, str) and name for name in names):
                raise InvalidPreferences(
                    "Preferences.opted_out", "must hold categories and (category, channel) pairs, as non-empty str"
                )
        if not isinstance(self.quiet_hours, QuietHours | None):
            kind = type(self.quiet_hours).__name__
            raise InvalidPreferences("Preferences.quiet_hours", f"must be QuietHours or None, not {kind}")
        object.__setattr__(self, "opted_out", frozenset(self.opted_out))


Lookup = Callable[[str], Preferences | None]
L = TypeVar("L", bound=Lookup | None)


class Item(Protocol):
    """A notification or a row."""

    @property
    def user_id(self) -> str: ...
    @property
    def channel(self) -> str: ...
    @property
    def category(self) -> str: ...
    @property
    def priority(self) -> str: ...


class Objection(NamedTuple):
    """Why one may not go now: it is never to (`opted_out`), or may be tried again in `wait_us`."""

    reason: str
    wait_us: int = 0
    error: str = ""

    def denial(self, attempts: int = 0, last_error: str = "") -> Denial:
        """As the ledger takes it; `attempts` and `last_error` as they were."""
        return Denial(self.wait_us, 0, self.reason, attempts, self.error or last_error)


class Answers:
    """Asks the function, and remembers the last users' answers for a while. Safe to share between threads."""

    def __init__(self, find: Callable[[], object], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._find, self._clock = find, clock
        self._function: object = None
        self._known: OrderedDict[str, tuple[float, Preferences | None]] = OrderedDict()
        self._lock = threading.Lock()

    def objections(self, items: Sequence[Item], now_us: int, remembered_s: float) -> list[Objection | None]:
        """For each, None where it may go. `now_us`: the time, in microseconds since the epoch."""
        until_s = self._clock() + BATCH_S
        answers: dict[str, Preferences | _Problem | None] = {}
        found = []
        for item in items:
            if item.user_id not in answers:
                answers[item.user_id] = self._of(item.user_id, remembered_s, until_s)
            found.append(_objection(answers[item.user_id], item, now_us))
        if problems := [answer for answer in answers.values() if isinstance(answer, _Problem)]:
            metrics.degraded("preferences", f"{problems[0].text}; notifications of {len(problems)} users wait")
        return found

    def after_fork(self) -> None:
        """A thread that is not in this process may have held it."""
        self._lock = threading.Lock()

    def _of(self, user_id: str, remembered_s: float, until_s: float) -> Preferences | _Problem | None:
        with self._lock:
            asked_s, answer = self._known.get(user_id, (float("-inf"), None))
            if self._clock() < asked_s + remembered_s:
                self._known.move_to_end(user_id)
                return answer
        asked_s = self._clock()
        if asked_s >= until_s:
            return _Problem(f"{GROUP}: took over {BATCH_S:.0f} s for one batch")
        try:
            if self._function is None:  # loading an entry point takes longer than many a function
                self._function = self._find()
            answer = _ask(self._function, user_id)
        except (InvalidPreferences, _Unusable) as error:
            return _Problem(f"{GROUP}: {error}")
        except BaseException as error:  # the team's: its text may hold anything
            if ends_process(error):
                raise
            return _Problem(f"{GROUP}: {type(error).__name__}")
        with self._lock:
            self._known[user_id] = asked_s, answer
            self._known.move_to_end(user_id)
            while len(self._known) > REMEMBERED:
                self._known.popitem(last=False)
        return answer


class _Problem(NamedTuple):
    """Nobody knows what this user wants."""

    text: str


class _Unusable(Exception):
    """What was found, or given, cannot be used; the text shows none of it."""


def _ask(function: object, user_id: str) -> Preferences | None:
    if not callable(function):
        raise _Unusable(f"is {type(function).__name__}; it must be a function of a user id")
    answer = function(user_id)
    if answer is None or isinstance(answer, Preferences):
        return answer
    raise _Unusable(f"gave {type(answer).__name__}; give Preferences or None")


def _objection(answer: Preferences | _Problem | None, item: Item, now_us: int) -> Objection | None:
    if answer is None:
        return None
    if isinstance(answer, _Problem):
        # An opt-out may be the law, and what was sent cannot be taken back. So it waits, critical or not.
        wait_s = random.uniform(0.5, 1.5) * RETRY_S  # noqa: S311
        return Objection(Reason.PREFERENCES_UNAVAILABLE, int(wait_s * 1e6), answer.text)
    if item.category in answer.opted_out or (item.category, item.channel) in answer.opted_out:
        return Objection(OPTED_OUT)
    if answer.quiet_hours and item.priority != Priority.CRITICAL and (end_us := answer.quiet_hours.end_after(now_us)):
        return Objection(Reason.QUIET_HOURS, end_us - now_us)
    return None


# ---- of this process

_current: Answers | None = None
_looked = False


def use(function: L) -> L:
    """Ask this function, in this process, instead of the entry point; None: ask nobody. Usable as a decorator."""
    global _current, _looked
    _current, _looked = Answers(lambda: function) if function else None, True
    return function


def asked() -> bool:
    """Whether there is any function. Where there is none, that is all that preferences cost."""
    return _answers() is not None


def objections(items: Sequence[Item], now_us: int, remembered_s: float) -> list[Objection | None]:
    """What the users of these have against them, see Answers.objections."""
    answers = _answers()
    return answers.objections(items, now_us, remembered_s) if answers else [None] * len(items)


def _answers() -> Answers | None:
    global _current, _looked
    if not _looked:
        points = sorted(entry_points(group=GROUP), key=lambda point: point.name)
        _current, _looked = Answers(lambda: _load(points)) if points else None, True
    return _current


def _load(points: Sequence[EntryPoint]) -> object:
    if len(points) > 1:
        names = ", ".join(point.name for point in points)
        raise _Unusable(f"{len(points)} entry points are installed ({names}); there may be one")
    try:
        return points[0].load()
    except BaseException as error:
        if ends_process(error):
            raise
        raise _Unusable(f"{points[0].value} cannot be loaded: {type(error).__name__}") from None


def _after_fork() -> None:
    if _current:
        _current.after_fork()


os.register_at_fork(after_in_child=_after_fork)
