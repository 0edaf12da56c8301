"""The books of a torture, where accounts differ from a calm run's. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import NamedTuple

from notifier.lab import account
from notifier.lab.account import Frame
from notifier.limit import Limit
from notifier.notification import Identity


class Allowance(NamedTuple):
    """Tokens that any window which touches this span of time (us) may have beyond the bound, as the promise states."""

    from_us: float
    to_us: float
    tokens: float


def limit_excess(granted_us: Iterable[int], limit: Limit, loans: int, allowances: Sequence[Allowance] = ()) -> float:
    """Tokens over B + R*T + L and the allowances that touch the window, in the worst window of all; 0 if it held.

    One pass, as account.limit_excess: an allowance touches the window from i to j if it begins by j and does not end
    before i, so the sum over those is (begun by j) - (ended before i).
    """
    if limit.off:
        return 0.0
    begun = sorted((a.from_us, a.tokens) for a in allowances)
    ended = sorted((a.to_us, a.tokens) for a in allowances)
    begun_tokens = ended_tokens = 0.0
    least, worst = math.inf, -math.inf
    for position, moment_us in enumerate(sorted(granted_us)):
        while begun and begun[0][0] <= moment_us:
            begun_tokens += begun.pop(0)[1]
        while ended and ended[0][0] < moment_us:
            ended_tokens += ended.pop(0)[1]
        level_us = position * limit.emission_us - moment_us
        least = min(least, level_us - ended_tokens * limit.emission_us)
        worst = max(worst, level_us - begun_tokens * limit.emission_us - least)
    return max(0.0, worst / limit.emission_us + 1 - limit.burst - loans)


def disorder(
    frames: Sequence[Frame], waiting_since_us: Mapping[int, int], critical: Set[Identity], parked: Set[int]
) -> int:
    """As account.disorder, of one user. Critical ones may overtake, and what parked (seqs) waits for a person."""
    exempt = {frame.seq for frame in frames if frame.identity in critical} | parked
    return account.disorder(
        [frame for frame in frames if frame.identity not in critical],
        {seq: since_us for seq, since_us in waiting_since_us.items() if seq not in exempt},
    )
