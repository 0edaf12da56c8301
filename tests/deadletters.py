"""What the tests of dead letters share: the parts that replay needs, on real servers."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from sqlalchemy import text

from notifier.deadletters.replay import Replay
from notifier.deadletters.store import Store
from notifier.ledger import Ledger
from notifier.licence import Denial
from notifier.limits.limiter import Limiter
from notifier.notification import Identity, Notification
from notifier.redis.keys import identity_part, prefix_of, user_key
from notifier.redis.state import connect_state
from notifier.settings import Settings
from notifier.wire import Message


class Bench:
    """The parts that replay needs, and what a test asks of them."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.client = connect_state(settings.redis_url, 2.0)
        self.ledger = Ledger(self.client, settings)
        self.limiter = Limiter.from_settings(settings)
        self.store = Store(settings.database_url)
        self.replay = Replay(self.store, self.ledger, self.limiter, settings)

    def close(self) -> None:
        self.limiter.close()
        self.store.close()
        self.client.close()

    def deny(self, user_id: str, count: int, *, wait_s: float = 0.0, interval_s: float = 0.0, **fields: Any) -> None:
        """Accept `count` notifications and deny them as a worker would."""
        sent = [Notification.create(user_id, {"n": n}, **fields) for n in range(count)]
        accepted = self.ledger.accept(sent)
        messages = [
            Message(n, accepted_us=a.accepted_us, epoch=a.epoch)
            for n, a in zip(sent, accepted, strict=True)
            if a.status == "queued"
        ]
        denial = Denial(int(wait_s * 1e6), int(interval_s * 1e6), "rate_limited")
        self.ledger.deny(messages, [denial] * len(messages))

    def make_due(self) -> None:
        """Everything that waits is due now: nobody wants to wait in a test."""
        self.sql("UPDATE dead_letters SET retry_at = to_timestamp(1) WHERE state = 'waiting'")

    def expire(self, user_id: str, notification_id: str) -> None:
        """In the ledger it is over; its row does not know."""
        identity = Identity(user_id, "websocket", notification_id)
        key, part = f"{prefix_of(user_id)}ledger", identity_part(identity)
        entry: Any = self.client.hget(key, part)
        words = entry.decode().split()
        words[6] = "1"
        self.client.hset(key, part, " ".join(words))

    def sql(self, statement: str, **values: Any) -> list[Any]:
        def work(connection: Any) -> list[Any]:
            result = connection.execute(text(statement), values)
            return list(result.all()) if result.returns_rows else []

        return self.store.run(work)

    def feed(self, user_id: str) -> list[dict[str, Any]]:
        entries: Any = self.client.xrange(user_key("feed", user_id, "websocket"))
        return [json.loads(b"{" + fields[b"f"]) for _, fields in entries]

    def balanced(self) -> bool:
        c = self.ledger.counts()
        ends = c.delivered + c.digested + c.expired + c.dropped + c.duplicate + c.parked
        return c.accepted == ends + c.waiting + c.in_flight


MakeBench = Callable[..., Bench]


def rows(bench: Bench) -> list[str]:
    """The notification ids in the table."""
    return [row[0] for row in bench.sql("SELECT notification_id FROM dead_letters ORDER BY 1")]
