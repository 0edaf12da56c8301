"""Explores every state of a model, and proves of each that a good quiet one can still be reached from it.

    python -m tests.model.explore              every scenario, about a minute
    python -m tests.model.explore deep         the larger ones, some minutes
    python -m tests.model.explore 'Redis'      those with this in their name

Checked: scripts raise Violation where they accept, book or order wrongly (I1, I3, I4, I5); `invariants` in every state
(I2 a holder exists, I3 a repeated id is known); and from every state a good quiet state is reachable without
another disturbance (I2, I5, I6: nothing lost, stuck or left behind).
"""

from __future__ import annotations

import gc
import sys
import time
from array import array
from multiprocessing import Pool
from typing import Any, NamedTuple

from tests.model.protocol import Model
from tests.model.state import END, LOSSY, MARK, PLACE, REDIS, ROW, SNAP, WAITING, State, Violation, change, normal


class Found(NamedTuple):
    """`violation` is empty where all hold; else `trace` leads to it with the fewest disturbances, then steps."""

    states: int
    steps: int
    violation: str
    trace: list[str]


def explore(model: Model) -> Found:
    """All states, those of fewer disturbances first: a state met again with more spent can do nothing new."""
    order: list[State] = []
    index: dict[State, int] = {}
    parent, edges, offset = array("l"), array("l"), array("l", [0])
    label: list[str] = []
    steps = done = 0

    def number(t: State, came_from: int, name: str) -> int:
        j = index.get(t)
        if j is None:
            j = index[t] = len(order)
            order.append(t)
            parent.append(came_from)
            label.append(name)
        return j

    def trace(i: int, last: str) -> list[str]:
        path = [last]
        while i > 0:
            path.append(label[i])
            i = parent[i]
        return path[::-1]

    entering: dict[State, tuple[int, str]] = {model.first: (-1, "start")}  # states that cost one more disturbance
    for left in range(model.budget, -1, -1):
        for t, (i, name) in entering.items():
            number(t, i, name)
        entering = {}
        while done < len(order):
            s = order[done]
            try:
                model.invariants(s)
                for name, cost, draft in model.steps(s, left > 0):
                    steps += 1
                    drafts = [draft]
                    if model.tail and not s[LOSSY] and s[SNAP] is None and tuple(draft[REDIS]) != s[REDIS]:
                        drafts.append(change(draft, {SNAP: s[REDIS]}))  # only what Redis had before is durable
                    for t in map(normal, drafts):
                        if not cost:
                            edges.append(number(t, done, name))
                        elif t not in index:
                            entering.setdefault(t, (done, name))
            except Violation as violation:
                return Found(len(order), steps, str(violation), trace(done, "the next script breaks it"))
            offset.append(len(edges))
            done += 1
    stuck = _stuck(bytearray(map(model.good, order)), edges, offset)
    if stuck < 0:
        return Found(len(order), steps, "", [])
    s = order[stuck]
    fields = {"place": PLACE, "end": END, "mark": MARK, "row": ROW}
    last = ", ".join(f"{name} {s[at : at + 2]}" for name, at in fields.items()) + f", waiting {s[WAITING]}"
    violation_text = "I2/I5/I6: from here no good quiet state can be reached"
    return Found(len(order), steps, violation_text, trace(stuck, last))


def _stuck(fine: bytearray, edges: array[int], offset: array[int]) -> int:
    """The first state from which no good one is reachable, or -1."""
    changed = True
    while changed:
        changed = False
        for i in range(len(fine) - 1, -1, -1):
            if not fine[i] and any(fine[j] for j in edges[offset[i] : offset[i + 1]]):
                fine[i] = changed = True
    return fine.find(0)


# "two, 3": two notifications, three disturbances; 2 workers and 2 replayers unless said otherwise.
SCENARIOS: dict[str, dict[str, Any]] = {
    "two, 3, ledger down": {"budget": 3, "ledger_down": True},
    "two, 2, second critical": {"budget": 2, "critical": (1,)},
    "two, 2, first scheduled": {"budget": 2, "scheduled": (0,)},
    "two, 2, second scheduled": {"budget": 2, "scheduled": (1,)},
    "two, 2, first kills its process": {"budget": 2, "toxic": (0,)},
    "two, 2, Redis loses its tail, 1 replayer": {"budget": 2, "tail": True, "replayers": 1, "poison": False},
    "two, 2, Redis loses all": {"budget": 2, "flush": True, "poison": False},
    "one, 6, ledger down, probes": {"one": True, "budget": 6, "ledger_down": True, "probe": True},
    "one, 6, Redis loses its tail": {"one": True, "budget": 6, "tail": True, "poison": False},
    "one, 6, Redis loses all": {"one": True, "budget": 6, "flush": True, "poison": False},
}
DEEP: dict[str, dict[str, Any]] = {
    "deep: two, 3, second critical": {"budget": 3, "critical": (1,)},
    "deep: two, 3, first scheduled": {"budget": 3, "scheduled": (0,)},
    "deep: two, 3, second scheduled": {"budget": 3, "scheduled": (1,)},
    "deep: two, 2, Redis loses its tail": {"budget": 2, "tail": True, "poison": False},
    "deep: two, 3, Redis loses its tail, 1 replayer": {"budget": 3, "tail": True, "replayers": 1, "poison": False},
    "deep: two, 3, Redis loses all": {"budget": 3, "flush": True, "poison": False},
    "deep: one, 9, ledger down, probes": {"one": True, "budget": 9, "ledger_down": True, "probe": True},
}


def _run(job: tuple[str, dict[str, Any]]) -> tuple[str, Found, float]:
    gc.disable()  # millions of tuples, no cycles
    begun_s = time.monotonic()
    return job[0], explore(Model(**job[1])), time.monotonic() - begun_s


def main(wanted: list[str]) -> int:
    """Explore, print, and say how many scenarios fail."""
    named = DEEP if wanted == ["deep"] else SCENARIOS
    jobs = [job for job in named.items() if wanted == ["deep"] or all(word in job[0] for word in wanted)]
    failed = 0
    with Pool(2, maxtasksperchild=1) as pool:
        for name, found, took_s in pool.imap(_run, jobs, chunksize=1):
            verdict = found.violation or "all hold"
            print(f"{name}: {found.states:,} states, {found.steps:,} steps, {took_s:.0f} s: {verdict}", flush=True)
            if found.violation:
                failed += 1
                print("", *found.trace, sep="\n    ")
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
