"""The books of a run: what was sent against what arrived, where it arrived. Pure: it is handed lists."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from notifier.limit import Limit
from notifier.notification import Identity


class Sent(NamedTuple):
    """A notification for which the sender was told that it is accepted. `at_s`: the monotonic time of the call."""

    identity: Identity
    payload: Any
    at_s: float


class Frame(NamedTuple):
    """What a client's socket brought. Times `_us` are state Redis's and the limiter's, `received_s` is monotonic."""

    identity: Identity
    seq: int
    accepted_us: int
    granted_us: int
    payload: Any
    received_s: float


def lost(sent: Sequence[Sent], frames: Iterable[Frame], held: Mapping[Identity, str]) -> list[Identity]:
    """Sent, but neither arrived with the payload that was sent, nor held or ended otherwise according to `held`."""
    payloads = {one.identity: one.payload for one in sent}
    arrived = {f.identity for f in frames if f.identity in payloads and f.payload == payloads[f.identity]}
    return [one.identity for one in sent if one.identity not in arrived and not held.get(one.identity)]


def duplicates(frames: Iterable[Frame]) -> int:
    """Frames beyond the first of each notification."""
    return sum(count - 1 for count in Counter(frame.identity for frame in frames).values())


def disorder(frames: Sequence[Frame], waiting_since_us: Mapping[int, int]) -> int:
    """Frames of one user that overtook an earlier notification which had been denied before they were accepted.

    `frames` in the order of arrival. `waiting_since_us`: seq -> when it was seen to wait, at the latest.
    Two that were in the queue together may swap; that is not counted.
    """
    arrived_at = {frame.seq: position for position, frame in reversed(list(enumerate(frames)))}
    return sum(
        any(
            seq < frame.seq and since_us < frame.accepted_us and arrived_at.get(seq, math.inf) > position
            for seq, since_us in waiting_since_us.items()
        )
        for position, frame in enumerate(frames)
    )


def limit_excess(granted_us: Iterable[int], limit: Limit, loans: int) -> float:
    """Tokens over B + R*T + L in the worst window, over all windows; 0 where the limit held.

    In one pass: grants i to j exceed by (j - R*t_j) - (i - R*t_i) + 1 - B - L, so the least i - R*t_i so far will do.
    """
    if limit.off:
        return 0.0
    least, worst_us = math.inf, -math.inf
    # In units of emission_us the sums stay whole numbers: exact, whatever the rate.
    for position, moment_us in enumerate(sorted(granted_us)):
        level_us = position * limit.emission_us - moment_us
        least = min(least, level_us)
        worst_us = max(worst_us, level_us - least)
    return max(0.0, worst_us / limit.emission_us + 1 - limit.burst - loans)


def by_user(frames: Iterable[Frame]) -> dict[str, list[Frame]]:
    """Frames by user, each list in the order of arrival."""
    found: dict[str, list[Frame]] = defaultdict(list)
    for frame in frames:
        found[frame.identity.user_id].append(frame)
    return found


def latencies_ms(sent: Iterable[Sent], frames: Iterable[Frame]) -> list[float]:
    """From the call to the socket, in milliseconds, sorted; of what has arrived."""
    first: dict[Identity, float] = {}
    for frame in frames:
        first.setdefault(frame.identity, frame.received_s)
    return sorted((first[one.identity] - one.at_s) * 1000 for one in sent if one.identity in first)


def percentile(ordered: Sequence[float], share: float) -> float:
    """The value below which `share` (0 to 1) of the sorted values lie; 0 of none."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else 0.0
