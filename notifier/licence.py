"""What the ledger is asked and what it answers: ends, grants, denials, replies, the books."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple, Protocol

from notifier.notification import Identity, Notification, Priority
from notifier.wire import unpack


class Reason(StrEnum):
    """Why a row is where it is."""

    RATE_LIMITED = "rate_limited"
    QUOTA = "quota"
    ORDER = "order"
    LIMITER_UNAVAILABLE = "limiter_unavailable"
    PREFERENCES_UNAVAILABLE = "preferences_unavailable"
    SCHEDULED = "scheduled"
    QUIET_HOURS = "quiet_hours"
    DELIVERY_FAILED = "delivery_failed"
    BREAKER_OPEN = "breaker_open"
    POISON = "poison"
    MAX_WAITING = "max_waiting"


class End(StrEnum):
    """How a notification ends; `parked` waits for a person."""

    DELIVERED = "delivered"
    DIGESTED = "digested"
    EXPIRED = "expired"
    DROPPED = "dropped"
    DUPLICATE = "duplicate"
    PARKED = "parked"


class Accepted(NamedTuple):
    """What accept says. `status`: queued (publish it to `queue`), deferred, dropped or duplicate (publish nothing)."""

    status: str
    queue: Priority
    seq: int
    accepted_us: int
    epoch: str


TRIES = 3  # how often a grant that grew stale is asked for again


class Grant(NamedTuple):
    """Leave to deliver. `deadline_us` in state Redis time, 0: none; `interval_us` lies between two grants of a user."""

    granted_at_us: int
    deadline_us: int
    interval_us: int = 0


class Denial(NamedTuple):
    """Why not now, for how long, and the time between two grants at the level that denied."""

    wait_us: int
    interval_us: int
    reason: str
    attempts: int = 0
    error: str = ""


class Reply(NamedTuple):
    """A script's answer about a message: its code, and a seq or the time of the next try (us)."""

    code: str
    number: int


class RowReply(NamedTuple):
    """What becomes of a row: ended (delete it), parked, keep (until retry_at_us), late (ask the limiter again), go.

    `booked`: the end that this very call has booked, "" where it has booked none.
    """

    action: str
    retry_at_us: int = 0
    reason: str = ""
    booked: str = ""


class Deferred(NamedTuple):
    """An item of :deferred, on its way to a row."""

    notification: Notification
    seq: int
    epoch: str
    starts: int
    accepted_us: int
    expires_us: int
    reason: str
    retry_at_us: int
    parked: bool
    attempts: int
    error: str

    @classmethod
    def read(cls, identity: Identity, epoch: str, entry: Sequence[str], packed: str) -> Deferred:
        """From what the ledger holds: the words of its entry, and meta and body."""
        notification, error = unpack(identity, packed)
        return cls(
            notification=notification,
            epoch=epoch,
            parked=entry[1] == "1",
            seq=int(entry[4]),
            accepted_us=int(entry[5]),
            expires_us=int(entry[6]),
            starts=int(entry[8]),
            retry_at_us=int(entry[11]),
            attempts=int(entry[12]),
            reason=entry[13],
            error=error,
        )


class Counts(NamedTuple):
    """The books. accepted = delivered + digested + expired + dropped + duplicate + parked + waiting + in_flight."""

    accepted: int
    delivered: int
    digested: int
    expired: int
    dropped: int
    duplicate: int
    parked: int
    waiting: int
    in_flight: int
    deferred: int  # of those waiting, in Redis and not yet in a row
    deferrals: int  # how often one was deferred
    replayed: int  # delivered from a row
    republished: int
    queued: dict[Priority, int]
    oldest_queued_s: float


class HeldRow(Protocol):
    """What the ledger reads of a row."""

    @property
    def notification(self) -> Notification: ...
    @property
    def accepted_us(self) -> int: ...
    @property
    def expires_us(self) -> int: ...
    @property
    def epoch(self) -> str: ...
