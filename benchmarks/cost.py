"""What one notification costs the caller, and what it takes in Redis: no workers run."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable

from benchmarks.row import Row, median, rounded, row, spread
from benchmarks.stage import Stage, on_stage
from benchmarks.throughput import PAYLOAD
from notifier import runtime
from notifier.licence import Grant
from notifier.notification import Notification
from notifier.wire import Message

COMMAND = "python -m benchmarks cost"
_numbers = itertools.count()


def rows(quick: bool) -> list[Row]:
    """Microseconds of the calling process, and bytes of Redis."""
    with on_stage(workers=0, beat=False) as stage:
        return [*_calls(stage, 3 if quick else 9), *_bytes(stage, 2_000 if quick else 10_000)]


def _calls(stage: Stage, rounds: int) -> list[Row]:
    tasks = stage.app.tasks
    empty, single, many = (
        tasks[name] for name in ("benchmarks.empty", "notifier.send_notification", "notifier.send_notifications")
    )
    found: dict[str, list[float]] = {"bare": [], "ours": [], "each": []}
    for number in range(rounds + 1):
        bare = _us(lambda: empty.apply_async((f"user-{next(_numbers)}", PAYLOAD), queue="notifier.normal"), 200)
        ours = _us(lambda: single.delay(f"user-{next(_numbers)}", PAYLOAD), 200)
        users = [f"user-{next(_numbers)}" for _ in range(2_000)]
        each = _us(lambda users=users: many.delay(users, PAYLOAD), 1) / len(users)  # type: ignore[misc]
        if number:  # the first is for warming up
            for name, value in (("bare", bare), ("ours", ours), ("each", each)):
                found[name].append(value)
    ratios = [a / b for a, b in zip(found["ours"], found["bare"], strict=True)]
    each_of = [a / b for a, b in zip(found["each"], found["bare"], strict=True)]
    return [
        row("delay(): send_notification / a bare Celery delay()", median(ratios), "", COMMAND, rounds=spread(ratios),
            us=spread(found["ours"]), bare_us=spread(found["bare"])),
        row("delay(): a recipient of send_notifications / a bare Celery delay()", median(each_of), "", COMMAND,
            rounds=spread(each_of), us=spread(found["each"])),
    ]  # fmt: skip


def _us(call: Callable[[], object], times: int) -> float:
    """Microseconds a call takes, on the clock."""
    begun_s = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - begun_s) / times * 1e6


def _bytes(stage: Stage, count: int) -> list[Row]:
    """used_memory before and after, over `count` users of one entry each, then 50 entries for a few."""
    ledger = runtime.get().ledger
    made = [Notification.create(f"bytes-{n}", PAYLOAD) for n in range(count)]
    before = _used(stage)
    accepted = ledger.accept(made)
    in_flight = (_used(stage) - before) / count
    messages = [Message(n, a.accepted_us, a.epoch) for n, a in zip(made, accepted, strict=True)]
    grants = [Grant(a.accepted_us, 0) for a in accepted]
    ledger.deliver(messages, grants)
    marks = list(stage.state.scan_iter("notifier:v1:*done:*", count=1_000))
    mark = sum(stage.state.memory_usage(key) or 0 for key in marks[:500]) / len(marks[:500])
    feeds = list(stage.state.scan_iter("notifier:v1:*feed:*bytes-*", count=1_000))
    feed = sum(stage.state.memory_usage(key, samples=0) or 0 for key in feeds[:500]) / len(feeds[:500])
    for _ in range(49):
        some = [Notification.create(n.user_id, PAYLOAD) for n in made[:20]]
        got = ledger.accept(some)
        ledger.deliver([Message(n, a.accepted_us, a.epoch) for n, a in zip(some, got, strict=True)], grants[:20])
    full_keys = [key for key in feeds if stage.state.xlen(key) == 50]
    full = sum(stage.state.memory_usage(key, samples=0) or 0 for key in full_keys) / len(full_keys)
    figures = (
        ("bytes: a notification in flight (body 84 bytes)", in_flight),
        ("bytes: a done mark", mark),
        ("bytes: a feed of one entry", feed),
        ("bytes: a full feed of 50 entries", full),
    )
    return [row(name, rounded(value), "", COMMAND, ratio=False) for name, value in figures]


def _used(stage: Stage) -> int:
    return int(stage.state.info("memory")["used_memory"])  # type: ignore[index]
