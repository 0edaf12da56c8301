"""The limiter against the libraries of its field, at their best settings, on the same server and in the same rounds.

Needs `limits`, `pyrate-limiter` and `throttled-py` (extra `bench`).
"""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.limiter_peers import BARE, in_memory, on_redis
from benchmarks.row import Row, median, row, spread
from notifier.embedded.valkey import Valkey
from notifier.lab.simulate_buckets import excess_us
from notifier.limit import Limit
from notifier.limits.limiter import Limiter, Request
from notifier.redis.client import connect
from notifier.settings import Settings

COMMAND = "python -m benchmarks limiter"
USERS = [f"user:{n}" for n in range(10_000)]
PROCESSES = 4
LOCAL = {"local_bucket": "25000/s burst 1000000", "local_users": 1_000_000}
SHARED = {"local_bucket": "off", "user_limit": "1000/s burst 1000"}

Decide = Callable[[str], object]


def rows(quick: bool) -> list[Row]:
    """The limiter's rows of docs/performance.md."""
    with tempfile.TemporaryDirectory() as directory, Valkey.start(Path(directory) / "valkey", aof=None) as server:
        rounds = 5 if quick else 15
        return [
            *_memory(server.url(), rounds),
            *_redis(server.url(), rounds, 1_000 if quick else 5_000),
            *_floods(server.url(), 3.0 if quick else 10.0),
        ]


@contextlib.contextmanager
def _limiter(url: str, **settings: Any) -> Iterator[Limiter]:
    limiter = Limiter.from_settings(Settings(limiter_redis_url=url, limiter_timeout=2.0, **settings))
    try:
        yield limiter
    finally:
        limiter.close()


def _rate(decide: Decide, names: list[str]) -> float:
    """Decisions a second."""
    gc.collect()
    begun_s = time.perf_counter()
    for name in names:
        decide(name)
    return len(names) / (time.perf_counter() - begun_s)


def _memory(url: str, rounds: int) -> list[Row]:
    peers = in_memory()
    ours: dict[str, list[float]] = {"granted": [], "denied": [], "charged": []}
    theirs: dict[str, dict[str, list[float]]] = {"granted": {}, "denied": {}}
    with _limiter(url, **LOCAL) as limiter:
        while limiter.acquire("noisy").granted:
            pass
        for _ in range(rounds):
            begun_s = time.perf_counter()
            ours["granted"].append(_rate(limiter.acquire, USERS))
            limiter.flush(10.0)
            ours["charged"].append(len(USERS) / (time.perf_counter() - begun_s))
            ours["denied"].append(_rate(limiter.acquire, ["noisy"] * len(USERS)))
            for name, (grant, deny) in peers.items():
                theirs["granted"].setdefault(name, []).append(_rate(grant, USERS))
                theirs["denied"].setdefault(name, []).append(_rate(deny, ["noisy"] * len(USERS)))
    made = []
    for kind, title in (("granted", "a local grant"), ("denied", "a cached denial")):
        fastest = max(theirs[kind], key=lambda name: median(theirs[kind][name]))
        ratios = [a / b for a, b in zip(ours[kind], theirs[kind][fastest], strict=True)]
        detail = {name: spread(values) for name, values in theirs[kind].items()}
        made.append(
            row(
                f"acquire, {title} / fastest library in memory",
                median(ratios),
                ">= 3",
                COMMAND,
                fastest=fastest,
                notifier=spread(ours[kind]),
                peers=detail,
            )
        )
    made.append(row("local grants/s, their charging included", median(ours["charged"]), "", COMMAND, ratio=False))
    return made


def _redis(url: str, rounds: int, count: int) -> list[Row]:
    many = [[Request(name) for name in USERS[at : at + 100]] for at in range(0, count, 100)]
    ours: dict[str, list[float]] = {"one": [], "many": []}
    theirs: dict[str, list[float]] = {}
    bare: list[float] = []
    with contextlib.closing(connect(url, 5.0)) as client, _limiter(url, **SHARED) as limiter:
        limiter.acquire("x")
        peers = on_redis(url)
        digest = client.script_load(BARE)
        for _ in range(rounds):
            client.flushdb()
            ours["one"].append(_rate(limiter.acquire, USERS[:count]))
            client.flushdb()
            begun_s = time.perf_counter()
            for batch in many:
                limiter.acquire_many(batch)
            ours["many"].append(count / (time.perf_counter() - begun_s))
            client.flushdb()
            bare.append(_rate(lambda name: client.evalsha(digest, 1, name, 1_000, 1_000_000, 1), USERS[:count]))
            for name, decide in peers.items():
                theirs.setdefault(name, []).append(_rate(decide, USERS[:count]))
    fastest = max(theirs, key=lambda name: median(theirs[name]))
    return [
        row(
            "acquire_many, 100 users a call / fastest library on Redis",
            median([a / b for a, b in zip(ours["many"], theirs[fastest], strict=True)]),
            ">= 15",
            COMMAND,
            fastest=fastest,
            notifier=spread(ours["many"]),
            peers={name: spread(values) for name, values in theirs.items()},
        ),
        row(
            "acquire, shared / bare EVALSHA",
            median([a / b for a, b in zip(ours["one"], bare, strict=True)]),
            ">= 0.8",
            COMMAND,
            notifier=spread(ours["one"]),
            evalsha=spread(bare),
        ),
    ]


def _flood(url: str, limit: str, start_s: float, seconds: float, results: Any) -> None:
    with _limiter(url, user_limit=limit) as limiter:
        while time.monotonic() < start_s:
            time.sleep(0.001)
        times_us, attempts = [], 0
        while time.monotonic() < start_s + seconds:
            attempts += 1
            verdict = limiter.acquire("noisy")
            if verdict.granted:
                times_us.append(verdict.granted_at_us)
    results.put((times_us, attempts))


def _floods(url: str, seconds: float) -> list[Row]:
    made = []
    for text in ("2/s burst 10", "2000/s"):
        limit = Limit.parse(text)
        with contextlib.closing(connect(url, 5.0)) as client:
            client.flushdb()
            client.config_resetstat()
            context = multiprocessing.get_context("fork")
            results = context.Queue()
            start_s = time.monotonic() + 0.5
            arguments = (url, text, start_s, seconds, results)
            children = [context.Process(target=_flood, args=arguments) for _ in range(PROCESSES)]
            for child in children:
                child.start()
            found = [results.get(timeout=seconds + 60) for _ in children]
            for child in children:
                child.join()
            statistics: Any = client.info("commandstats")
        calls = sum(statistics.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("evalsha", "eval"))
        times_us = [time_us for of_process, _ in found for time_us in of_process]
        attempts = sum(of_process for _, of_process in found)
        over = excess_us(times_us, limit.emission_us) / limit.emission_us - limit.burst - PROCESSES
        # steady: from a second after the start, when the burst and the loans are spent
        steady = [time_us for time_us in times_us if time_us > min(times_us) + 2_000_000]
        rate = (len(steady) - 1) / ((max(steady) - min(steady)) / 1e6)
        title = f"flood by 4 processes at {text}: "
        made += [
            row(
                title + "Redis calls per attempt", calls / attempts, "<= 0.05", COMMAND, attempts=attempts, calls=calls
            ),
            row(title + "rate / R", rate / limit.rate, ">= 0.98", COMMAND, grants=len(times_us)),
            row(title + "tokens over B + R*T + L", max(0.0, over), "<= 0", COMMAND),
        ]
    return made
