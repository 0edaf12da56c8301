"""Real processes on one key, forks and threads. One pass over the merged grants checks every window."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from redis import Redis

from notifier import Limit, Limiter, LocalBucket, Settings
from notifier.embedded.valkey import Valkey
from notifier.lab.simulate_buckets import excess_us
from notifier.limits.limiter import Request
from notifier.redis.client import connect
from tests.support import eventually

context = multiprocessing.get_context("fork")
PROCESSES = 4


UP, DOWN, SPENT = 1, 2, 3  # Redis answers; it does not; and the grace is over too


@dataclass
class Flood:
    """What the processes did together. `outages` that they met, each counted by itself."""

    times_us: list[int]
    attempts: int
    sources: dict[str, int]
    outages: int


def _flood(url: str, limits: dict[str, Any], number: int, states: Any, over: Any, results: Any) -> None:
    own = LocalBucket(10, 2.0) if limits.pop("article", False) else None
    limiter = Limiter.from_settings(Settings(limiter_redis_url=url, **limits))
    times_us, attempts, sources = [], 0, dict.fromkeys(("local", "shared", "grace"), 0)
    while attempts % 20 or not over.is_set():
        attempts += 1
        if own is not None and own.consume():
            times_us.append(time.time_ns() // 1_000)
            continue
        verdict = limiter.acquire("noisy")
        if verdict.granted:
            times_us.append(verdict.granted_at_us)
            sources[verdict.source] += 1
        if attempts % 20 == 0:
            state = limiter.state()
            states[number] = UP if state.up else DOWN if state.grace_left_s else SPENT
    outages = limiter.state().outages
    limiter.close()
    results.put((times_us, attempts, sources, outages))


def flood(url: str, during: Callable[[Any], None], **limits: Any) -> Flood:
    """Four processes ask for one user as fast as they can, for as long as `during` takes; it gets their states."""
    results, over, states = context.Queue(), context.Event(), context.Array("i", PROCESSES)
    children = [
        context.Process(target=_flood, args=(url, dict(limits), n, states, over, results)) for n in range(PROCESSES)
    ]
    for child in children:
        child.start()
    try:
        eventually(lambda: 0 not in states[:], timeout_s=60)
        during(states)
    finally:
        over.set()
    total = Flood([], 0, dict.fromkeys(("local", "shared", "grace"), 0), 0)
    for _ in children:
        times_us, attempts, sources, outages = results.get(timeout=60)
        total.times_us += times_us
        total.attempts += attempts
        total.outages += outages
        for source, count in sources.items():
            total.sources[source] += count
    for child in children:
        child.join(timeout=30)
        assert child.exitcode == 0
    return total


def lasting(seconds: float) -> Callable[[Any], None]:
    return lambda _: time.sleep(seconds)


def calls(url: str) -> int:
    with contextlib.closing(connect(url, 2.0)) as client:
        return int(client.info("commandstats").get("cmdstat_evalsha", {"calls": 0})["calls"])


@pytest.mark.parametrize("local", ["off", "2/s burst 10"])
@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("200/s burst 20", 2.0),
        pytest.param("2/s burst 10", 20.0, marks=pytest.mark.slow),
        pytest.param("2000/s", 10.0, marks=pytest.mark.slow),
    ],
)
def test_four_processes_on_one_key(limiter_valkey: Any, text: str, seconds: float, local: str) -> None:
    limit, url = Limit.parse(text), limiter_valkey.url()
    before = calls(url)
    done = flood(url, lasting(seconds), user_limit=text, local_bucket=local, limiter_timeout=2.0)
    lent = 0 if local == "off" else PROCESSES
    assert excess_us(done.times_us, limit.emission_us) <= (limit.burst + lent) * limit.emission_us
    assert len(done.times_us) >= limit.burst + 0.5 * limit.rate * seconds - 1  # in simulated time it is 98 %
    assert done.sources["local"] == 0 or lent  # how often depends on pauses in which the bucket fills up again
    if limit.rate < 10:
        assert calls(url) - before <= 0.05 * done.attempts


def test_four_processes_through_an_outage(fresh_valkey: Callable[..., Valkey]) -> None:
    server = fresh_valkey(aof=None)
    limit, grace_s = Limit.parse("20/s burst 10"), 0.5

    def freeze(states: Any) -> None:
        eventually(lambda: set(states[:]) == {UP}, timeout_s=60)
        server.freeze()
        eventually(lambda: set(states[:]) == {SPENT}, timeout_s=60)
        server.thaw()
        eventually(lambda: set(states[:]) == {UP}, timeout_s=60)

    done = flood(
        server.url(),
        freeze,
        user_limit=str(limit),
        local_bucket="20/s burst 10",
        grace_seconds=grace_s,
        limiter_timeout=0.3,
    )
    added = done.outages * (1 + 20 * grace_s)
    assert done.outages >= PROCESSES
    assert done.sources["grace"] > 0
    assert excess_us(done.times_us, limit.emission_us) <= (limit.burst + PROCESSES + added) * limit.emission_us


def test_the_oracle_finds_the_articles_design(limiter_valkey: Any) -> None:
    """Each process has a bucket of its own beside the shared one, and tells nobody."""
    limit = Limit.parse("2/s burst 10")
    done = flood(
        limiter_valkey.url(), lasting(3), user_limit=str(limit), local_bucket="off", article=True, limiter_timeout=2.0
    )
    assert excess_us(done.times_us, limit.emission_us) > (limit.burst + PROCESSES) * limit.emission_us


@pytest.fixture
def make(limiter_valkey: Any) -> Iterator[Callable[..., Limiter]]:
    with contextlib.ExitStack() as stack:

        def limiter(**settings: Any) -> Limiter:
            made = Limiter.from_settings(
                Settings(limiter_redis_url=limiter_valkey.url(), limiter_timeout=2.0, **settings)
            )
            stack.callback(made.close)
            return made

        yield limiter


def in_child(work: Callable[[], bool]) -> bool:
    """Run in a fork that ends as Celery's children do; true if it ended well."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = 0 if work() else 1
        finally:
            os._exit(code)
    deadline_s = time.monotonic() + 20
    while time.monotonic() < deadline_s:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status) == 0
        time.sleep(0.005)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    return False


