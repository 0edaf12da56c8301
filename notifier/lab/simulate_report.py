"""What `notifier simulate` shows: traffic through the real local logic, and through the article's design."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from notifier.lab.simulate import Simulation
from notifier.lab.simulate_buckets import PureBuckets, excess_us
from notifier.limit import Limit
from notifier.limits.local import LocalBucket
from notifier.limits.policy import Policy
from notifier.limits.shared import NORMAL, ONE
from notifier.limits.verdict import Verdict
from notifier.settings import Settings

TRAFFICS = ("even", "skewed", "flood")
Arrival = tuple[int, int, str]  # time_us, process, user


@dataclass
class Report:
    """Counts of one run. Times in seconds, excess in tokens over what the limit alone would grant."""

    requests: int = 0
    granted: int = 0
    local: int = 0
    decided_here: int = 0
    redis_calls_per_s: float = 0.0
    excess: float = 0.0
    allowed: float = 0.0
    article_excess: float = 0.0
    deferred: int = 0
    delay_p50_s: float = 0.0
    delay_p99_s: float = 0.0
    delay_max_s: float = 0.0
    busiest_us: list[int] = field(default_factory=list)

    def plain(self) -> dict[str, float]:
        """For JSON."""
        return {name: value for name, value in vars(self).items() if name != "busiest_us"}


def arrivals(traffic: str, processes: int, users: int, per_s: float, seconds: float, seed: int) -> Iterator[Arrival]:
    """Requests at random times. even: to any user; skewed: few users get most; flood: one user gets half."""
    draw = random.Random(seed)  # noqa: S311
    now_us, end_us = 0.0, seconds * 1e6
    while True:
        now_us += draw.expovariate(per_s / 1e6)
        if now_us >= end_us:
            return
        if traffic == "flood" and draw.random() < 0.5:
            user = 0
        elif traffic == "skewed":
            user = int(users ** draw.random()) - 1
        else:
            user = draw.randrange(users)
        yield int(now_us), draw.randrange(processes), f"user-{user}"


class _Tally:
    """Follows the verdicts; what is denied gets the user's next slot, as the replay gives it."""

    def __init__(self, limit: Limit) -> None:
        self._limit = limit
        self._slots: dict[str, float] = {}
        self.grants: dict[str, list[int]] = {}
        self.report = Report()
        self.delays_s: list[float] = []

    def __call__(self, time_us: int, user_id: str, verdict: Verdict) -> None:
        report = self.report
        report.requests += 1
        report.decided_here += verdict.source != "shared"
        if verdict.granted:
            report.granted += 1
            report.local += verdict.source == "local"
            self.grants.setdefault(user_id, []).append(time_us)
            return
        report.deferred += 1
        now_s = time_us / 1e6
        slot_s = max(now_s + verdict.retry_after, self._slots.get(user_id, 0.0) + self._limit.emission_us / 1e6)
        self._slots[user_id] = slot_s
        self.delays_s.append(slot_s - now_s)


def run(
    settings: Settings,
    traffic: str,
    processes: int,
    users: int,
    per_s: float,
    seconds: float,
    seed: int = 1,
    progress: Callable[[int], None] = lambda _: None,
) -> Report:
    """One run, then the article's design on the same traffic. `progress` is told the simulated time (us)."""
    limit = settings.user_limit
    tally = _Tally(limit)
    simulation = Simulation(settings, processes, tally)
    simulation.feed(arrivals(traffic, processes, users, per_s, seconds, seed), progress)
    report = tally.report
    report.redis_calls_per_s = simulation.buckets.calls / seconds
    report.excess, report.busiest_us = _worst(tally.grants, limit)
    report.allowed = 0.0 if settings.local_bucket.off else float(processes)
    article = _article(settings, arrivals(traffic, processes, users, per_s, seconds, seed), processes)
    report.article_excess = _worst(article, limit)[0]
    ordered = sorted(tally.delays_s) or [0.0]
    report.delay_p50_s = ordered[len(ordered) // 2]
    report.delay_p99_s = ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]
    report.delay_max_s = ordered[-1]
    return report


