"""What one process decides and knows: loans, deny cache, grace. No I/O, no thread, time is handed in.

Why it is exact is proven in docs/limits.md; the letters (a) to (d) are the rules of lending there.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import NamedTuple

from notifier.limit import MAX_EMISSION_US
from notifier.limits.local import LocalBucket
from notifier.limits.overrides import Overrides
from notifier.limits.policies import Policies
from notifier.limits.policy import Policy
from notifier.limits.shared import BULK, CRITICAL, LOAN, NORMAL, ONE, Answer, Entry
from notifier.limits.verdict import Verdict

FRESH_S = 0.0005
CHARGE_AFTER_S = 0.04  # a loan is charged this long after it is made, at most: within 50 ms with the call itself
UNAVAILABLE_S = 1.0  # ask again after this, while Redis is away

_LEVELS = ("", "user", "channel", "quota")
make: Callable[[type[Verdict], tuple[object, ...]], Verdict] = tuple.__new__  # twice as fast as calling the class


class Batch(NamedTuple):
    """Loans on their way. It stays as it is, seq and all, until it is known to be charged."""

    seq: int
    entries: list[Entry]


class Core:
    """One process's side of the limiter. `lock` guards everything; methods that need it held say so.

    `processes` bounds who may lend (a user's debt), `users` each table, `lent` is called at the first open loan.
    """

    def __init__(
        self,
        policies: Policies,
        bucket: LocalBucket | None,
        *,
        users: int,
        processes: int,
        grace_s: float,
        offset_us: int = 0,
        lent: Callable[[], None] = lambda: None,
    ) -> None:
        self.lock = threading.Lock()
        self.policies = policies
        self.down_since: float | None = None
        self.grace_until = 0.0
        self.charge_due = 0.0
        self.cached = 0
        self.granted = dict.fromkeys(("shared", "grace"), 0)
        self.denied = dict.fromkeys(("user", "channel", "quota", "unavailable"), 0)
        self._bucket = bucket or LocalBucket(1, 0)  # without one, no policy lends
        self._fresh_until = 0.0
        self._local = Verdict(True, 0.0, None, "local")
        self._lenders: dict[Policy, None] = {}  # policies with open loans
        self._loans = 0  # ever made, but for those that are open
        self._free = 0  # granted where there is no limit
        self._users = users
        self._processes = processes
        self._grace_s = grace_s
        self._offset_us = offset_us  # the limiter's Redis time less ours
        self._lent = lent
        self._batch: Batch | None = None
        self._seq = 1
        self._sends = 0
        self._reached = False

    # -- deciding

    def here(self, policy: Policy, user_id: str, kind: int, now: float) -> Verdict | None:
        """Decide without a round trip; None if that cannot be."""
        known = policy.known.get(user_id)
        if known is not None:
            if kind != CRITICAL:
                until = known[0] if kind == NORMAL else max(known[0], known[5])
                if now < until:
                    self.cached += 1
                    return make(Verdict, (False, until - now, known[1], "local", 0, known[2]))
            if now >= known[3]:
                with self.lock:  # another thread may be making room in the table
                    policy.known.pop(user_id, None)
                known = None
        channel = policy.channel
        if channel is not None and now < channel.until:
            self.cached += 1
            return Verdict(False, channel.until - now, "channel", "local", 0, policy.interval_s(2, 0))
        if self.down_since is not None and not policy.free:  # nothing limits them: nobody has to be asked
            return self.without_redis(policy, user_id, kind, now)
        # (a), (c), (d); critical may be lent, bulk may not: it would take the second half of a burst
        lends = known is None and policy.lends and kind != BULK and now >= policy.blind_until
        if lends and (channel is None or channel.full) and (verdict := self.lend(policy, user_id, now)) is not None:
            return verdict
        if policy.free:
            self._free += 1
            return Verdict(True, 0.0, None, "local", self._redis_us(now))
        return None

    def lend(self, policy: Policy, user_id: str, now: float) -> Verdict | None:
        """A local grant to whom nothing is held against, if the local bucket has a token and he owes none.

        The fastest thing here: within half a millisecond the bucket is not refilled, and the verdict is the same.
        """
        with self.lock:
            loans, bucket = policy.open, self._bucket
            if user_id not in loans and user_id not in policy.sent and len(loans) < self._users:  # (b), (d)
                if now < self._fresh_until and bucket.tokens >= 1:
                    bucket.tokens -= 1
                elif bucket.take(now):
                    self._fresh_until = now + FRESH_S
                    self._local = make(Verdict, (True, 0.0, None, "local", self._redis_us(now), 0.0))
                else:
                    return None
                if not loans:
                    self._first_loan(policy, now)
                loans[user_id] = 1
                return self._local
        return None

    def without_redis(self, policy: Policy, user_id: str, kind: int, now: float) -> Verdict:
        """Grace: lend to whom nothing is held against, at most at his own rate. When it is over all are deferred."""
        if policy.user.blocks and kind != CRITICAL:
            self.denied["user"] += 1
            return Verdict(False, policy.user.emission_us / 1e6, "user", "local", 0, math.inf)
        bucket = self._bucket
        if policy.local and kind != BULK and policy.quota.off:
            with self.lock:
                loans = policy.open
                lent = loans.get(user_id, 0) + policy.sent.get(user_id, 0)
                rate = min(bucket.fill_rate, policy.user.rate)
                if (
                    self.down_since is not None
                    and now < self.grace_until
                    and lent <= rate * (now - self.down_since)
                    and (user_id in loans or len(loans) < self._users)
                    and bucket.take(now)
                ):
                    if not loans:
                        self._first_loan(policy, now)
                    loans[user_id] = loans.get(user_id, 0) + 1
                    self.granted["grace"] += 1
                    return Verdict(True, 0.0, None, "grace", self._redis_us(now))
        self.denied["unavailable"] += 1
        return Verdict(False, UNAVAILABLE_S, "unavailable", "local")

    def _first_loan(self, policy: Policy, now: float) -> None:
        if not self._lenders:
            self.charge_due = now + CHARGE_AFTER_S
            self._lent()
        self._lenders[policy] = None

    def _redis_us(self, now: float) -> int:
        return int(now * 1e6) + self._offset_us

    # -- asking the shared buckets

    @property
    def owes(self) -> bool:
        """Some loan is not known to be charged."""
        return bool(self._lenders) or self._batch is not None

    def take(self, most: int) -> Batch | None:
        """The loans to charge next: those of a call that failed, else open ones; None if there are none, or too many.

        Only one batch may travel at a time, for their numbers must arrive in order.
        """
        with self.lock:
            if self._batch is not None:
                return self._batch if len(self._batch.entries) <= most else None
            entries: list[Entry] = []
            for policy in list(self._lenders):
                while policy.open and len(entries) < most:
                    user_id, count = policy.open.popitem()
                    policy.sent[user_id] = count
                    entries.append((policy, user_id, count * ONE + LOAN))
                    self._loans += count
                if not policy.open:
                    del self._lenders[policy]
            if not entries:
                return None
            self._batch = Batch(self._seq, entries)
            self._seq += len(entries)  # more than its chunks
            return self._batch

    def depart(self) -> int:
        """The number of a call that is about to be sent; learn() wants it back."""
        with self.lock:
            self._sends += 1
            return self._sends

    def learn(self, batch: Batch | None, entries: list[Entry], answer: Answer, call: int, now: float) -> list[Verdict]:
        """Take in a reply to batch and entries: the batch is charged; note who is full, in debt or denied.

        Returns the verdicts of the entries. "Full" counts only if asked for after the last "not full" was noted.
        """
        debt_s = self._processes / 1e6
        verdicts: list[Verdict] = []
        granted = make(Verdict, (True, 0.0, None, "shared", answer.now_us, 0.0))
        numbers, grants = iter(answer.numbers), 0
        with self.lock:
            self._reached = True
            self._offset_us = answer.now_us - int(now * 1e6)
            for channel, full in answer.channels:
                if not full:
                    channel.full, channel.not_full_at = False, self._sends
                elif call > channel.not_full_at:
                    channel.full = True
            if batch is not None:
                self._batch = None
                for policy, user_id, _ in batch.entries:
                    policy.sent.pop(user_id, None)
                entries = batch.entries + entries
            for (policy, user_id, code), wait_us, flags, emission_us in zip(
                entries, numbers, numbers, numbers, strict=True
            ):
                known = policy.known.get(user_id)
                if wait_us:
                    verdicts.append(self._denial(policy, user_id, code % 8, (wait_us, flags, emission_us), now))
                    if flags >> 1 != 2:
                        continue
                elif code % 8 != LOAN:
                    verdicts.append(granted)
                    grants += 1
                if not flags & 1:
                    void = now + debt_s * (emission_us or MAX_EMISSION_US)
                    policy.remember(user_id, (0.0, "user", 0.0, void, self._sends, 0.0), now, self._users)
                elif known is not None and call > known[4]:
                    policy.known.pop(user_id, None)
            self.granted["shared"] += grants
        return verdicts

    def _denial(self, policy: Policy, user_id: str, kind: int, numbers: tuple[int, int, int], now: float) -> Verdict:
        """The verdict, and what the deny cache keeps of it. Under the lock."""
        wait_us, flags, emission_us = numbers
        level, wait_s = _LEVELS[flags >> 1], wait_us / 1e6
        interval_s = policy.interval_s(flags >> 1, emission_us)
        self.denied[level] += 1
        if level == "channel" and policy.channel is not None:
            policy.channel.until = now + wait_s
        else:
            void = now + max(wait_s, self._processes * (emission_us or MAX_EMISSION_US) / 1e6)
            until, bulk_until = now + wait_s, 0.0
            if kind == BULK:  # says nothing about others
                before = policy.known.get(user_id)
                until, bulk_until = before[0] if before else 0.0, until
            policy.remember(user_id, (until, level, interval_s, void, self._sends, bulk_until), now, self._users)
        return make(Verdict, (False, wait_s, level, "shared", 0, interval_s))

    # -- outages and changes

    def outage(self, now: float) -> None:
        """Redis does not answer. No grace for who never reached it: else recycling children would make it endless."""
        with self.lock:
            if self.down_since is None:
                self.down_since = now
                self.grace_until = now + self._grace_s if self._reached else 0.0

    def back(self) -> None:
        """Redis answers again."""
        self.down_since = None

    def reached(self) -> None:
        """Redis has answered: from now on an outage has a grace."""
        self._reached = True

    def install(self, found: Overrides) -> None:
        """Overrides were read, so Redis was reached."""
        with self.lock:
            self._reached = True
            self.policies.install(found)

    def users_known(self) -> int:
        """How many users something is held against."""
        return sum(len(policy.known) for policy in self.policies.all())

    def debts(self) -> int:
        """Loans not known to be charged."""
        with self.lock:
            return self._open() + (0 if self._batch is None else sum(code // ONE for _, _, code in self._batch.entries))

    def _open(self) -> int:
        return sum(sum(policy.open.values()) for policy in self._lenders)

    def grants(self) -> dict[str, int]:
        """Grants so far, by source."""
        with self.lock:
            lent = self._loans + self._open() + self._free
            return {"local": lent - self.granted["grace"], **self.granted}
