"""Keeps the rows of one user and channel at `NOTIFIER_MAX_WAITING`: collapse keys fold, then the newest are dropped.

Mostly what has a collapse key gets here beyond that number: all else was dropped when it was denied (deny.lua).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from sqlalchemy import Connection

from notifier import metrics
from notifier.deadletters import claiming, queries
from notifier.deadletters.claiming import identities_of, keys_of, rows_of
from notifier.deadletters.digest import FOLDING, GATHERED, MAX_MEMBERS, fold, foldable
from notifier.deadletters.schema import Kept, Row
from notifier.deadletters.store import BATCH, Store
from notifier.licence import Deferred, Reason

if TYPE_CHECKING:
    from notifier.ledger import Ledger


class Thinned(NamedTuple):
    """Rows that ended because too many waited."""

    folded: int = 0
    dropped: int = 0


class Crowd:
    """Called with what was just spilled."""

    def __init__(self, store: Store, ledger: Ledger, max_waiting: int) -> None:
        self._store, self._ledger, self._max_waiting = store, ledger, max_waiting

    def thin(self, items: Sequence[Deferred]) -> Thinned:
        """Bring the users of `items` back to the number that may wait."""
        who = {(item.notification.user_id, item.notification.channel) for item in items if item.reason in GATHERED}
        folded = dropped = 0
        for user_id, channel in self._crowded(sorted(who)):
            for group in self._claim(user_id, channel):
                folded += self.fold(group)
            if self._crowded([(user_id, channel)]):
                dropped += self._drop_newest(user_id, channel)
        return Thinned(folded, dropped)

    def fold(self, group: Sequence[Row]) -> int:
        """End all but the newest as digested. Called again after a crash with the same rows, it goes on."""
        *members, carrier = group
        ended, kept = [], []
        for start in range(0, len(members), MAX_MEMBERS - 1):
            rows = [*members[start : start + MAX_MEMBERS - 1], carrier]
            for row, reply in zip(rows, self._ledger.fold_rows(rows), strict=True):
                if reply.action == "ended":
                    ended.append(row.identity)
                else:
                    kept.append(_unmarked(row))
        self._store.finish(ended, kept=list(dict.fromkeys(kept)))
        return len(ended)

    def take_up(self, rows: Sequence[Row]) -> None:
        """Rows that were being folded when their replayer died: go on, if the newest and others are still there."""
        *members, last = rows
        if members and last.digest_id == FOLDING + last.notification_id:
            self.fold(rows)
        else:  # cancelled meanwhile; what is left tells of itself
            self._store.finish(kept=[_unmarked(row) for row in rows])

    def _crowded(self, who: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
        if not who:
            return []
        users, channels = (list(column) for column in zip(*who, strict=True))
        values = {"users": users, "channels": channels, "most": self._max_waiting}
        return self._store.run(lambda c: [(row.user_id, row.channel) for row in c.execute(queries.CROWDED, values)])

    def _claim(self, user_id: str, channel: str) -> list[list[Row]]:
        """Groups to fold. What each newest has to tell is in its row before any member ends."""

        def work(connection: Connection) -> list[list[Row]]:
            values = {"user": user_id, "channel": channel, "limit": 2 * BATCH, "seconds": claiming.CLAIM_S}
            rows = rows_of(connection.execute(queries.CLAIM_FOLDABLE, values))
            groups = foldable(rows)
            members = [row.identity for group in groups for row in group]
            marks = [FOLDING + group[-1].notification_id for group in groups for _ in group]
            carriers = [group[-1].identity for group in groups]
            texts = [fold(group).text() for group in groups]
            if groups:
                connection.execute(queries.SET_DIGEST, {**keys_of(members), "digests": marks})
                connection.execute(queries.SET_FOLDED, {**keys_of(carriers), "folded": texts})
            alone = [row for row in rows if row.identity not in set(members)]
            if alone:
                connection.execute(queries.RELEASE, keys_of(row.identity for row in alone))
            return groups

        return self._store.run(work)

    def _drop_newest(self, user_id: str, channel: str) -> int:
        values = {"user": user_id, "channel": channel, "most": self._max_waiting, "limit": BATCH}
        beyond = self._store.run(lambda c: identities_of(c.execute(queries.BEYOND, values)))
        booked = self._ledger.drop(beyond, Reason.MAX_WAITING)
        gone = [identity for identity, done in zip(beyond, booked, strict=True) if done]
        self._store.finish(ended=gone)
        if gone:
            about = {"user_id": user_id, "channel": channel}
            metrics.degraded(
                "max_waiting", f"{len(gone)} notifications of one user dropped: too many wait", about=about
            )
        return len(gone)


def _unmarked(row: Row) -> Kept:
    """It is not being folded any more."""
    return Kept(row.identity, row.reason, 0, row.attempts, row.last_error)
