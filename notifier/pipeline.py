"""What a worker does with messages: admit, then deliver or defer. Lists everywhere; knows no Celery.

Every exit leaves an owner. The ledger's scripts decide whether a message may still act; where state Redis is away the
worker writes the row itself; where PostgreSQL is away too, `handle` raises and the message must go back to the broker.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Protocol

from notifier import channels, metrics, preferences, tracing
from notifier.channels import Delivery, Duplicate, Failed, Outcome, RetryAt, Sent
from notifier.channels.attempts import attempt, backoff_s
from notifier.channels.breaker import breakers
from notifier.errors import SettingsError, StateUnavailable, Unavailable
from notifier.ledger import Ledger
from notifier.licence import TRIES, Deferred, Denial, End, Grant
from notifier.limits.limiter import Limiter, Request, Verdict
from notifier.notification import WEBSOCKET, Identity
from notifier.preferences import OPTED_OUT
from notifier.settings import Settings
from notifier.wire import Message

NEAR_END_US = 5_000_000  # closer to its expiry than this, a message is looked up before it may take a token


class Rows(Protocol):
    """Where rows are written when state Redis is away."""

    def insert(self, items: Sequence[Deferred]) -> Sequence[Identity]: ...


class Pipeline:
    """Worker side of the protocol."""

    def __init__(
        self,
        ledger: Ledger,
        limiter: Limiter,
        rows: Rows,
        settings: Settings,
        replay_these: Callable[[Sequence[Identity]], object],
    ) -> None:
        self._ledger, self._limiter, self._rows, self._settings = ledger, limiter, rows, settings
        self._replay_these = replay_these
        self._default_ttl_us = int(settings.default_ttl * 1_000_000)

    @tracing.timed
    def handle(self, messages: Sequence[Message]) -> bool:
        """Deliver or defer each. Raises Unavailable if neither Redis nor PostgreSQL would hold them.

        False where state Redis is away: they are rows now, and no start of theirs was counted.
        """
        try:
            ready = self._admit(messages)
            for channel, group in groupby(sorted(ready, key=_channel), key=_channel):
                if channel == WEBSOCKET:
                    self._to_feeds(list(group))
                else:
                    self._to_channel(channel, list(group))
        except StateUnavailable as error:
            metrics.degraded("state_redis", error)
            if refused := self._rows.insert([_row_by_worker(message, self._default_ttl_us) for message in messages]):
                metrics.degraded("row_refused", f"PostgreSQL refuses {len(refused)} notifications as rows")
            return False
        if back := self._limiter.drain_fallback():  # the limiter's Redis is back: exactly those that it had to deny
            try:
                self._replay_these(back)
            except Unavailable as error:  # their rows are due in a moment anyway; the messages here are done
                metrics.degraded("fallback_replay", error)
        return True

    # ---- admit

    def _admit(self, messages: Sequence[Message]) -> list[Message]:
        """Drop what has ended. Those that come again count a start first; those near their end may have expired.

        For feeds only: what goes to a channel outside begins when it is claimed, and a redelivery counts one start.
        """
        now_us = self._ledger.estimated_us()
        asked = [
            m for m in messages if _channel(m) == WEBSOCKET and (m.again or self._expires_us(m) - NEAR_END_US < now_us)
        ]
        if not asked:
            return list(messages)
        replies = self._ledger.begin(asked)
        gone = {m.identity for m, reply in zip(asked, replies, strict=True) if reply.code != "go"}
        return [m for m in messages if m.identity not in gone]

    def _expires_us(self, message: Message) -> int:
        n = message.notification
        ttl_us = n.ttl_us or self._default_ttl_us
        return max(message.accepted_us, n.not_before_us) + ttl_us if message.accepted_us else 2**62

    def _wanted(self, messages: list[Message]) -> list[Message]:
        """Those that their users' preferences let go now."""
        if not preferences.asked():
            return messages
        found = preferences.objections(
            [m.notification for m in messages], self._ledger.estimated_us(), self._settings.preferences_seconds
        )
        objected = [(m, o) for m, o in zip(messages, found, strict=True) if o]
        self._ledger.book([m for m, o in objected if o.reason == OPTED_OUT], End.DROPPED, OPTED_OUT)
        later = [(m, o.denial()) for m, o in objected if o.reason != OPTED_OUT]
        self._ledger.deny([m for m, _ in later], [denial for _, denial in later])
        return [m for m, o in zip(messages, found, strict=True) if o is None]

    def _ask(self, messages: Sequence[Message]) -> list[tuple[Message, Verdict]]:
        verdicts = self._limiter.acquire_many(
            [
                Request(n.user_id, n.channel, n.category, n.priority)
                for n in (message.notification for message in messages)
            ]
        )
        return list(zip(messages, verdicts, strict=True))

    # ---- feeds

    def _to_feeds(self, messages: list[Message]) -> None:
        messages = self._wanted(messages)
        for _ in range(TRIES):
            asked_at_s = time.monotonic()
            asked = self._ask(messages)
            self._deny([(m, v) for m, v in asked if not v.granted])
            granted = [(m, v) for m, v in asked if v.granted]
            if not granted:
                return
            deadline_us = self._ledger.deadline_us(asked_at_s)
            grants = [Grant(v.granted_at_us, deadline_us, self._interval_us(m)) for m, v in granted]
            replies = self._ledger.deliver([m for m, _ in granted], grants)
            messages = [m for (m, _), reply in zip(granted, replies, strict=True) if reply.code == "late"]
            if not messages:
                return
        self._ledger.deny(messages, [Denial(0, self._interval_us(m), "order") for m in messages])

    def _interval_us(self, message: Message) -> int:
        return self._settings.interval_us_of(_channel(message))

    # ---- denials

    def _deny(self, denied: Sequence[tuple[Message, Verdict]]) -> None:
        """Park what can never pass, drop what the policy drops, defer the rest."""
        never = [m for m, v in denied if math.isinf(v.interval_s)]
        if never:
            self._ledger.book(never, End.PARKED, "rate_limited", ["the limit is 0/s: none pass"] * len(never))
        left = [(m, v) for m, v in denied if not math.isinf(v.interval_s)]
        if self._settings.overflow == "drop":  # what exceeds a limit; an outage of the limiter is no reason
            over = [m for m, v in left if v.level != "unavailable"]
            self._ledger.book(over, End.DROPPED, "rate_limited")
            left = [(m, v) for m, v in left if v.level == "unavailable"]
        if not left:
            return
        denials = [v.denial(self._interval_us(m)) for m, v in left]
        self._ledger.deny([m for m, _ in left], denials)
        self._limiter.fall_back([m.identity for m, v in left if v.level == "unavailable"])

    # ---- channels outside

    def _to_channel(self, name: str, messages: list[Message]) -> None:
        if wait_s := breakers.wait_s(name):  # first: to make a channel may fail, and take long, time and again
            self._ledger.deny(messages, [Denial(int(wait_s * 1e6), 0, "breaker_open")] * len(messages))
            return
        try:
            channel = channels.get(name)
        except SettingsError as error:
            self._ledger.book(messages, End.PARKED, "delivery_failed", [str(error)] * len(messages))
            return
        replies = self._ledger.begin(messages, lease_us=int(channel.lease_s * 1_000_000))
        blocked = [m for m, r in zip(messages, replies, strict=True) if r.code == "blocked"]
        if blocked:
            self._ledger.deny(blocked, [Denial(0, self._interval_us(m), "order") for m in blocked])
        asked = self._ask(self._wanted([m for m, r in zip(messages, replies, strict=True) if r.code == "go"]))
        self._deny([(m, v) for m, v in asked if not v.granted])
        granted = [(m, v) for m, v in asked if v.granted]
        if granted:
            deliveries = [Delivery(m.notification, m.accepted_us, v.granted_at_us, 1) for m, v in granted]
            outcomes = attempt(channel, deliveries)
            self._settle([m for m, _ in granted], outcomes)

    def _settle(self, messages: Sequence[Message], outcomes: Sequence[Outcome]) -> None:
        paired = list(zip(messages, outcomes, strict=True))
        self._ledger.book([m for m, o in paired if isinstance(o, (Sent, Duplicate))], End.DELIVERED)
        failed = [(m, o.error) for m, o in paired if isinstance(o, Failed)]
        self._ledger.book([m for m, _ in failed], End.PARKED, "delivery_failed", [error for _, error in failed])
        again = [(m, o) for m, o in paired if isinstance(o, RetryAt)]
        self._ledger.deny(
            [m for m, _ in again],
            [Denial(int(backoff_s(1, o.wait_s) * 1e6), 0, "delivery_failed", 1, o.error) for _, o in again],
        )


def _channel(message: Message) -> str:
    return message.notification.channel


def _row_by_worker(message: Message, default_ttl_us: int) -> Deferred:
    """A row written without the ledger: the replay accepts it late, or finds that it has ended."""
    n = message.notification
    accepted_us = message.accepted_us or int(time.time() * 1e6)
    return Deferred(
        notification=n,
        seq=0,
        epoch=message.epoch,
        starts=0,
        accepted_us=accepted_us,
        expires_us=max(accepted_us, n.not_before_us) + (n.ttl_us or default_ttl_us),
        reason="scheduled" if n.not_before_us else "limiter_unavailable",
        retry_at_us=n.not_before_us,
        parked=False,
        attempts=0,
        error="",
    )
