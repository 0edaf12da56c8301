"""Removes what is kept about a user: entries, rows, feeds, counters, a limit of his own.

What he has used of his limits runs out by itself.
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, NamedTuple

from sqlalchemy import delete

from notifier import channels
from notifier.deadletters.schema import dead_letters
from notifier.deadletters.store import Store
from notifier.limits.overrides import Editor
from notifier.notification import clean_user_id
from notifier.redis.keys import parse_identity, prefix_of, user_key
from notifier.redis.state import call
from notifier.settings import Settings

if TYPE_CHECKING:
    from notifier.ledger import Ledger

_KINDS = ("feed", "read", "seq", "meter", "waiting")


class Erased(NamedTuple):
    """What was there: notifications on their way (they end as dropped), rows, keys in Redis, limits of his own."""

    notifications: int
    rows: int
    keys: int
    limits: int


def erase(user_id: object, store: Store, ledger: Ledger, settings: Settings) -> Erased:
    """Erase a user. Safe to repeat. What is sent to the user later is accepted as usual.

    Done marks, which hold ids but no payload, go by themselves: most within minutes or `NOTIFIER_DEDUPE_WINDOW`, all
    within a week. A spill that read before this began and writes after it has ended leaves a row, which is
    never delivered and is deleted when it is due; erasing again deletes it at once.
    Raises InvalidNotification, StateUnavailable, DatabaseUnavailable, LimiterUnavailable; then some of it is gone.
    """
    user = clean_user_id(user_id)
    client, prefix = ledger.client, prefix_of(user)
    parts = call(lambda: [part for part, _ in client.hscan_iter(f"{prefix}ledger", count=1_000)])
    mine = [identity for part in parts if (identity := parse_identity(part.decode())).user_id == user]
    dropped = sum(ledger.drop(mine, "erased", parked=True))
    rows = _delete_rows(store, user)
    names = [user_key(kind, user, channel) for kind in _KINDS for channel in sorted(channels.known())]
    keys = int(call(lambda: client.delete(*names)))
    rows += _delete_rows(store, user)  # a spill may have been writing meanwhile
    return Erased(dropped, rows, keys, _unset_limits(user, settings))


def _delete_rows(store: Store, user: str) -> int:
    return store.run(lambda c: c.execute(delete(dead_letters).where(dead_letters.c.user_id == user)).rowcount)


def _unset_limits(user: str, settings: Settings) -> int:
    """Only what there is: every change makes all processes look up all users' limits from then on."""
    unset = 0
    with closing(Editor(settings)) as editor:
        for channel in sorted(channels.known()):
            if editor.user(user, channel) is not None:
                editor.set_user(user, channel, None)
                unset += 1
    return unset
