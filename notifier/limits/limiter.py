"""The limiter of a process: the core, its Redis, and the thread that charges loans and watches for Redis' return."""

from __future__ import annotations

import os
import secrets
import threading
import time
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from redis.exceptions import RedisError

from notifier import metrics
from notifier.limits import overrides
from notifier.limits.clustered import RoutedBuckets
from notifier.limits.core import Core, make
from notifier.limits.keeper import Keeper
from notifier.limits.local import LocalBucket
from notifier.limits.policies import Policies
from notifier.limits.policy import Policy
from notifier.limits.shared import BULK, CRITICAL, NORMAL, ONE, Entry
from notifier.limits.verdict import Request, Verdict
from notifier.notification import MAX_USER_ID, Identity, clean_user_id
from notifier.redis.breaker import Breaker
from notifier.redis.routes import Routes
from notifier.redis.scripts import script
from notifier.settings import Settings

__all__ = ["Limiter", "LimiterState", "Request", "Verdict"]

POLL_S = 0.5  # overrides are seen by every process after this
PROBE_S = 0.2  # an unavailable Redis is tried this often
ATTACHED = 64  # loans that travel with a request; more go by themselves
BATCH = 1_000  # loans a flush takes at once
MAX_REQUESTS = 1_000  # of one round trip
MAX_FALLBACK = 10_000

_KINDS = {"normal": NORMAL, "critical": CRITICAL, "bulk": BULK}
_PENDING = Verdict(False, 0.0, None, "")
_limiters: weakref.WeakSet[Limiter] = weakref.WeakSet()


