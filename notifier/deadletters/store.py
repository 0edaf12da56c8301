"""The table as the rest of the project sees it: whole transactions, each safe to repeat.

Each is a bounded wait, also where the host is gone; only a server that is frozen (its kernel still answers) holds the
caller for as long as it is frozen, or until the worker's time limit.

READ COMMITTED, timeouts set within each transaction (so pgbouncer in transaction mode is fine), no row locked while
anything but PostgreSQL is waited for. A transaction that failed is repeated once: every one of them is written so that
doing it twice is doing it once.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from sqlalchemy import Connection, Engine, create_engine, make_url
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from notifier.deadletters import claiming, queries
from notifier.deadletters.claiming import claim, claim_in_line, keys_of, move, rows_of, with_members
from notifier.deadletters.line import Pace, free_places
from notifier.deadletters.problems import refuses_row, unavailable, worth_repeating
from notifier.deadletters.schema import LAST_US, Kept, Row, State
from notifier.deadletters.sql import LIMITS, SCAN_LIMITS
from notifier.errors import clean_error
from notifier.notification import Identity

if TYPE_CHECKING:
    from notifier.licence import Deferred

log = logging.getLogger(__name__)

T = TypeVar("T")

BATCH = 500
VANISHED_S = 5  # a server that acknowledges nothing for so long is gone; one that is only slow acknowledges
_WALKS = 20
_ROWS_OF_A_USER = 10


class Counts(NamedTuple):
    """Rows by state."""

    waiting: int
    parked: int


class Ages(NamedTuple):
    """Rows by state, and seconds: since the oldest that waits was accepted, since the oldest parked one was parked,
    since the first that nobody has claimed was due."""

    waiting: int
    parked: int
    oldest_waiting_s: float
    oldest_parked_s: float
    overdue_s: float


class Store:
    """All access to `dead_letters`. No connection before the first use; a forked child opens its own.

    Every method raises DatabaseUnavailable, and only that, when PostgreSQL or its schema cannot be used.
    """

    def __init__(self, database_url: str) -> None:
        self._url = make_url(database_url).set(drivername="postgresql+psycopg2")
        self._lock = threading.Lock()
        self._engine: Engine | None = None
        self._pid = 0
        self._cursor = ("", "")  # where the walk over users goes on, see queries.WALK
        self._tails: dict[str, int] = {}  # when the last row goes that was placed in a channel's line, us

    def insert(self, items: Sequence[Deferred]) -> list[Identity]:
        """Write deferred notifications, one commit; those already there stay as they are, but for rows of the outbox.

        Returns the identities that PostgreSQL refuses for what they are, which no repetition would change.
        """
        rows = [_values(item) for item in sorted(items, key=lambda item: item.notification.identity)]
        if not rows:
            return []
        try:
            self.run(lambda c: _insert(c, rows))
        except (DBAPIError, ValueError):  # a NUL, or a lone surrogate, is refused by psycopg2 before the server can
            return [_identity(row) for row in rows if self._refuses(row)]
        return []

    def claim(self, now_us: int, limit: int = BATCH) -> list[Row]:
        """Claim up to `limit` free rows due at `now_us` (state Redis's time), round-robin over users.

        Sorted by seq within each user. For CLAIM_S nobody else gets them. Whatever shares a digest with one of them
        comes with it, due or not, so there may be more than `limit`.
        """

        def work(connection: Connection) -> list[Row]:
            picked = connection.execute(queries.PICK, {"now": now_us, "limit": limit, "window": queries.WINDOW}).all()
            if picked and picked[0].due >= queries.WINDOW:
                picked = self._pick_by_user(connection, now_us, limit)
            return with_members(connection, claim_in_line(connection, picked, now_us))

        return self.run(work) if limit > 0 else []

    def claim_these(self, identities: Sequence[Identity]) -> list[Row]:
        """Claim exactly these, due or not, as far as they wait and nobody has them."""
        return self.run(lambda c: claim(c, dict.fromkeys(identities, LAST_US)))

    def claim_ran_out(self) -> list[Row]:
        """Claim one row whose last claim ran out, or the digest it is in, and count a start. [] if there is none.

        It goes alone, for it may be what killed its replayer.
        """

        def work(connection: Connection) -> list[Row]:
            rows = rows_of(connection.execute(queries.CLAIM_RAN_OUT, {"seconds": claiming.CLAIM_S}))
            if rows and rows[0].digest_id:
                same = {"user": rows[0].user_id, "channel": rows[0].channel, "digest": rows[0].digest_id}
                others = connection.execute(queries.CLAIM_RAN_OUT_DIGEST, {**same, "seconds": claiming.CLAIM_S})
                rows = [*rows, *rows_of(others)]
            return rows

        return self.run(work)

    def hold(self, identities: Sequence[Identity], seconds: float) -> None:
        """Keep claimed rows for longer: what comes next may take so long."""
        self.run(lambda c: c.execute(queries.HOLD, {**keys_of(sorted(identities)), "seconds": seconds}))

    def finish(self, ended: Sequence[Identity] = (), parked: Sequence[Kept] = (), kept: Sequence[Kept] = ()) -> None:
        """Let go of claimed rows, one transaction: delete, park or release. Parked rows are never released."""

        def work(connection: Connection) -> None:
            if ended:
                connection.execute(queries.DELETE, keys_of(sorted(ended)))
            for state, items in ((State.PARKED, parked), (State.WAITING, kept)):
                if items:
                    connection.execute(queries.UPDATE, _changes(state, items))

        if ended or parked or kept:
            self.run(work)

    def pace(self, paces: Sequence[Pace], now_us: int) -> int:
        """Give what is due of these its place in line. Returns the rows moved."""
        lines = {(pace.user_id, pace.channel): pace for pace in paces if pace.user_id}
        moved = sum(self._pace_channel(pace, now_us) for pace in paces if not pace.user_id)
        if not lines:
            return moved
        values = {"users": [user for user, _ in lines], "channels": [name for _, name in lines], "now": now_us}
        found = self.run(lambda c: c.execute(queries.LINE, values).all())
        due, taken = defaultdict(list), defaultdict(list)
        for user_id, channel, notification_id, is_due, retry_us in found:
            if is_due:
                due[user_id, channel].append(Identity(user_id, channel, notification_id))
            else:
                taken[user_id, channel].append(retry_us)
        moves: list[tuple[Identity, int]] = []
        for who, identities in due.items():
            moves += zip(identities, free_places(lines[who], taken[who], len(identities)), strict=True)
        for start in range(0, len(moves), queries.MOVED):
            part = moves[start : start + queries.MOVED]
            self.run(lambda c, p=part: move(c, p))  # type: ignore[misc]
        return moved + len(moves)

    def _pace_channel(self, pace: Pace, now_us: int) -> int:
        """Round-robin over users, behind what this process has placed before."""
        moved, last = 0, queries.MOVED
        base_us = max(pace.first_us, self._tails.get(pace.channel, 0))
        while last >= queries.MOVED:
            values = {"channel": pace.channel, "base": base_us, "step": pace.interval_us, "now": now_us}
            last = self.run(lambda c, v=values: c.execute(queries.PACE_CHANNEL, v).rowcount)  # type: ignore[misc]
            moved += last
            base_us += last * pace.interval_us
        self._tails[pace.channel] = base_us
        return moved

    def counts(self) -> Counts:
        """Rows waiting and parked now."""
        return self.run(lambda c: Counts(*c.execute(queries.COUNTS).one()), scan=True)

    def ages(self) -> Ages:
        """Rows by state, and their ages by the database's clock; 0 where there is none."""
        return self.run(lambda c: Ages(*c.execute(queries.AGES).one()), scan=True)

    def missing(self, identities: Sequence[Identity]) -> list[Identity]:
        """Those of `identities` that have no row."""
        if not identities:
            return []
        found = self.run(lambda c: {Identity(*row) for row in c.execute(queries.EXISTING, keys_of(identities))})
        return [identity for identity in identities if identity not in found]

    def fingerprint(self) -> str:
        """Which database and table this is; another one, or the same made anew, has another."""
        return self.run(lambda c: str(c.execute(queries.FINGERPRINT).scalar_one()))

    def close(self) -> None:
        """Close the pool."""
        with self._lock:
            if self._engine is not None:
                self._engine.dispose(close=self._pid == os.getpid())
            self._engine = None

    def _refuses(self, row: dict[str, Any]) -> bool:
        try:
            self.run(lambda c: _insert(c, [row]))
        except (DBAPIError, ValueError):
            return True
        return False

    def _pick_by_user(self, connection: Connection, now_us: int, limit: int) -> Sequence[Any]:
        """Keys of due rows of the next users in the walk, which goes round and round."""
        for _ in range(_WALKS):
            users = self._walk(connection, limit)
            if not users:
                return []
            each = max(_ROWS_OF_A_USER, 2 * limit // len(users))
            values = {"users": [u for u, _ in users], "channels": [c for _, c in users], "now": now_us}
            picked = connection.execute(queries.PICK_OF_USERS, {**values, "limit": limit, "each": each}).all()
            if picked or len(users) < limit:
                return picked
        return []

    def _walk(self, connection: Connection, limit: int) -> list[tuple[str, str]]:
        """Up to `limit` users and channels with waiting rows, from where the last walk ended."""
        users: dict[tuple[str, str], None] = {}
        for user_id, channel in (self._cursor, ("", "")):
            found = connection.execute(
                queries.WALK, {"user": user_id, "channel": channel, "limit": limit - len(users)}
            ).all()
            users.update(dict.fromkeys((row.user_id, row.channel) for row in found))
            if len(users) >= limit or not user_id:
                break
        self._cursor = next(reversed(users), ("", ""))
        return list(users)

    def run(self, work: Callable[[Connection], T], *, scan: bool = False) -> T:
        """`work` in a transaction, twice if need be; `scan` where it may read the whole table.

        Raises DBAPIError only where a row itself was refused.
        """
        for last in (False, True):
            try:
                with self._get_engine().begin() as connection:
                    connection.execute(SCAN_LIMITS if scan else LIMITS)
                    return work(connection)
            except PoolTimeout as error:
                raise unavailable(error) from None
            except DBAPIError as error:
                if refuses_row(error):
                    raise
                if last or not worth_repeating(error):
                    raise unavailable(error) from None
                log.info("a transaction on dead_letters failed and is repeated: %s", type(error.orig).__name__)
        raise AssertionError("unreachable")

    def _get_engine(self) -> Engine:
        with self._lock:
            if self._engine is None or self._pid != os.getpid():
                if self._engine is not None:
                    self._engine.dispose(close=False)  # the sockets are the parent's
                self._engine, self._pid = _make_engine(self._url), os.getpid()
            return self._engine


# A server's timeouts end nothing where its host has vanished. By itself libpq waits for a quarter of an hour then, for
# hours where all it sent was acknowledged: longer than a worker without time limits (threads, solo) can spare.
_GIVEN_UP = {
    "tcp_user_timeout": VANISHED_S * 1000,
    "keepalives_idle": 2,
    "keepalives_interval": 1,
    "keepalives_count": VANISHED_S - 2,
}


def _make_engine(url: Any) -> Engine:
    return create_engine(
        url,
        isolation_level="READ COMMITTED",  # SKIP LOCKED fails under REPEATABLE READ, which a server may have as default
        pool_pre_ping=True,
        pool_size=2,
        max_overflow=6,
        pool_timeout=3,
        hide_parameters=True,
        connect_args={"connect_timeout": 3, "application_name": "notifier", **_GIVEN_UP},
    )


def _values(item: Deferred) -> dict[str, Any]:
    n = item.notification
    return {
        "user_id": n.user_id,
        "channel": n.channel,
        "notification_id": n.notification_id,
        "seq": item.seq,
        "epoch": item.epoch,
        "starts": item.starts,
        "category": n.category,
        "body": n.body,
        "priority": str(n.priority),
        "collapse_key": n.collapse_key,
        "reason": str(item.reason),
        "state": str(State.PARKED if item.parked else State.WAITING),
        "attempts": item.attempts,
        "retry_at": min(item.retry_at_us or item.accepted_us, item.expires_us or item.retry_at_us or item.accepted_us),
        "expires_at": item.expires_us,
        "accepted_at": item.accepted_us,
        "last_error": clean_error(item.error),
    }


def _identity(row: dict[str, Any]) -> Identity:
    return Identity(row["user_id"], row["channel"], row["notification_id"])


def _insert(connection: Connection, rows: Sequence[dict[str, Any]]) -> None:
    connection.execute(queries.INSERT, _columns(rows))


def insert_values(items: Iterable[Deferred]) -> dict[str, list[Any]]:
    """What queries.INSERT_NEW takes; at least one item."""
    return _columns([_values(item) for item in sorted(items, key=lambda item: item.notification.identity)])


def _columns(rows: Sequence[dict[str, Any]]) -> dict[str, list[Any]]:
    return {name: [row[name] for row in rows] for name in rows[0]}


def _changes(state: State, items: Iterable[Kept]) -> dict[str, Any]:
    items = sorted(items)
    return {
        **keys_of(item.identity for item in items),
        "state": str(state),
        "reasons": [str(item.reason) for item in items],
        "retries": [item.retry_at_us for item in items],
        "attempts": [item.attempts for item in items],
        "errors": [clean_error(item.last_error) for item in items],
        "digests": [item.digest_id for item in items],
        "seqs": [item.seq for item in items],
    }
