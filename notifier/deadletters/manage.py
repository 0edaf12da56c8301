"""What people do with dead letters: look, send again, park, drop, cancel, erase."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, Select, TextClause, case, distinct, func, literal, select, tuple_

from notifier.deadletters import queries
from notifier.deadletters.claiming import keys_of
from notifier.deadletters.schema import Kept, Row, State, dead_letters
from notifier.deadletters.sql import COLUMNS
from notifier.deadletters.store import BATCH, Store
from notifier.licence import End, Reason
from notifier.notification import Identity, clean_identity
from notifier.settings import Settings

if TYPE_CHECKING:
    from notifier.ledger import Ledger

t = dead_letters.c
_KEY = tuple_(t.user_id, t.channel, t.notification_id)


@dataclass(frozen=True, slots=True)
class Filter:
    """Which rows; what is None does not matter. Accepted at or after `since_us`, before `until_us` (microseconds)."""

    user_id: str | None = None
    notification_id: str | None = None
    channel: str | None = None
    category: str | None = None
    reason: str | None = None
    state: str | None = None
    since_us: int | None = None
    until_us: int | None = None

    @property
    def everything(self) -> bool:
        """No condition at all."""
        return all(getattr(self, field.name) is None for field in fields(self))

    def conditions(self) -> list[ColumnElement[bool]]:
        """As SQL."""
        same = [
            (t.user_id, self.user_id),
            (t.notification_id, self.notification_id),
            (t.channel, self.channel),
            (t.category, self.category),
            (t.reason, self.reason),
            (t.state, self.state),
        ]
        found: list[ColumnElement[bool]] = [column == value for column, value in same if value is not None]
        if self.since_us is not None:
            found.append(t.accepted_at >= self.since_us)
        if self.until_us is not None:
            found.append(t.accepted_at < self.until_us)
        return found


class Backlog(NamedTuple):
    """Rows of one channel that wait. A digest is one token. `busiest`: tokens of the user with the most."""

    channel: str
    tokens: int
    busiest: int


class Summary(NamedTuple):
    """What a filter selects: rows by (state, reason), users, and what waits."""

    rows: dict[tuple[str, str], int]
    users: int
    backlogs: list[Backlog]

    @property
    def total(self) -> int:
        """All of them."""
        return sum(self.rows.values())


class Done(NamedTuple):
    """Rows changed, and rows left as they are: claimed by a replayer just then, or not for this command."""

    changed: int
    skipped: int


Progress = Callable[[int], None]


def forecast_s(backlogs: Sequence[Backlog], settings: Settings) -> float:
    """Seconds until the last of these would have gone under the present limits, if nothing else came; inf: never."""
    longest_s = 0.0
    for backlog in backlogs:
        for limit, tokens in (
            (settings.user_limit_of(backlog.channel), backlog.busiest),
            (settings.user_quota_of(backlog.channel), backlog.busiest),
            (settings.channel_limit_of(backlog.channel), backlog.tokens),
        ):
            if not limit.off and tokens:
                longest_s = max(longest_s, (tokens / limit.rate) if limit.rate else float("inf"))
    return longest_s


class Manager:
    """Commands on the rows that a filter selects, in batches, each safe to repeat."""

    def __init__(self, store: Store, ledger: Ledger) -> None:
        self._store, self._ledger = store, ledger

    def summary(self, which: Filter) -> Summary:
        """Count. Reads all selected rows."""
        token = case((t.collapse_key == "", t.notification_id), else_=t.collapse_key)
        per_user = (
            select(t.channel, func.count(distinct(token)).label("tokens"))
            .where(*which.conditions(), t.state == State.WAITING)
            .group_by(t.user_id, t.channel)
            .subquery()
        )

        def work(connection: Connection) -> Summary:
            where = which.conditions()
            by = connection.execute(select(t.state, t.reason, func.count()).where(*where).group_by(t.state, t.reason))
            rows = {(state, reason): number for state, reason, number in by}
            users = connection.execute(select(func.count(distinct(t.user_id))).where(*where)).scalar_one()
            backlogs = connection.execute(
                select(per_user.c.channel, func.sum(per_user.c.tokens), func.max(per_user.c.tokens)).group_by(
                    per_user.c.channel
                )
            )
            return Summary(rows, users, [Backlog(name, int(total), most) for name, total, most in backlogs])

        return self._store.run(work, scan=True)

    def pages(self, which: Filter, *, bodies: bool = False, size: int = BATCH) -> Iterator[list[Row]]:
        """All selected rows in the order of their identities, a page at a time; bodies are "" unless asked for."""
        last: Identity | None = None
        while page := self._page(which, last, bodies, size):
            yield page
            last = page[-1].identity

    def soonest(self, which: Filter, limit: int) -> list[Row]:
        """The selected rows that are due first, at most `limit`, without bodies; parked ones come last."""
        columns = [t[name] if name != "body" else literal("").label("body") for name in COLUMNS]
        due = (t.state == State.PARKED, t.retry_at, t.user_id, t.channel, t.seq)
        query: Select[Any] = select(*columns).where(*which.conditions()).order_by(*due).limit(limit)
        return self._store.run(lambda connection: [Row(*row) for row in connection.execute(query)], scan=True)

    def send_again(self, which: Filter, progress: Progress = lambda _: None) -> Done:
        """Make rows due now; parked ones wait once more, their starts and attempts forgotten.

        What is scheduled stays so, unless the filter asks for that reason. The replay sends them, at the limits' pace.
        """
        changed = skipped = 0
        for page in self.pages(which):
            rows = [r for r in page if r.reason != Reason.SCHEDULED or which.reason == Reason.SCHEDULED]
            parked = [row.identity for row in rows if row.state == State.PARKED]
            if parked:
                self._ledger.unpark(parked)
            done = self._update(queries.SEND_AGAIN, rows) if rows else 0
            changed, skipped = changed + done, skipped + len(page) - done
            progress(len(page))
        return Done(changed, skipped)

    def park(self, which: Filter, progress: Progress = lambda _: None) -> Done:
        """Park what waits: nothing goes until a person sends it again or drops it."""
        changed = skipped = 0
        for page in self.pages(which):
            ended, parked = [], []
            with self._claimed(page) as rows:
                for row, reply in zip(rows, self._ledger.book_rows(rows, End.PARKED, "by_hand"), strict=True):
                    if reply.action == "parked":
                        parked.append(Kept(row.identity, row.reason, 0, row.attempts, "parked by hand"))
                    else:
                        ended.append(row.identity)
                self._store.finish(ended, parked)
            changed, skipped = changed + len(parked), skipped + len(page) - len(parked)
            progress(len(page))
        return Done(changed, skipped)

    def drop(self, which: Filter, progress: Progress = lambda _: None, *, reason: str = "by_hand") -> Done:
        """End rows as dropped, waiting or parked. What a replayer has just claimed is left to it."""
        changed = skipped = 0
        for page in self.pages(which):
            with self._claimed(page) as rows:
                parked = [row for row in page if row.state == State.PARKED]
                booked = self._ledger.drop([row.identity for row in parked], reason, parked=True)
                rows += [row for row, done in zip(parked, booked, strict=True) if not done]  # the ledger has lost them
                ended = [row.identity for row, done in zip(parked, booked, strict=True) if done]
                replies = self._ledger.book_rows(rows, End.DROPPED, reason)
                ended += [row.identity for row, reply in zip(rows, replies, strict=True) if reply.action == "ended"]
                left = [row.as_it_was() for row, reply in zip(rows, replies, strict=True) if reply.action != "ended"]
                self._store.finish(ended, kept=left)
            changed, skipped = changed + len(ended), skipped + len(page) - len(ended)
            progress(len(page))
        return Done(changed, skipped)

    def cancel(self, user_id: object, notification_id: object, channel: str = "websocket") -> bool:
        """Drop one that is queued, waits or is scheduled; of send_in from the commit on.

        False: it has ended, is parked, or is unknown. A call of a channel outside that has begun is not called back.
        Raises InvalidNotification.
        """
        identity = clean_identity(user_id, channel, notification_id)
        if not self._ledger.cancel(identity) and not self._cancel_row(identity):
            return False
        self._store.finish([identity])
        return True

    def _cancel_row(self, identity: Identity) -> bool:
        """A row that the ledger has not accepted yet, or has lost: its script accepts and drops it in one step.

        So who is at it just now, claim or not, has had it delivered before, or finds that it has ended.
        """
        which = Filter(identity.user_id, identity.notification_id, identity.channel, state=State.WAITING)
        replies = self._ledger.book_rows(self._page(which, None, False, 1), End.DROPPED, "cancelled")
        return any(reply.booked for reply in replies)

    def retire(self, older_than_s: float) -> int:
        """Drop parked rows that no person has looked after for so long. Returns how many."""
        values = {"seconds": older_than_s, "limit": BATCH}
        old = self._store.run(lambda c: [Identity(*row) for row in c.execute(queries.RETIRED, values)])
        if old:
            self._ledger.drop(old, "retired", parked=True)
            self._store.finish(old)
        return len(old)

    @contextmanager
    def _claimed(self, page: Sequence[Row]) -> Iterator[list[Row]]:
        """Those that wait, as far as nobody has them; given back if it cannot be done, else a start is counted."""
        rows = self._store.claim_these([row.identity for row in page if row.state == State.WAITING])
        claimed = list(rows)
        try:
            yield rows
        except BaseException:
            self._store.finish(kept=[row.as_it_was() for row in claimed])
            raise

    def _page(self, which: Filter, last: Identity | None, bodies: bool, size: int) -> list[Row]:
        columns = [t[name] if name != "body" or bodies else literal("").label("body") for name in COLUMNS]
        query: Select[Any] = select(*columns).where(*which.conditions())
        if last is not None:
            query = query.where(tuple_(*map(literal, last)) < _KEY)
        query = query.order_by(t.user_id, t.channel, t.notification_id).limit(size)

        def work(connection: Connection) -> list[Row]:
            found: Any = connection.execute(query)
            return [Row(*row) for row in found]

        return self._store.run(work, scan=True)

    def _update(self, statement: TextClause, rows: Sequence[Row]) -> int:
        values = {**keys_of(row.identity for row in rows), "now": self._ledger.now_us()}
        return self._store.run(lambda c: c.execute(statement, values).rowcount)
