"""Rows written in an application's own transaction: they exist if, and only if, it commits.

Such a row has no entry in the ledger yet, and names no epoch: to the replay it is one that the ledger never heard of,
which it accepts when it is due. That is the safety net. The application accepts it right after its commit; the row then
waits out its few seconds, and is deleted as one that has ended, or takes over from `:deferred` what became of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from sqlalchemy import Connection

from notifier.deadletters import queries
from notifier.deadletters.store import insert_values
from notifier.errors import SettingsError, StateUnavailable
from notifier.licence import Deferred, Reason
from notifier.notification import Notification
from notifier.redis.keys import DATABASE
from notifier.redis.state import call

if TYPE_CHECKING:
    from notifier.ledger import Ledger

NET_S = 5.0  # the row is due this long after its transaction: by then what was accepted at once has ended
LOOK_AGAIN_S = 10.0  # where state Redis is away, or does not know yet which database is ours


class Outbox:
    """Writes such rows. Redis is asked for the first one through each engine only, whether anybody replays them."""

    def __init__(self, ledger: Ledger, default_ttl_s: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._ledger, self._clock = ledger, clock
        self._default_ttl_us = int(default_ttl_s * 1_000_000)
        self._checked_until_s: dict[str, float] = {}  # by the engine's URL, which hides its password

    def write(self, connection: Connection, notifications: Sequence[Notification]) -> None:
        """Rows for these, in the transaction that the connection is in. One whose identity has a row already: none.

        Raises SettingsError where the replay looks into another database; SQLAlchemy's errors where the connection may
        not write the table, or has none.
        """
        self._check(connection)
        now_us = self._ledger.estimated_us()
        connection.execute(queries.INSERT_NEW, insert_values([self._row(n, now_us) for n in notifications]))

    def _row(self, n: Notification, now_us: int) -> Deferred:
        return Deferred(
            notification=n,
            seq=0,
            epoch="",
            starts=0,
            accepted_us=now_us,
            expires_us=max(now_us, n.not_before_us) + (n.ttl_us or self._default_ttl_us),
            reason=Reason.SCHEDULED,
            retry_at_us=max(n.not_before_us, now_us + int(NET_S * 1e6)),
            parked=False,
            attempts=0,
            error="",
        )

    def _check(self, connection: Connection) -> None:
        """Rows in a table that nobody replays would be lost without a word."""
        engine = str(connection.engine.url)
        if self._clock() < self._checked_until_s.get(engine, float("-inf")):
            return
        known = self._replayed_database()
        if known and known != str(connection.execute(queries.FINGERPRINT).scalar_one()):
            raise SettingsError(
                "send_in: the session's database is not the one that beat replays from (its NOTIFIER_DATABASE_URL), so "
                "its rows would wait for nobody; use the same database, or call notify() after the commit"
            )
        self._checked_until_s[engine] = float("inf") if known else self._clock() + LOOK_AGAIN_S

    def _replayed_database(self) -> str:
        """The fingerprint of the database that beat replays from, which beat notes in state Redis; "" if unknown."""
        with suppress(StateUnavailable):
            noted = call(lambda: self._ledger.client.get(DATABASE))
            return noted.decode() if isinstance(noted, bytes) else ""
        return ""