class LimiterState(NamedTuple):
    """For metrics and `notifier status`."""

    up: bool
    outage: str | None  # why it is down
    outages: int
    grace_left_s: float
    loans: int  # granted locally, not yet charged
    users: int  # that this process holds something against
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
        settings, bucket = self._settings, self._settings.local_bucket
        self._routes = Routes(settings.limiter_url, settings.limiter_timeout)
        self._discovered = False
        self._shared = RoutedBuckets(self._routes, script("token_bucket"), secrets.token_hex(8), settings.max_processes)
        self._breaker = Breaker(f"the limiter's Redis at {self._routes.place}", self._clock)
        self._keeper = Keeper(self._tend)
        self._core = Core(
            Policies(settings),
            None if bucket.off else LocalBucket(bucket.burst, bucket.rate, self._clock),
            users=settings.local_users,
            processes=settings.max_processes,
            grace_s=settings.grace_seconds,
            offset_us=time.time_ns() // 1000 - int(self._clock() * 1e6),
            lent=self._keeper.wake,
        )
        self._here, self._lend = self._core.here, self._core.lend
        self._aliases = self._core.policies.aliases
        self._charging = threading.Lock()  # held while a batch of loans travels
        self._polling = threading.Lock()
        self._publishing = threading.Lock()
        self._poll_due = 0.0
        self._fallback: deque[Identity] = deque(maxlen=MAX_FALLBACK)
        self._published: Counter[str] = Counter()

    # -- deciding

    def acquire(
        self, user_id: str, channel: str = "websocket", category: str = "default", priority: str = "normal"
    ) -> Verdict:
        """Decide for one notification. Raises ValueError for an argument that cannot be."""
        policy = self._aliases.get((channel, category))
        now = self._clock()
        if policy is None:
            policy = self._policy(channel, category)
        elif priority == "normal":  # the two that are met most, first: a cached denial, and a loan
            known = policy.known.get(user_id)
            if known is not None:
                if now < known[0]:
                    self._core.cached += 1
                    return make(Verdict, (False, known[0] - now, known[1], "local", 0, known[2]))
            elif (
                policy.quick
                and self._core.down_since is None
                and now >= policy.blind_until
                and user_id.__class__ is str
                and user_id.isascii()
                and 0 < len(user_id) <= MAX_USER_ID
                and (verdict := self._lend(policy, user_id, now)) is not None
            ):
                return verdict
        kind = _KINDS.get(priority)
        if kind is None:
            raise ValueError(f"priority must be one of {', '.join(_KINDS)}, not {priority!r:.50}")
        if type(user_id) is not str or not user_id.isascii() or not 0 < len(user_id) <= MAX_USER_ID:
            user_id = clean_user_id(user_id)
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
        now, here = self._clock(), self._here
        for user_id, channel, category, priority in requests:
            policy = self._aliases.get((channel, category)) or self._policy(channel, category)
            kind = _KINDS.get(priority)
            if kind is None:
                raise ValueError(f"priority must be one of {', '.join(_KINDS)}, not {priority!r:.50}")
            if type(user_id) is not str or not user_id.isascii() or not 0 < len(user_id) <= MAX_USER_ID:
                user_id = clean_user_id(user_id)
            verdict = None if user_id in asked else here(policy, user_id, kind, now)
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
        if not self._core.policies.loaded and not self._breaker.down:
            self._poll()
            self._keeper.wake()
        with self._core.lock:
            return self._core.policies.find(channel, category)

    def _ask(self, entries: list[Entry]) -> list[Verdict]:
        """Let the shared buckets decide; open loans are charged with the same call."""
        core = self._core
        charges = core.owes and self._charging.acquire(blocking=False)
        try:
            return self._send(entries, ATTACHED if charges else 0)[1]
        except (RedisError, OSError) as error:
            self._fail(error)
            now = self._clock()
            return [core.without_redis(policy, user_id, code % 8, now) for policy, user_id, code in entries]
        finally:
            if charges:
                self._charging.release()

    def _send(self, entries: list[Entry], most: int) -> tuple[bool, list[Verdict]]:
        """One round trip: charge up to `most` loans (under `_charging`), decide, learn. True if there were loans."""
        core = self._core
        batch = core.take(most) if most else None
        call = core.depart()
        if batch is None:
            answer = self._shared.decide(entries)
        else:
            answer = self._shared.decide(batch.entries + entries, len(batch.entries), batch.seq)
        return batch is not None, core.learn(batch, entries, answer, call, self._clock())

    # -- in the background

    def _tend(self) -> float:
        """Charge, probe, poll. Returns the seconds until it should be called again."""
        self._publish_rest()
        core, now = self._core, self._clock()
        if self._breaker.down:
            self._probe()
        elif now >= self._poll_due:
            self._poll()
        if core.owes and now >= core.charge_due:
            self._charge()
        if self._breaker.down:
            return PROBE_S
        due = min(self._poll_due, core.charge_due) if core.owes else self._poll_due
        return max(0.001, due - self._clock())

    def _charge(self) -> bool:
        """Charge all open loans. False if Redis is away: they stay open."""
        if self._breaker.down:
            return False
        with self._charging:
            try:
                while self._core.owes and self._send([], BATCH)[0]:
                    pass
            except (RedisError, OSError) as error:
                self._fail(error)
                return False
        return True

    def _probe(self) -> None:
        """Run the script for real: that finds every kind of outage. Loans are charged before anybody is granted."""
        self._routes.close()
        try:
            self._routes.discover()
            with self._charging:
                while self._send([], BATCH)[0]:
                    pass
            found = overrides.load(self._routes)
        except (RedisError, OSError) as error:
            self._breaker.fail(error)
            return
        self._install(found)
        self._core.back()
        self._breaker.succeed()

    def _poll(self) -> None:
        """Read the overrides."""
        with self._polling:
            if self._clock() < self._poll_due:
                return  # another thread just did
            self._poll_due = self._clock() + POLL_S
            try:
                if not self._discovered:
                    self._routes.discover()
                    self._discovered = True
                self._install(overrides.load(self._routes))
            except (RedisError, OSError) as error:
                self._fail(error)

    def _install(self, found: overrides.Overrides) -> None:
        self._poll_due = self._clock() + POLL_S
        self._core.install(found)

    def _publish(self) -> None:
        """Bring the metrics up to date: not at every decision, which would cost more than the decision."""
        with self._publishing:
            for source, granted in self._core.grants().items():
                if count := granted - self._published[source]:
                    self._published[source] = granted
                    metrics.GRANTS.labels(source).inc(count)

    def _publish_rest(self) -> None:
        """What nobody waits for: denials, loans, and whether it is in touch with Redis."""
        core = self._core
        self._publish()
        with self._publishing:
            for level, denied in {**core.denied, "cached": core.cached}.items():
                if count := denied - self._published[f"denied {level}"]:
                    self._published[f"denied {level}"] = denied
                    metrics.DENIALS.labels(level).inc(count)
            metrics.LOANS.set(core.debts())
            in_grace = self._clock() < core.grace_until
            now = "in_touch" if not self._breaker.down else "grace" if in_grace else "cut_off"
            for state in ("in_touch", "grace", "cut_off"):
                metrics.LIMITERS.labels(state).set(state == now)

    def _fail(self, error: Exception) -> None:
        if not self._breaker.down:
            metrics.DEGRADED.labels("limiter_redis").inc()  # the breaker warns
        self._core.outage(self._clock())
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

    def connect(self) -> None:
        """Connect and read the overrides now, rather than at the first decision. Never raises because Redis is away."""
        self._policy("websocket", "default")

    def flush(self, timeout_s: float = 1.0) -> None:
        """Charge open loans now, as far as Redis answers. For the end of a process."""
        end = self._clock() + timeout_s
        while self._core.owes and self._clock() < end and self._charge():
            pass

    def state(self) -> LimiterState:
        """What it does and has done."""
        core, breaker = self._core, self._breaker
        left_s = core.grace_until - self._clock() if breaker.down else self._settings.grace_seconds
        denied = {f"denied_{level}": count for level, count in core.denied.items()}
        return LimiterState(
            up=not breaker.down,
            outage=breaker.kind,
            outages=breaker.outages,
            grace_left_s=max(0.0, left_s),
            loans=core.debts(),
            users=core.users_known(),
            fallback=len(self._fallback),
            decisions={**core.grants(), "denied_cached": core.cached, **denied},
        )

    def close(self) -> None:
        """Charge what is open, end the thread, close the connections."""
        self.flush()
        self._publish_rest()
        self._keeper.stop()
        self._routes.close()


def _after_fork() -> None:
    for limiter in list(_limiters):
        limiter._begin()


os.register_at_fork(after_in_child=_after_fork)
