"""The table `dead_letters`: rows that wait for their time, or for a person.

    waiting, claimed_until null       due at retry_at, free to be claimed
    waiting, claimed_until > now()    a replayer has it
    waiting, claimed_until <= now()   its replayer died: a start is counted, it is claimed alone
    parked                            keeps its licence until a person decides

Changed here, it must be changed by a migration too: a test compares both.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import NamedTuple

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    DateTime,
    Dialect,
    Index,
    Integer,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    TypeDecorator,
    func,
    text,
)

from notifier.notification import Identity, Notification, Priority

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LAST_US = 250_000_000_000 * 10**6  # year 9892: still a Python datetime, in any time zone


class State(StrEnum):
    """waiting: goes by itself; parked: waits for a person."""

    WAITING = "waiting"
    PARKED = "parked"


def instant(us: int) -> datetime:
    """Microseconds since the epoch as an aware datetime, exactly."""
    return _EPOCH + timedelta(microseconds=min(us, LAST_US))


def microseconds(moment: datetime) -> int:
    """The inverse of instant."""
    return (moment - _EPOCH) // timedelta(microseconds=1)


class Microseconds(TypeDecorator[int]):
    """timestamptz in the table, int microseconds since the epoch in Python; NULL is 0."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: int | None, dialect: Dialect) -> datetime | None:
        return instant(value) if value else None

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> int:
        return microseconds(value) if value else 0


metadata = MetaData()

# Collation C: identities are compared byte by byte, and no change of the operating system's collations breaks an index.
_ID = Text(collation="C")

dead_letters = Table(
    "dead_letters",
    metadata,
    Column("user_id", _ID, nullable=False),
    Column("channel", _ID, nullable=False),
    Column("notification_id", _ID, nullable=False),
    Column("seq", BigInteger, nullable=False),
    Column("epoch", Text, nullable=False),
    Column("starts", Integer, nullable=False),
    Column("category", Text, nullable=False),
    Column("body", Text, nullable=False),  # text: JSONB changes 1e22, -0.0 and the order of keys, and refuses NUL
    Column("priority", Text, nullable=False),
    Column("collapse_key", Text, nullable=False),
    Column("digest_id", Text, nullable=False, server_default=""),
    Column("folded", Text, nullable=False, server_default=""),  # JSON of what was folded into this row, see digest.py
    Column("reason", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("retry_at", Microseconds, nullable=False),
    Column("claimed_until", Microseconds),
    Column("expires_at", Microseconds),
    Column("accepted_at", Microseconds, nullable=False),
    Column("created_at", Microseconds, nullable=False, server_default=func.now()),
    Column("updated_at", Microseconds, nullable=False, server_default=func.now()),
    Column("last_error", Text, nullable=False, server_default=""),
    PrimaryKeyConstraint("user_id", "channel", "notification_id", name="dead_letters_pkey"),
    CheckConstraint("state IN ('waiting', 'parked')", name="dead_letters_state_check"),
    Index("dead_letters_due", "retry_at", postgresql_where=text("state = 'waiting' AND claimed_until IS NULL")),
    Index("dead_letters_user", "user_id", "channel", "seq", postgresql_where=text("state = 'waiting'")),
    Index("dead_letters_claimed", "claimed_until", postgresql_where=text("claimed_until IS NOT NULL")),
    Index("dead_letters_parked", "updated_at", postgresql_where=text("state = 'parked'")),
)


class Row(NamedTuple):
    """A claimed row. Times are microseconds since the epoch, 0 for none."""

    user_id: str
    channel: str
    notification_id: str
    seq: int
    epoch: str
    starts: int
    category: str
    body: str
    priority: str
    collapse_key: str
    digest_id: str
    folded: str
    reason: str
    state: str
    attempts: int
    retry_at_us: int
    expires_us: int
    accepted_us: int
    last_error: str
    claim_ran_out: bool = False  # its last replayer died with it

    @property
    def identity(self) -> Identity:
        """(user_id, channel, notification_id)"""
        return Identity(self.user_id, self.channel, self.notification_id)

    @property
    def notification(self) -> Notification:
        """As it was accepted, but for ttl and not_before: the row's own times have replaced them."""
        return Notification(
            user_id=self.user_id,
            body=self.body,
            notification_id=self.notification_id,
            channel=self.channel,
            category=self.category,
            priority=Priority(self.priority),
            collapse_key=self.collapse_key,
        )

    def as_it_was(self) -> Kept:
        """To be given back. A digest that was tried stays the same one, so that the other side may know it again."""
        digest_id = self.digest_id if self.attempts else ""
        return Kept(self.identity, self.reason, 0, self.attempts, self.last_error, digest_id)


class Kept(NamedTuple):
    """What becomes of a row that stays: released to wait until `retry_at_us`, or parked."""

    identity: Identity
    reason: str
    retry_at_us: int = 0
    attempts: int = 0
    last_error: str = ""
    digest_id: str = ""
    seq: int = 0  # the ledger's, where the row has another one; 0: it stays
