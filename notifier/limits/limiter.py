"""The limiter: local grants as loans, shared decisions in one round trip, grace while its Redis is away.

Why it is exact is proven in docs/limits.md; the letters (a) to (d) are the rules of lending there.
"""

from __future__ import annotations

import math
import os
import secrets
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from redis.exceptions import RedisError

from notifier import metrics
from notifier.limit import MAX_EMISSION_US
from notifier.limits import overrides
from notifier.limits.keeper import Keeper
from notifier.limits.local import LocalBucket
from notifier.limits.policies import Policies
from notifier.limits.policy import Policy
from notifier.limits.shared import BULK, CRITICAL, LOAN, NORMAL, ONE, Answer, Entry, SharedBuckets
from notifier.limits.verdict import Request, Verdict
from notifier.notification import MAX_USER_ID, Identity, clean_user_id
from notifier.redis.breaker import Breaker
from notifier.redis.client import Connections, connect
from notifier.redis.scripts import script
from notifier.settings import Settings

__all__ = ["Limiter", "LimiterState", "Request", "Verdict"]

CHARGE_AFTER_S = 0.04  # a loan is charged this long after it is made, at most: within 50 ms with the call itself
POLL_S = 0.5  # overrides are seen by every process after this
PROBE_S = 0.2  # an unavailable Redis is tried this often
UNAVAILABLE_S = 1.0  # ask again after this, while it is away
ATTACHED = 64  # loans that travel with a request; more go by themselves
BATCH = 1_000  # loans a flush takes at once
MAX_REQUESTS = 1_000  # of one round trip
MAX_FALLBACK = 10_000

_KINDS = {"normal": NORMAL, "critical": CRITICAL, "bulk": BULK}
_LEVELS = ("", "user", "channel", "quota")
_verdict: Callable[[type[Verdict], tuple[object, ...]], Verdict] = tuple.__new__  # twice as fast as calling the class
_limiters: weakref.WeakSet[Limiter] = weakref.WeakSet()


class Batch(NamedTuple):
    """Loans on their way. It stays as it is, seq and all, until it is known to be charged."""

    seq: int
    entries: list[Entry]


class LimiterState(NamedTuple):
    """For metrics and `notifier status`."""

    up: bool
    outage: str | None  # why it is down
    outages: int
    grace_left_s: float
    loans: int  # granted locally, not yet charged
    users: int  # that this process remembers
    fallback: int
    decisions: dict[str, int]  # grants by source; denials by level, or from the cache


