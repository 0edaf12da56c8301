"""The state of the protocol's model: what producers, broker, workers, replayers, PostgreSQL and state Redis hold.

A state is a tuple; a step makes a changed list of it. There are two notifications n = 0, 1 of one user and channel, and
field X of notification n is s[X + n].

    PLACE     of the licence: "" none, Q queue, D :deferred, H a row holds it.     COUNTED  it is in waiting
    MARK      "" or t (done, until its life is over); alternatives use n (done, for good) and h (held, for good)
    END       "" or e (ended) or p (parked)
    ROW       "" or s (scheduled, not due), f (free), F (free, a claim ran out), c (claimed), C (claimed after F), p
    worker    "" or Rn (has begun n), Wn (about to write the row itself)
    replayer  "" or S.. (has read :deferred; s.. before a flush), I.. inserted, C.. claimed, B.. booked, T.. deleted

ACC, DENIED, END and BEHIND are history, kept for the checks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

State = tuple[Any, ...]
Draft = list[Any]

# fmt: off
(PROD, UNL, OLD, ROW, FRESH, REDEL, ORPHAN,  # producer 0, 1 accepted, 2 returned; sent without ledger; life over; row;
 ACC, PLACE, COUNTED, DENIED, MARK, END, BEHIND,  # copies in the broker; row from before a flush; then state Redis
 ) = range(0, 28, 2)
# fmt: on
WAITING, SEQ, DEFERRED, WORKERS, REPLAYERS, PROBE, SNAP, LOSSY = range(28, 36)
REDIS = slice(ACC, DEFERRED + 1)
EMPTY_REDIS: list[Any] = [0, 0, "", "", 0, 0, 0, 0, "", "", "", "", 0, 0, 0, "", ""]


class Violation(Exception):
    """An invariant does not hold; the text begins with its number."""


def first(workers: int, replayers: int, *, one: bool, outbox: Sequence[int] = ()) -> State:
    """Nothing has happened, but that rows of `outbox` were committed. With `one` the second has long ended."""
    s: Draft = [0] * 6 + [""] * 2 + [0] * 6 + EMPTY_REDIS + [("",) * workers, ("",) * replayers, "", None, 0]
    if one:
        s[PROD + 1], s[END + 1], s[OLD + 1] = 2, "e", 1
    for n in outbox:
        s[ROW + n], s[ORPHAN + n] = "s", 1
    return tuple(s)


def change(
    s: State | Draft,
    fields: Mapping[int, Any] | None = None,
    who: int | None = None,
    old: str = "",
    new: str = "",
) -> Draft:
    """A changed copy. One process of kind `who` goes from `old` to `new`; those of a kind are interchangeable."""
    t = list(s)
    for field, value in (fields or {}).items():
        t[field] = value
    if who is not None:
        t[who] = _replaced(t[who], old, new)
    return t


@lru_cache(None)
def _replaced(processes: tuple[str, ...], old: str, new: str) -> tuple[str, ...]:
    changed = list(processes)
    changed[changed.index(old)] = new
    return tuple(sorted(changed))


def seq(s: State | Draft, n: int) -> tuple[int, int]:
    """By which the two are ordered."""
    at = s[SEQ].find(str(n))
    return (at if at >= 0 else 9, n)


def normal(t: Draft) -> State:
    """Forget what can no longer matter: an ended notification of which no copy, row or plan is left."""
    for n in (0, 1):
        gone = t[END + n] == "e" and not (t[ROW + n] or t[FRESH + n] or t[REDEL + n]) and t[PROD + n] == 2
        if gone and t[MARK + n] != "n" and t[SNAP] is None and str(n) not in "".join(t[WORKERS] + t[REPLAYERS]):
            t[OLD + n], t[MARK + n] = 1, ""
    return tuple(t)
