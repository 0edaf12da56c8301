"""lua/token_bucket.lua in Python, on a clock that is set by hand. A property test holds the two equal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from notifier.limits.policy import ChannelPolicy, Policy
from notifier.limits.shared import BULK, CHUNK, CRITICAL, LOAN, ONE, Answer, Entry

DECADE_US = 315_532_800_000_000
DAY_US = 86_400_000_000


class PureBuckets:
    """Shared buckets in memory. `now_us` is their clock.

    `spent` counts the tokens taken of users' buckets, `granted` those of them that were asked for, not lent before.
    """

    def __init__(self, debt: int) -> None:
        self.now_us = 0
        self.spent = 0
        self.granted = 0
        self.calls = 0
        self._debt = debt
        self._tats: dict[str, int] = {}
        self._quotas: dict[str, dict[int, int]] = {}
        self._charged: dict[str, int] = {}

    def decide(self, entries: Sequence[Entry], charges: int = 0, seq: int = 0, process: str = "") -> Answer:
        """As SharedBuckets.decide; `process` names the one who charges."""
        numbers: list[int] = []
        channels: list[tuple[ChannelPolicy, int]] = []
        self.calls += 1
        for start in range(0, max(1, len(entries)), CHUNK):
            chunk = entries[start : start + CHUNK]
            charging = start < charges and seq > self._charged.get(process, 0)
            if charging:
                self._charged[process] = seq
            seq += 1
            limited = dict.fromkeys(policy.channel for policy, _, _ in chunk if policy.channel is not None)
            channels += [(channel, int(self._channel_tat(channel) <= self.now_us)) for channel in limited]
            for policy, user_id, code in chunk:
                numbers += self._decide(policy, user_id, code % 8, code // ONE, charging)
        return Answer(self.now_us, numbers, channels)

    def _top(self, emission_us: int, burst: int, debt: int) -> int:
        return self.now_us + min(emission_us * (burst + debt), DECADE_US)

    def _channel_tat(self, channel: ChannelPolicy) -> int:
        tat = self._tats.get(channel.key, 0)
        top = self._top(*channel.arguments)
        if tat > top:
            self._tats[channel.key] = top
        return min(tat, top)

    def _decide(self, policy: Policy, user_id: str, kind: int, cost: int, charging: bool) -> tuple[int, int, int]:
        now = self.now_us
        emission_us, burst, window_us, quota = policy.arguments
        key = policy.key(user_id)
        tat = self._tats.get(key, 0)
        full = int(emission_us == 0 or tat <= now)
        top = self._top(emission_us, burst, self._debt)
        if emission_us and tat > top:
            self._tats[key] = tat = top
        tat = max(tat, now)
        channel_tat = 0 if policy.channel is None else max(self._channel_tat(policy.channel), now)

        waits = []
        if kind not in (LOAN, CRITICAL):
            if emission_us:
                kept = burst // 2 if kind == BULK else 0
                waits.append((tat + emission_us * (1 + kept - burst) - now, 1))
            if window_us:
                waits.append((self._quota_wait(policy.quota_key(user_id), window_us, quota), 3))
        if kind != LOAN and policy.channel is not None:
            channel_us, channel_burst, _ = policy.channel.arguments
            waits.append((channel_tat + channel_us * (1 - channel_burst) - now, 2))
        wait, level = _longest(waits)

        if wait == 0 and (kind != LOAN or charging):
            self.spent += cost
            self.granted += kind != LOAN
            if emission_us:
                self._tats[key] = min(tat + emission_us * cost, top)
            if window_us:
                self._quota_count(policy.quota_key(user_id), now // window_us, cost)
            if policy.channel is not None:
                grown = channel_tat + policy.channel.arguments[0] * cost
                self._tats[policy.channel.key] = min(grown, self._top(*policy.channel.arguments))
        return wait, level * 2 + full, emission_us if burst else 0

    def _quota_count(self, key: str, current: int, cost: int) -> None:
        windows = self._quotas.setdefault(key, {})
        windows[current] = windows.get(current, 0) + cost
        if windows[current] == cost:
            for old in [window for window in windows if window < current - 60]:
                del windows[old]

    def _quota_wait(self, key: str, window_us: int, quota: int) -> int:
        current = self.now_us // window_us
        windows = self._quotas.setdefault(key, {})
        for ahead in [window for window in windows if window > current]:  # the clock was set back
            windows[current] = windows.get(current, 0) + windows.pop(ahead)
        live = sorted((window, count) for window, count in windows.items() if window >= current - 60)
        total = sum(count for _, count in live)
        if total < quota:
            return 0
        if quota == 0:
            return DAY_US
        for window, count in live:
            total -= count
            if total < quota:
                return (window + 61) * window_us - self.now_us
        raise AssertionError("a quota frees itself")


def _longest(waits: Iterable[tuple[int, int]]) -> tuple[int, int]:
    wait, level = 0, 0
    for candidate_us, of_level in waits:
        if candidate_us > wait:
            wait, level = candidate_us, of_level
    return wait, level


def excess_us(times_us: Iterable[int], emission_us: int) -> int:
    """The smallest tolerance with which the grants conform to a rate of one in `emission_us`.

    `grants in every window T <= S + T / emission_us` holds if and only if it is at most `S * emission_us`: one pass
    over the sorted grants checks every window.
    """
    tat, worst = 0, 0
    for at, time_us in enumerate(sorted(times_us)):
        tat = (time_us if at == 0 else max(tat, time_us)) + emission_us
        worst = max(worst, tat - time_us)
    return worst