class Limiter:
    """Decides whether a notification may go to its user now. One a process; safe between threads and over forks.

    Opens no connection and starts no thread before it is asked for the first time. Never raises because Redis is away.
    """

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._clock = clock
        self._begin()
        _limiters.add(self)

    @classmethod
    def from_settings(cls, settings: Settings) -> Limiter:
        """The limiter that the settings describe."""
        return cls(settings)

    def _begin(self) -> None:
        """All state, as new: at the start, and in a forked child, whose parent's loans are the parent's to charge."""
        settings = self._settings
        bucket = settings.local_bucket
        self._bucket = None if bucket.off else LocalBucket(bucket.burst, bucket.rate, self._clock)
        self._breaker = Breaker("the limiter's Redis", self._clock)
        self._connections = Connections(connect(settings.limiter_url, settings.limiter_timeout))
        self._shared = SharedBuckets(
            self._connections, script("token_bucket"), secrets.token_hex(8), settings.max_processes
        )
        self._policies = Policies(settings)
        self._aliases = self._policies.aliases
        self._keeper = Keeper(self._tend)
        self._lock = threading.Lock()  # knowledge, loans, local bucket
        self._charging = threading.Lock()  # held while a batch of loans travels: their numbers must arrive in order
        self._batch: Batch | None = None
        self._seq = 1
        self._sends = 0
        self._loans = 0  # open, not yet in a batch
        self._size = settings.local_users
        self._contacted = False
        self._grace_until = 0.0
        self._charge_due = self._poll_due = 0.0
        self._offset_us = time.time_ns() // 1000 - int(self._clock() * 1e6)
        self._fallback: deque[Identity] = deque(maxlen=MAX_FALLBACK)
        self._granted = dict.fromkeys(("local", "shared", "grace"), 0)
        self._published = dict(self._granted)
        self._cached = 0
        self._denied = dict.fromkeys(("user", "channel", "quota", "unavailable"), 0)

    # -- deciding

    def acquire(
        self, user_id: str, channel: str = "websocket", category: str = "default", priority: str = "normal"
    ) -> Verdict:
        """Decide for one notification. Raises ValueError for an argument that cannot be."""
        policy = self._aliases.get((channel, category)) or self._policy(channel, category)
        kind = _KINDS.get(priority)
        if kind is None:
            raise ValueError(f"priority must be one of {', '.join(_KINDS)}, not {priority!r:.50}")
        if type(user_id) is not str or not user_id.isascii() or not 0 < len(user_id) <= MAX_USER_ID:
            user_id = clean_user_id(user_id)
        now = self._clock()
        return self._here(policy, user_id, kind, now) or self._ask([(policy, user_id, ONE + kind)])[0]

    def acquire_many(self, requests: Sequence[Request]) -> list[Verdict]:
        """Decide for many, in order, in one round trip for each 1,000 that cannot be decided here."""
        if len(requests) > MAX_REQUESTS:
            parts = range(0, len(requests), MAX_REQUESTS)
            return [verdict for start in parts for verdict in self.acquire_many(requests[start : start + MAX_REQUESTS])]
        verdicts: list[Verdict] = []
        entries: list[Entry] = []
        places: list[int] = []
        asked: set[str] = set()  # a later one of the same user must not pass an earlier one by a local grant
        now = self._clock()
        for user_id, channel, category, priority in requests:
            policy = self._aliases.get((channel, category)) or self._policy(channel, category)
            kind = _KINDS.get(priority)
            if kind is None:
                raise ValueError(f"priority must be one of {', '.join(_KINDS)}, not {priority!r:.50}")
            if type(user_id) is not str or not user_id.isascii() or not 0 < len(user_id) <= MAX_USER_ID:
                user_id = clean_user_id(user_id)
            verdict = None if user_id in asked else self._here(policy, user_id, kind, now)
            if verdict is None:
                asked.add(user_id)
                entries.append((policy, user_id, ONE + kind))
                places.append(len(verdicts))
                verdict = _PENDING
            verdicts.append(verdict)
        if entries:
            for place, verdict in zip(places, self._ask(entries), strict=True):
                verdicts[place] = verdict
        self._publish()
        return verdicts

    def _policy(self, channel: str, category: str) -> Policy:
        if not self._policies.loaded and not self._breaker.down:
            self._poll()
            self._keeper.wake()
        return self._policies.find(channel, category)

    def _here(self, policy: Policy, user_id: str, kind: int, now: float) -> Verdict | None:
        """Decide without a round trip; None if that cannot be."""
        known = policy.known.get(user_id)
        if known is not None:
            if kind != CRITICAL:
                until = known[0] if kind == NORMAL else max(known[0], known[5])
                if now < until:
                    self._cached += 1
                    return _verdict(Verdict, (False, until - now, known[1], "local", 0, known[2]))
            if now >= known[3]:
                policy.known.pop(user_id, None)
                known = None
        channel = policy.channel
        if channel is not None and now < channel.until:
            self._cached += 1
            return Verdict(False, channel.until - now, "channel", "local", 0, policy.interval_s(2, 0))
        if self._breaker.down:
            return self._without_redis(policy, user_id, kind, now)
        bucket = self._bucket
        if (
            known is None  # (a)
            and policy.lends  # (c)
            and bucket is not None
            and kind != BULK
            and now >= policy.blind_until  # (d)
            and (channel is None or channel.full)  # (c)
        ):
            with self._lock:
                loans = policy.open
                if user_id in loans or user_id in policy.sent:  # (b)
                    return None
                if self._lend(bucket, policy, user_id, now):
                    self._granted["local"] += 1
                    return _verdict(Verdict, (True, 0.0, None, "local", int(now * 1e6) + self._offset_us, 0.0))
        if policy.free:
            self._granted["local"] += 1
            return Verdict(True, 0.0, None, "local", int(now * 1e6) + self._offset_us)
        return None

    def _lend(self, bucket: LocalBucket, policy: Policy, user_id: str, now: float) -> bool:
        """Take a token of the local bucket and note the loan. Under the lock."""
        loans = policy.open
        if len(loans) >= self._size or not bucket.take(now):
            return False
        loans[user_id] = loans.get(user_id, 0) + 1
        self._loans += 1
        if self._loans == 1:
            self._charge_due = now + CHARGE_AFTER_S
            self._keeper.wake()
        return True

    def _without_redis(self, policy: Policy, user_id: str, kind: int, now: float) -> Verdict:
        """Grace: lend to whom nothing is held against, for a while. Then everything is deferred."""
        if policy.user.blocks and kind != CRITICAL:
            self._denied["user"] += 1
            return Verdict(False, policy.user.emission_us / 1e6, "user", "local", 0, math.inf)
        bucket = self._bucket
        with self._lock:
            if (
                now < self._grace_until
                and bucket is not None
                and kind != BULK
                and policy.quota.off
                and self._lend(bucket, policy, user_id, now)
            ):
                self._granted["grace"] += 1
                return Verdict(True, 0.0, None, "grace", int(now * 1e6) + self._offset_us)
        self._denied["unavailable"] += 1
        return Verdict(False, UNAVAILABLE_S, "unavailable", "local")

    def _ask(self, entries: list[Entry]) -> list[Verdict]:
        """Let the shared buckets decide; open loans are charged with the same call."""
        batch: Batch | None = None
        holds = (self._loans > 0 or self._batch is not None) and self._charging.acquire(blocking=False)
        try:
            if holds:
                batch = self._take(ATTACHED)
            return self._send(batch, entries)
        except (RedisError, OSError) as error:
            self._fail(error)
            now = self._clock()
            return [self._without_redis(policy, user_id, code % 8, now) for policy, user_id, code in entries]
        finally:
            if holds:
                self._charging.release()

    # -- learning

    def _send(self, batch: Batch | None, entries: list[Entry]) -> list[Verdict]:
        """One round trip: charge, decide, and learn from the reply. Raises what the call raises."""
        charges = [] if batch is None else batch.entries
        with self._lock:
            self._sends += 1
            generation = self._sends
        everything = charges + entries
        answer = self._shared.decide(everything, len(charges), 0 if batch is None else batch.seq)
        with self._lock:
            if batch is not None:
                for policy, user_id, _ in charges:
                    policy.sent.pop(user_id, None)
                self._batch = None
            self._contacted = True
            return self._learn(everything, answer, generation)

    def _learn(self, entries: list[Entry], answer: Answer, generation: int) -> list[Verdict]:
        """Note who is full, in debt or denied; the verdicts of those who asked. Under the lock.

        A reply "full" counts only if it was asked for after the last "not full" was noted: replies may overtake.
        """
        now, debt, now_us = self._clock(), self._settings.max_processes, answer.now_us
        self._offset_us = now_us - int(now * 1e6)
        for channel, full in answer.channels:
            if not full:
                channel.full, channel.not_full_at = False, self._sends
            elif generation > channel.not_full_at:
                channel.full = True
        verdicts: list[Verdict] = []
        granted = _verdict(Verdict, (True, 0.0, None, "shared", now_us, 0.0))
        numbers, at, grants = answer.numbers, 0, 0
        for policy, user_id, code in entries:
            wait_us, flags, emission_us = numbers[at : at + 3]
            at += 3
            if wait_us:
                verdicts.append(self._denial(policy, user_id, code % 8, (wait_us, flags, emission_us), now))
            elif code % 8 != LOAN:
                verdicts.append(granted)
                grants += 1
            known = policy.known.get(user_id)
            if flags & 1:
                if known is not None and generation > known[4] and not wait_us:
                    del policy.known[user_id]
            elif not wait_us or flags >> 1 == 2:
                held = (0.0, "user", 0.0, now + debt * (emission_us or MAX_EMISSION_US) / 1e6, self._sends, 0.0)
                policy.remember(user_id, held, now, self._size)
        self._granted["shared"] += grants
        return verdicts

    def _denial(self, policy: Policy, user_id: str, kind: int, numbers: tuple[int, int, int], now: float) -> Verdict:
        """The verdict, and what the deny cache keeps of it. Under the lock."""
        wait_us, flags, emission_us = numbers
        level, wait_s = _LEVELS[flags >> 1], wait_us / 1e6
        interval_s = policy.interval_s(flags >> 1, emission_us)
        self._denied[level] += 1
        if level == "channel" and policy.channel is not None:
            policy.channel.until = now + wait_s
        else:
            debt_s = self._settings.max_processes * (emission_us or MAX_EMISSION_US) / 1e6
            expires = now + max(wait_s, debt_s)
            held = (now + wait_s, level, interval_s, expires, self._sends, 0.0)
            if kind == BULK:  # says nothing about others
                before = policy.known.get(user_id)
                held = (before[0] if before else 0.0, level, interval_s, expires, self._sends, now + wait_s)
            policy.remember(user_id, held, now, self._size)
        return _verdict(Verdict, (False, wait_s, level, "shared", 0, interval_s))

    def _take(self, most: int) -> Batch | None:
        """The loans to charge next: those of a call that failed before, else the open ones. Under `_charging`."""
        with self._lock:
            if self._batch is not None:
                return self._batch if len(self._batch.entries) <= most else None
            entries: list[Entry] = []
            for policy in self._policies.all():
                while policy.open and len(entries) < most:
                    user_id, count = policy.open.popitem()
                    policy.sent[user_id] = count
                    entries.append((policy, user_id, count * ONE + LOAN))
                    self._loans -= count
            if not entries:
                return None
            self._batch = Batch(self._seq, entries)
            self._seq += len(entries)  # more than its chunks
            return self._batch

    # -- in the background

    def _tend(self) -> float:
        """Charge, probe, poll. Returns the seconds until it should be called again."""
        self._publish()
        now = self._clock()
        if self._breaker.down:
            if not self._probe():
                return PROBE_S
        elif now >= self._poll_due:
            self._poll()
        if (self._loans or self._batch is not None) and now >= self._charge_due:
            self._charge()
        now = self._clock()
        if self._breaker.down:
            return PROBE_S
        due = self._poll_due if not self._loans else min(self._poll_due, self._charge_due)
        return max(0.001, due - now)

    def _charge(self) -> bool:
        """Charge all open loans. False if Redis is away: they stay open."""
        with self._charging:
            while (batch := self._take(BATCH)) is not None:
                try:
                    self._send(batch, [])
                except (RedisError, OSError) as error:
                    self._fail(error)
                    return False
        return True

    def _probe(self) -> bool:
        """Run the script for real: that finds every kind of outage. Loans are charged before anybody is granted."""
        self._connections.close()
        try:
            with self._charging:
                while True:
                    batch = self._take(BATCH)
                    self._send(batch, [])
                    if batch is None:
                        break
            overriden = overrides.load(self._connections)
        except (RedisError, OSError) as error:
            self._breaker.fail(error)
            return False
        self._install(overriden)
        self._breaker.succeed()
        return True

    def _poll(self) -> None:
        self._poll_due = self._clock() + POLL_S
        try:
            found = overrides.load(self._connections)
        except (RedisError, OSError) as error:
            self._fail(error)
            return
        self._contacted = True
        self._install(found)

    def _install(self, found: overrides.Overrides) -> None:
        self._poll_due = self._clock() + POLL_S
        with self._lock:
            self._policies.install(found)

    def _publish(self) -> None:
        """Bring the metrics up to date: not at every decision, which would cost more than the decision."""
        for source, published in self._published.items():
            if count := self._granted[source] - published:
                self._published[source] += count
                metrics.GRANTS.labels(source).inc(count)

    def _fail(self, error: Exception) -> None:
        if not self._breaker.down:
            # A process that never reached Redis has no credit: else recycling children would make grace endless.
            self._grace_until = self._clock() + self._settings.grace_seconds if self._contacted else 0.0
        self._breaker.fail(error)
        self._keeper.wake()

    # -- around it

    def fall_back(self, identities: Iterable[Identity]) -> None:
        """Remember who was denied with level `unavailable`, the newest 10,000. They are safe elsewhere."""
        self._fallback.extend(identities)

    def drain_fallback(self) -> list[Identity]:
        """Those remembered by fall_back, once, as soon as Redis is back. Until then none."""
        drained: list[Identity] = []
        if self._fallback and not self._breaker.down:
            while self._fallback:
                drained.append(self._fallback.popleft())
        return drained

    def flush(self, timeout_s: float = 1.0) -> None:
        """Charge open loans now, as far as Redis answers. For the end of a process."""
        end = self._clock() + timeout_s
        while (self._loans or self._batch is not None) and self._clock() < end:
            if not self._charge():
                return

    def state(self) -> LimiterState:
        """What it does and has done."""
        down = self._breaker.down
        left_s = self._grace_until - self._clock() if down else self._settings.grace_seconds
        with self._lock:
            loans = self._loans + (0 if self._batch is None else sum(code // ONE for _, _, code in self._batch.entries))
            users = sum(len(policy.known) for policy in self._policies.all())
        denied = {f"denied_{level}": count for level, count in self._denied.items()}
        decisions = {**self._granted, "denied_cached": self._cached, **denied}
        breaker, waiting = self._breaker, len(self._fallback)
        return LimiterState(not down, breaker.kind, breaker.outages, max(0.0, left_s), loans, users, waiting, decisions)

    def close(self) -> None:
        """Charge what is open, end the thread, close the connections."""
        self.flush()
        self._publish()
        self._keeper.stop()
        self._connections.close()


_PENDING = Verdict(False, 0.0, None, "")


def _after_fork() -> None:
    for limiter in list(_limiters):
        limiter._begin()


os.register_at_fork(after_in_child=_after_fork)
