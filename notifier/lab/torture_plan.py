"""What happens when: the faults of a torture, all from its seed. Pure."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

MEAN_GAP_S = 1.4
REST_S = 1.0  # between two faults of one target
SLOW_REST_S = 20.0  # of a target that takes seconds to start
SLOW = "rabbitmq"


class Fault(NamedTuple):
    """`at_s` after the start `action` is done to `target`; what lasts is undone `for_s` later."""

    at_s: float
    target: str
    action: str
    for_s: float

    def __str__(self) -> str:
        lasts = f" for {self.for_s:.1f} s" if self.for_s else ""
        return f"{self.action} {self.target}{lasts}"


class Kind(NamedTuple):
    """A way to hurt a target. `share` of its faults; lasts `shortest_s` to `longest_s`."""

    action: str
    share: int
    shortest_s: float
    longest_s: float


# A worker that is asked to end, and one whose child is killed, are followed by a new one at once.
WORKER = (
    Kind("kill a child of", 4, 0, 0),
    Kind("freeze a child of", 2, 1, 5),
    Kind("kill", 3, 0.2, 3),
    Kind("freeze", 2, 1, 6),
    Kind("freeze, then kill", 2, 0.5, 3),
    Kind("restart", 2, 0, 0),
)
PROCESS = (Kind("kill", 3, 0.2, 5), Kind("freeze", 3, 1, 6), Kind("restart", 1, 0, 0))
SERVER = (
    Kind("kill", 3, 0.1, 3),
    Kind("freeze", 2, 0.5, 4),
    Kind("restart", 1, 0, 0),
    Kind("cut the connections of", 3, 0, 0),
    Kind("hold up the traffic of", 2, 0.5, 4),
    Kind("lose the replies of", 2, 0.2, 2),
)
# What the broker does by itself.
REPEAT = Kind("repeat messages of", 8, 1, 20)
LOSE = Kind("lose messages of", 4, 0, 0)
SHARES = {"worker": 4, "beat": 1, "gateway": 1}
SERVER_SHARE = 2


def _kinds(target: str, servers: Sequence[str], broker: str) -> tuple[Kind, ...]:
    if target in servers:
        return (*SERVER, REPEAT, LOSE) if target == broker else SERVER
    return WORKER if target.startswith("worker") else PROCESS


def plan(seed: int, seconds: float, processes: Sequence[str], servers: Sequence[str], broker: str) -> list[Fault]:
    """The faults of `seconds`, in order. The same for the same arguments, on every machine."""
    rng = random.Random(seed)  # noqa: S311
    targets = {name: SHARES[name.split("-")[0]] for name in processes} | dict.fromkeys(servers, SERVER_SHARE)
    targets[broker] *= 2
    free_at_s = dict.fromkeys(targets, 0.0)
    faults: list[Fault] = []
    at_s = rng.expovariate(1 / MEAN_GAP_S)
    while at_s < seconds:
        free = [name for name in targets if free_at_s[name] <= at_s]
        if free:
            target = rng.choices(free, [targets[name] for name in free])[0]
            kinds = _kinds(target, servers, broker)
            kind = rng.choices(kinds, [kind.share for kind in kinds])[0]
            for_s = round(rng.uniform(kind.shortest_s, kind.longest_s), 1)
            faults.append(Fault(round(at_s, 2), target, kind.action, for_s))
            if kind not in (REPEAT, LOSE):  # that leaves it as it was
                free_at_s[target] = at_s + for_s + (SLOW_REST_S if target == SLOW else REST_S)
        at_s += rng.expovariate(1 / MEAN_GAP_S)
    return faults
