"""A breaker for each channel outside: while the other side fails altogether, what is for it waits untried.

Per process. Open, a channel is not called; when that time is over the next batch is the probe, and success closes it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from prometheus_client import Gauge

from notifier import metrics
from notifier.channels import Outcome, RetryAt

log = logging.getLogger(__name__)

FAILURES = 5  # batches in a row of which nothing was taken
FIRST_OPEN_S, LONGEST_OPEN_S = 5.0, 120.0
REMEMBERED = 10_000  # a channel may keep one for every host
FORGOTTEN_S = 7_200.0  # without a try, longer than any backoff of ours: nobody has anything for that side any more


class _State(NamedTuple):
    failures: int = 0
    failed_s: float = 0.0
    open_until_s: float = 0.0


class Breakers:
    """The breakers of all channels of a process."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._states: dict[str, _State] = {}

    def wait_s(self, channel: str) -> float:
        """How long the channel is not to be called; 0 if it may be."""
        return max(0.0, self._states.get(channel, _State()).open_until_s - self._clock())

    def record(self, channel: str, outcomes: Sequence[Outcome]) -> None:
        """What came of a batch. A refusal for good is an answer too: only 'not now' for all of it is a failure."""
        now_s = self._clock()
        with self._lock:
            self._forget_old(now_s)
            failures = self._states.get(channel, _State()).failures
            if not outcomes or not all(isinstance(outcome, RetryAt) for outcome in outcomes):
                if failures >= FAILURES:
                    log.warning("channel %s is back", channel)
                self._forget(channel)
                return
            failures += 1
            open_until_s = 0.0
            if failures >= FAILURES:
                open_s = min(LONGEST_OPEN_S, FIRST_OPEN_S * 2.0 ** min(failures - FAILURES, 10))
                open_until_s = now_s + open_s
                log.warning("channel %s failed %d times in a row: not tried for %.0f s", channel, failures, open_s)
            self._forget(channel)  # to the end: the first is what failed longest ago
            self._states[channel] = _State(failures, now_s, open_until_s)
            if open_until_s:
                _meter(channel).inc()
            if len(self._states) > REMEMBERED:
                self._forget(next(iter(self._states)))

    def _forget_old(self, now_s: float) -> None:
        """Else what nobody calls any more would count as open for as long as the process lives."""
        while self._states and next(iter(self._states.values())).failed_s < now_s - FORGOTTEN_S:
            self._forget(next(iter(self._states)))

    def _forget(self, channel: str) -> None:
        if self._states.pop(channel, _State()).open_until_s:
            _meter(channel).dec()


def _meter(channel: str) -> Gauge:
    """Of all hosts of a channel: "webhook to example.com" counts as webhook."""
    return metrics.BREAKERS.labels(channel.partition(" ")[0])


breakers = Breakers()