def _worst(grants: dict[str, list[int]], limit: Limit) -> tuple[float, list[int]]:
    if limit.off or not grants:
        return 0.0, []
    of_user = {user_id: excess_us(times_us, limit.emission_us) for user_id, times_us in grants.items()}
    worst = max(of_user, key=lambda user_id: (of_user[user_id], len(grants[user_id])))
    return max(0.0, of_user[worst] / limit.emission_us - limit.burst), sorted(grants[worst])


def _article(settings: Settings, requests: Iterator[Arrival], processes: int) -> dict[str, list[int]]:
    """A bucket in each process beside the shared one, and nobody tells it."""
    clock = [0.0]
    bucket = settings.local_bucket
    own = [] if bucket.off else [LocalBucket(bucket.burst, bucket.rate, lambda: clock[0]) for _ in range(processes)]
    shared = PureBuckets(0)
    policy = Policy("websocket", None, settings.user_limit, Limit(0, 1), None, False)
    grants: dict[str, list[int]] = {}
    for time_us, process, user_id in requests:
        clock[0], shared.now_us = time_us / 1e6, time_us
        local = bool(own) and own[process].consume()
        if local or shared.decide([(policy, user_id, ONE + NORMAL)]).numbers[0] == 0:
            grants.setdefault(user_id, []).append(time_us)
    return grants


def suggestion(settings: Settings, processes: int, overshoot: float) -> str:
    """A local bucket with which no user gets more than `overshoot` tokens over his limit, outages included."""
    if overshoot < processes:
        return f"off: {processes} processes lend up to {processes} tokens to one user"
    grace_s = settings.grace_seconds
    spare = overshoot / processes - 1
    if grace_s == 0:
        return str(settings.local_bucket) if not settings.local_bucket.off else "2/s burst 10"
    per_s = min(spare / grace_s, 25_000.0)
    if per_s < 0.001:
        return f"{settings.local_bucket} with NOTIFIER_GRACE_SECONDS=0: there is nothing to spare for an outage"
    rounded = math.floor(per_s * 1_000) / 1_000
    return f"{rounded:g}/s burst {max(1, math.ceil(rounded * 5))}"


def plot(report: Report, limit: Limit, seconds: float) -> str:
    """An SVG: grants of the user with the largest excess, below the line that the theorem draws."""
    width, height, edge = 720, 360, 50
    bound = limit.burst + report.allowed
    top = max(bound + limit.rate * seconds, len(report.busiest_us), 1)

    def point(time_s: float, count: float) -> str:
        x = edge + (width - 2 * edge) * time_s / seconds
        return f"{x:.1f},{height - edge - (height - 2 * edge) * count / top:.1f}"

    steps = [point(time_us / 1e6, n + 1) for n, time_us in enumerate(report.busiest_us)]
    line = f"{point(0, bound)} {point(seconds, bound + limit.rate * seconds)}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"'
        ' font-family="sans-serif" font-size="13">'
        f'<rect width="{width}" height="{height}" fill="#fff"/>'
        f'<polyline points="{line}" fill="none" stroke="#b00" stroke-dasharray="6 4"/>'
        f'<polyline points="{" ".join(steps)}" fill="none" stroke="#06c" stroke-width="2"/>'
        f'<text x="{edge}" y="25">grants to the busiest user ({len(report.busiest_us)}); dashed: burst '
        f"{limit.burst} + lent {report.allowed:.0f} + rate x time</text>"
        f'<text x="{width - edge}" y="{height - 20}" text-anchor="end">{seconds:g} s</text>'
        f'<text x="{edge - 8}" y="{edge}" text-anchor="end">{top:.0f}</text></svg>\n'
    )