def test_a_fork_has_connections_thread_and_loans_of_its_own(make: Callable[..., Limiter]) -> None:
    limiter = make(user_limit="1/day burst 10", local_bucket="100/s burst 100")
    assert limiter.acquire("parent").source == "local"  # a thread runs, a loan may be open

    def child() -> bool:
        if limiter.state().loans or threading.active_count() > 1:
            return False
        granted = limiter.acquire("child").granted and limiter.acquire("child").granted
        limiter.flush()
        return granted and limiter.state().loans == 0

    for _ in range(3):
        assert in_child(child)
    eventually(lambda: limiter.state().loans == 0)
    assert sum(limiter.acquire("parent").granted for _ in range(20)) == 9
    assert sum(limiter.acquire("child").granted for _ in range(20)) == 4


@pytest.mark.slow
def test_a_fork_while_other_threads_decide_never_hangs(make: Callable[..., Limiter]) -> None:
    limiter = make(user_limit="100/s burst 100", local_bucket="25000/s burst 1000")
    stop = threading.Event()

    def decide() -> None:
        n = 0
        while not stop.is_set():
            n += 1
            limiter.acquire(f"user-{n}")

    threads = [threading.Thread(target=decide) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(40):
            assert in_child(lambda: limiter.acquire("child") is not None)
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_threads_share_one_limiter(make: Callable[..., Limiter]) -> None:
    limiter = make(user_limit="1/day burst 50")
    granted: list[bool] = []

    def ask() -> None:
        granted.extend(limiter.acquire("a").granted for _ in range(40))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 50 <= sum(granted) <= 51
    assert limiter.state().outages == 0


@pytest.mark.parametrize("users", [30_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
def test_many_users_keep_the_tables_at_their_size(make: Callable[..., Limiter], users: int) -> None:
    limiter = make(user_limit="1/day burst 1", local_bucket="25000/s burst 1000000", local_users=500)
    for start in range(0, users, 500):
        requests = [Request(f"user-{n}", category=f"category-{n % 9_999}") for n in range(start, start + 500)]
        limiter.acquire_many(requests + requests)
    state = limiter.state()
    assert state.users <= 500
    assert len(limiter._aliases) <= 4_096
    assert state.decisions["shared"] + state.decisions["local"] >= users


def test_the_bytes_of_a_key_are_as_documented(make: Callable[..., Limiter], limiter_valkey: Any) -> None:
    limiter = make(user_limit="1/day burst 3", user_quota="50/day", local_bucket="off")
    for _ in range(2):
        limiter.acquire("user-1234567890")
    with contextlib.closing(connect(limiter_valkey.url(), 1.0)) as client:
        sizes = _sizes(client)
    assert sizes["bucket"] <= 160
    assert sizes["quota"] <= 250


def _sizes(client: Redis) -> dict[str, int]:
    found: Any = client.keys("*user-*")
    return {name.decode().split(":")[3]: int(client.memory_usage(name, samples=0) or 0) for name in found}
