"""Removes what is kept about a user: entries, rows, feeds, counters. What the limiter knows runs out by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from sqlalchemy import delete

from notifier import channels
from notifier.deadletters.schema import dead_letters
from notifier.deadletters.store import Store
from notifier.notification import clean_user_id
from notifier.redis.keys import parse_identity, prefix_of, user_key
from notifier.redis.state import call

if TYPE_CHECKING:
    from notifier.ledger import Ledger

_KINDS = ("feed", "read", "seq", "meter", "waiting")


class Erased(NamedTuple):
    """What was there: notifications on their way (they end as dropped), rows, keys in Redis."""

    notifications: int
    rows: int
    keys: int


def erase(user_id: object, store: Store, ledger: Ledger) -> Erased:
    """Erase a user. Safe to repeat. What is sent to the user later is accepted as usual.

    Done marks, which hold ids but no payload, go by themselves within `NOTIFIER_DEDUPE_WINDOW`.
    Raises InvalidNotification, StateUnavailable, DatabaseUnavailable.
    """
    user = clean_user_id(user_id)
    client, prefix = ledger.client, prefix_of(user)
    parts = call(lambda: [part for part, _ in client.hscan_iter(f"{prefix}ledger", count=1_000)])
    mine = [identity for part in parts if (identity := parse_identity(part.decode())).user_id == user]
    dropped = sum(ledger.drop(mine, "erased", parked=True))
    rows = store.run(lambda c: c.execute(delete(dead_letters).where(dead_letters.c.user_id == user)).rowcount)
    names = [user_key(kind, user, channel) for kind in _KINDS for channel in sorted(channels.known())]
    keys = int(call(lambda: client.delete(*names)))
    return Erased(dropped, rows, keys)
