"""Many processes of the limiter in simulated time: the real core, pure shared buckets, latency, losses, crashes.

Nothing waits and nothing is random but what the caller draws, so a run of hours takes seconds and can be repeated.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from itertools import count
from typing import Protocol

from notifier.lab.simulate_buckets import PureBuckets
from notifier.limits.core import CHARGE_AFTER_S, Batch, Core
from notifier.limits.local import LocalBucket
from notifier.limits.overrides import Overrides
from notifier.limits.policies import Policies
from notifier.limits.policy import Policy
from notifier.limits.shared import BULK, CRITICAL, NORMAL, ONE, Entry
from notifier.limits.verdict import Verdict
from notifier.settings import Settings

CHARGE_AFTER_US = int(CHARGE_AFTER_S * 1e6)
PROBE_AFTER_US = 200_000
ATTACHED, BATCH = 64, 1_000
_KINDS = {"normal": NORMAL, "critical": CRITICAL, "bulk": BULK}


class Network(Protocol):
    """Draws what happens to a call."""

    def latency_us(self) -> int:
        """Time of one way."""

    def lost(self) -> bool:
        """This message does not arrive. Asked for each way."""


class Lan:
    """Every message takes half a millisecond and arrives."""

    def latency_us(self) -> int:
        """500."""
        return 500

    def lost(self) -> bool:
        """Never."""
        return False


class Process:
    """One process: its core, and what it is doing."""

    def __init__(self, name: str, core: Core, policy: Policy) -> None:
        self.name = name
        self.core = core
        self.policy = policy
        self.charging = False  # a batch travels
        self.due = False  # a flush is planned


class Simulation:
    """Processes that ask in simulated time. `decided(time_us, user, verdict)` gets every verdict, at its time.

    `make_core` may be replaced by a variant, to see that a broken one is found.
    """

    def __init__(
        self,
        settings: Settings,
        processes: int,
        decided: Callable[[int, str, Verdict], None],
        *,
        network: Network | None = None,
        buckets: PureBuckets | None = None,
        timeout_us: int = 50_000,
        make_core: Callable[..., Core] = Core,
    ) -> None:
        self.buckets = buckets or PureBuckets(settings.max_processes)
        self.now_us = 0
        self._settings = settings
        self._decided = decided
        self._network = network or Lan()
        self._timeout_us = timeout_us
        self._make_core = make_core
        self._events: list[tuple[int, int, Callable[..., None], tuple[object, ...]]] = []
        self._order = count()
        self._started = 0
        self.processes = [self._start() for _ in range(processes)]

    def _start(self) -> Process:
        settings, bucket = self._settings, self._settings.local_bucket
        self._started += 1
        policies = Policies(settings)
        policies.install(Overrides(version=1))
        clock = lambda: self.now_us / 1e6  # noqa: E731
        core = self._make_core(
            policies,
            None if bucket.off else LocalBucket(bucket.burst, bucket.rate, clock),
            users=settings.local_users,
            processes=settings.max_processes,
            grace_s=settings.grace_seconds,
        )
        core.reached()
        return Process(f"p{self._started}", core, policies.find("websocket", "default"))

    def at(self, time_us: int, what: Callable[..., None], *arguments: object) -> None:
        """Plan a call of `what`."""
        heapq.heappush(self._events, (time_us, next(self._order), what, arguments))

    def ask_at(self, time_us: int, process: int, user_id: str, priority: str = "normal") -> None:
        """Plan a question by the process with that index."""
        self.at(time_us, self._ask, process, user_id, _KINDS[priority])

    def crash_at(self, time_us: int, process: int) -> None:
        """Plan the sudden end of a process; another starts in its place, knowing nothing."""
        self.at(time_us, self._crash, process)

    def run(self, until_us: int | None = None) -> None:
        """Let it all happen, or what happens before `until_us`."""
        while self._events and (until_us is None or self._events[0][0] < until_us):
            self.now_us, _, what, arguments = heapq.heappop(self._events)
            what(*arguments)

    def feed(self, arrivals: Iterable[tuple[int, int, str]], progress: Callable[[int], None] = lambda _: None) -> None:
        """Ask for each (time_us, process, user), which come in order of time; then let the rest happen."""
        for time_us, process, user_id in arrivals:
            self.run(time_us)
            self.now_us = time_us
            self._ask(process, user_id, NORMAL)
            progress(time_us)
        self.run()

    def _ask(self, index: int, user_id: str, kind: int) -> None:
        process = self.processes[index]
        verdict = process.core.here(process.policy, user_id, kind, self.now_us / 1e6)
        if verdict is None:
            most = ATTACHED if process.core.owes and not process.charging else 0
            self._send(process, most, [(process.policy, user_id, ONE + kind)])
        else:
            self._decided(self.now_us, user_id, verdict)
        self._plan(process)

    def _plan(self, process: Process) -> None:
        if process.core.owes and not process.due and process.core.down_since is None:
            process.due = True
            self.at(self.now_us + CHARGE_AFTER_US, self._flush, process)

    def _flush(self, process: Process) -> None:
        process.due = False
        if process.core.owes and process.charging:
            process.due = True
            self.at(self.now_us + 1_000, self._flush, process)
        elif process.core.owes or process.core.down_since is not None:
            self._send(process, BATCH, [])

    def _send(self, process: Process, most: int, entries: list[Entry]) -> None:
        batch = process.core.take(most) if most else None
        process.charging = process.charging or batch is not None
        call = process.core.depart()
        if self._network.lost():
            self.at(self.now_us + self._timeout_us, self._failed, process, batch)
        else:
            self.at(self.now_us + self._network.latency_us(), self._arrived, process, batch, entries, call)

    def _arrived(self, process: Process, batch: Batch | None, entries: list[Entry], call: int) -> None:
        charges = [] if batch is None else batch.entries
        self.buckets.now_us = self.now_us
        seq = 0 if batch is None else batch.seq
        answer = self.buckets.decide(charges + entries, len(charges), seq, process.name)
        decided_us = self.now_us
        if self._network.lost():
            self.at(self.now_us + self._timeout_us, self._failed, process, batch)
            return

        def replied() -> None:
            if batch is not None:
                process.charging = False
            verdicts = process.core.learn(batch, entries, answer, call, self.now_us / 1e6)
            for (_, user_id, _), verdict in zip(entries, verdicts, strict=True):
                self._decided(decided_us if verdict.granted else self.now_us, user_id, verdict)
            if process.core.down_since is not None and not entries:
                process.core.back()
            self._plan(process)

        self.at(self.now_us + self._network.latency_us(), replied)

    def _failed(self, process: Process, batch: Batch | None) -> None:
        if batch is not None:
            process.charging = False
        process.core.outage(self.now_us / 1e6)
        if not process.due:
            process.due = True
            self.at(self.now_us + PROBE_AFTER_US, self._flush, process)

    def _crash(self, index: int) -> None:
        self.processes[index] = self._start()
