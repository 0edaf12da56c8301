"""What tests of the ledger share."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from redis import Redis

from notifier.ledger import Ledger
from notifier.licence import Denial, Grant, RowReply
from notifier.notification import Notification
from notifier.redis.keys import done_key, user_key
from notifier.wire import Message

HALF_S = 500_000
RATE_LIMITED = Denial(wait_us=HALF_S, interval_us=HALF_S, reason="rate_limited")
NOW = Grant(granted_at_us=1_764_471_120_123_456, deadline_us=0, interval_us=HALF_S)


@dataclass
class Row:
    notification: Notification
    accepted_us: int
    epoch: str
    expires_us: int = 0


def note(user: str = "anna", payload: object = "hello", **options: object) -> Notification:
    return Notification.create(user, payload, **options)  # type: ignore[arg-type]


def accept(ledger: Ledger, n: Notification) -> Message:
    (a,) = ledger.accept([n])
    assert a.status == "queued"
    return Message(n, accepted_us=a.accepted_us, epoch=a.epoch)


def denied(ledger: Ledger, n: Notification) -> Message:
    message = accept(ledger, n)
    assert ledger.deny([message], [RATE_LIMITED])[0].code == "deferred"
    return message


def to_rows(ledger: Ledger) -> list[Row]:
    """Spill as the replay does, but into a list."""
    items = ledger.peek_deferred(100)
    ledger.settle_deferred([item.notification.identity for item in items])
    items.sort(key=lambda item: item.seq)
    return [Row(item.notification, item.accepted_us, item.epoch, item.expires_us) for item in items]


def deliver_rows(ledger: Ledger, rows: Sequence[Row]) -> list[RowReply]:
    return ledger.deliver_digests([[row] for row in rows], [NOW] * len(rows))


def feed(client: Redis, user: str = "anna") -> list[dict[str, object]]:
    entries = client.xrange(user_key("feed", user, "websocket"))
    return [json.loads(b'{"id":"%s",%s' % (entry, fields[b"f"])) for entry, fields in entries]  # type: ignore


def balanced(ledger: Ledger) -> None:
    c = ledger.counts()
    ends = c.delivered + c.digested + c.expired + c.dropped + c.duplicate + c.parked
    assert c.accepted == ends + c.waiting + c.in_flight, c
    assert min(c.waiting, c.parked, c.in_flight) >= 0, c


def age(client: Redis, n: Notification) -> None:
    """Life over: the mark has expired."""
    client.delete(done_key(n.identity))
