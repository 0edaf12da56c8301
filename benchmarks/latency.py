"""From `delay()` to the user's socket: at 70 % of capacity, beside a flood of another user, and in a burst.

Sender, workers, gateway, sockets and servers share one machine, and capacity is what they carry together.
"""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.crowd import Crowd, crowd, in_ms
from benchmarks.row import Row, median, percentile, row, spread
from benchmarks.stage import Stage, on_stage
from notifier import producer, runtime
from notifier.notification import Notification
from notifier.settings import Settings
from tasks.app import create_app

COMMAND = "python -m benchmarks latency"
USERS = 400
LOAD = 0.7
FLOOD = 2_000
START_S = 30.0

Flood = Callable[[Settings, int], Callable[[], object]]  # settings, number of the round: what floods


def rows(quick: bool) -> list[Row]:
    """Times in milliseconds; the noisy neighbour as a ratio."""
    seconds, rounds = (2.0, 2) if quick else (4.0, 4)
    with on_stage(gateway=True) as stage, crowd(stage, USERS) as ours, crowd(stage, USERS, "peer") as peers:
        for warm in (lambda: ours.capacity(ours.ours, 100), lambda: peers.capacity(peers.push, 100),
                     lambda: peers.capacity(peers.insert, 100)):  # fmt: skip
            warm()
        capacity = median([ours.capacity(ours.ours, 3 * USERS if not quick else USERS) for _ in range(rounds)])
        rate = LOAD * capacity
        found = {name: [] for name in ("p50", "p99", "push_p50", "push_p99")}  # type: dict[str, list[float]]
        for _ in range(rounds):
            for prefix, people, send in (("push_", peers, peers.push), ("", ours, ours.ours)):
                times_ms = people.latencies_ms(send, rate, seconds)
                found[f"{prefix}p50"].append(percentile(times_ms, 0.5))
                found[f"{prefix}p99"].append(percentile(times_ms, 0.99))
        more = [a - b for a, b in zip(found["p50"], found["push_p50"], strict=True)]
        noisy = _noisy(stage, ours, rate, rounds, seconds, _in_one_call)
        called = _noisy(stage, ours, rate, rounds, seconds, _in_many_calls)
        burst = _burst(stage, ours, peers, rate)
    figures = {name: spread(values) for name, values in found.items()}
    return [
        row("latency: p50 over an empty task that only PUBLISHes, ms", median(more), "<= 2", COMMAND, ratio=False,
            capacity_per_s=round(capacity), rate_per_s=round(rate), **figures),
        row("latency: p99 from delay() to the socket at 70 % load, ms", median(found["p99"]), "<= 100", COMMAND,
            ratio=False, rounds=figures["p99"]),
        row("noisy neighbour: quiet users' p99 with / without a flood", median(noisy), "<= 1.5", COMMAND,
            rounds=spread(noisy), flood=FLOOD),
        row("the same, a delay() for each of the flood", median(called), "", COMMAND,
            rounds=spread(called)),
        row("ten times the load for a second: our p99, ms", burst["ours"], "<= 100", COMMAND, ratio=False, **burst),
        row("the same burst: p99 of an INSERT per event, ms", burst["insert"], "", COMMAND, ratio=False),
    ]  # fmt: skip


def _noisy(stage: Stage, people: Crowd, rate: float, rounds: int, seconds: float, flood: Flood) -> list[float]:
    """Quiet users at half of the load, alone and while one user gets a flood of different notifications at once."""
    quiet_rate = 0.5 * rate
    ratios = []
    for number in range(rounds):
        with _elsewhere(flood, stage, number) as begin:
            alone_ms = people.latencies_ms(people.ours, quiet_rate, seconds)
            begin()
            beside_ms = people.latencies_ms(people.ours, quiet_rate, seconds)
        stage.drained()
        ratios.append(percentile(beside_ms, 0.99) / percentile(alone_ms, 0.99))
    return ratios


def _in_one_call(settings: Settings, number: int) -> Callable[[], object]:
    made = [Notification.create(f"noisy-{number}", {"n": n}) for n in range(FLOOD)]
    app = create_app(settings)
    return lambda: producer.accept_and_publish(app, made)


def _in_many_calls(settings: Settings, number: int) -> Callable[[], object]:
    send = create_app(settings).tasks["notifier.send_notification"]
    return lambda: [send.delay(f"caller-{number}", {"n": n}) for n in range(FLOOD)]


@contextmanager
def _elsewhere(flood: Flood, stage: Stage, number: int) -> Iterator[Callable[[], object]]:
    """A process that floods when told to: the senders of the quiet share no interpreter with it."""
    spawn = multiprocessing.get_context("spawn")
    ready, begin = spawn.Event(), spawn.Event()
    process = spawn.Process(target=_flood, args=(flood, stage.settings, number, ready, begin), daemon=True)
    process.start()
    if not ready.wait(START_S):
        raise TimeoutError(f"the flood's process was not ready within {START_S:g} s")
    yield begin.set
    process.join()


def _flood(flood: Flood, settings: Settings, number: int, ready: Any, begin: Any) -> None:
    runtime.get(settings)
    run = flood(settings, number)
    ready.set()
    begin.wait()
    run()


def _burst(stage: Stage, ours: Crowd, peers: Crowd, rate: float) -> dict[str, float]:
    """p99 (ms) of everything sent while ten times the load comes for a second: events with a crowd of recipients each.

    Ours sends an event as one call, the article's start as a task a recipient; beside it single sends go on.
    """
    base = 0.5 * rate
    events = max(1, round(10 * base / USERS))
    many = stage.app.tasks["notifier.send_notifications"]

    def ours_event(people: Crowd) -> None:
        many.delay(people.users, {"sent_s": time.monotonic()})

    def insert_event(people: Crowd) -> None:
        for user in people.users:
            people.insert(user, {"sent_s": time.monotonic()})

    p99_ms = {}
    for name, people, event, one in (
        ("ours", ours, ours_event, ours.ours),
        ("insert", peers, insert_event, peers.insert),
    ):
        begun_s = time.monotonic()

        def burst(event=event, people=people, begun_s=begun_s) -> None:  # type: ignore[no-untyped-def]
            for number in range(events):
                time.sleep(max(0.0, begun_s + 0.5 + number / events - time.monotonic()))
                event(people)

        thread = threading.Thread(target=burst)
        thread.start()
        sent = people.steadily(one, base, 2.0)
        thread.join()
        p99_ms[name] = percentile(in_ms(people.heard(sent + events * USERS, 120.0, peer=people is peers)), 0.99)
        stage.drained()
    return p99_ms | {"base_per_s": round(base), "burst": events * USERS}
