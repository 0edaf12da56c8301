"""How many a second: one notification a task, many a task, an empty Celery task, and the article's start.

All in the same workers (prefork, two children) on the same broker, in turn, round after round. Single tasks are queued
while the workers are held and then let go; a call for many is timed from the call until nothing is left.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.row import Row, median, row, spread
from benchmarks.stage import Stage, on_stage
from notifier import producer, runtime
from notifier.notification import Notification

COMMAND = "python -m benchmarks throughput"
PAYLOAD = {"text": "somebody likes your photo", "actor": "user-77", "object": "photo-12345"}
QUEUE = "notifier.normal"
KINDS = ("empty", "single", "insert", "fan_out", "different")
_numbers = itertools.count()


def rows(quick: bool) -> list[Row]:
    """Ratios of tasks a second."""
    with on_stage() as stage:
        bench = Bench(stage, seconds=0.7 if quick else 3.0)
        for _ in range(3 if quick else 5):
            bench.one_round()
    rates = bench.rates
    ratio = {name: [a / b for a, b in zip(rates[name], rates["empty"], strict=True)] for name in rates}
    start = {name: [a / b for a, b in zip(rates[name], rates["insert"], strict=True)] for name in rates}
    figures: dict[str, Any] = {f"{name}_per_s": spread(rate) for name, rate in rates.items()}
    return [
        row("single path: send_notification / an empty Celery task", median(ratio["single"]), ">= 0.8", COMMAND,
            rounds=spread(ratio["single"]), cpu_us=bench.cpu_us, **figures),
        row("fan-out: notifications of send_notifications / empty tasks", median(ratio["fan_out"]), ">= 25", COMMAND,
            rounds=spread(ratio["fan_out"])),
        row("notify_many: different notifications / empty tasks", median(ratio["different"]), "", COMMAND,
            rounds=spread(ratio["different"])),
        row("fan-out / the article's start: an INSERT per event, then push", median(start["fan_out"]), ">= 3", COMMAND,
            rounds=spread(start["fan_out"])),
        row("single path / the article's start", median(start["single"]), ">= 1.5", COMMAND,
            rounds=spread(start["single"])),
    ]  # fmt: skip


class Bench:
    """`rates` a second by kind, a number a round; `cpu_us` by kind: CPU microseconds of each process, last round."""

    def __init__(self, stage: Stage, seconds: float) -> None:
        self._stage = stage
        self.rates: dict[str, list[float]] = {name: [] for name in KINDS}
        self.cpu_us: dict[str, dict[str, int]] = {}
        for fill in (self._empty, self._single, self._insert):  # warm-up, and how many are enough
            rate = stage.drain(lambda fill=fill: fill(300))  # type: ignore[misc]
        self._fan_out(500)
        self._different(500)
        self._count = max(300, int(rate * seconds))

    def one_round(self, kinds: Sequence[str] = KINDS) -> None:
        """Each kind once."""
        fills = {"empty": self._empty, "single": self._single, "insert": self._insert}
        calls = {"fan_out": self._fan_out, "different": self._different}
        for name in kinds:
            count = 10 * self._count if name in calls else self._count
            if name in calls:
                before = self._stage.cpu_s()
                rate = calls[name](count)
            else:
                before = {}

                def fill(name: str = name, before: dict[str, float] = before) -> int:
                    filled = fills[name](self._count)
                    before.update(self._stage.cpu_s())
                    return filled

                rate = self._stage.drain(fill)
            after = self._stage.cpu_s()
            self.rates[name].append(rate)
            self.cpu_us[name] = {part: round(1e6 * (after[part] - before[part]) / count) for part in after}

    def _empty(self, count: int) -> int:
        return self._send("benchmarks.empty", count, lambda n: (f"user-{n}", PAYLOAD))

    def _insert(self, count: int) -> int:
        return self._send("benchmarks.insert_and_push", count, lambda n: (f"user-{n}", PAYLOAD, "1-1", "0-0", "{}"))

    def _send(self, name: str, count: int, arguments: Callable[[int], tuple[Any, ...]]) -> int:
        app = self._stage.app
        with app.pool.acquire() as connection, app.amqp.Producer(connection) as opened:
            for _ in range(count):
                app.tasks[name].apply_async(arguments(next(_numbers)), queue=QUEUE, producer=opened)
        return count

    def _single(self, count: int) -> int:
        send = self._stage.app.tasks["notifier.send_notification"]
        for n in itertools.islice(_numbers, count):
            send.delay(f"user-{n}", {**PAYLOAD, "n": n})
        return count

    def _fan_out(self, count: int) -> float:
        users = [f"user-{n}" for n in itertools.islice(_numbers, count)]
        return self._until_delivered(
            count, lambda: self._stage.app.tasks["notifier.send_notifications"].delay(users, PAYLOAD)
        )

    def _different(self, count: int) -> float:
        made = [Notification.create(f"user-{n}", {**PAYLOAD, "n": n}) for n in itertools.islice(_numbers, count)]
        return self._until_delivered(count, lambda: producer.accept_and_publish(self._stage.app, made))

    def _until_delivered(self, count: int, call: Callable[[], object]) -> float:
        """Notifications a second, from the call until the last is delivered."""
        before = runtime.get().ledger.counts().delivered
        begun_s = time.perf_counter()
        call()
        rate = count / (self._stage.drained() - begun_s)
        if (delivered := runtime.get().ledger.counts().delivered - before) != count:
            raise RuntimeError(f"{delivered} of {count} were delivered")
        return rate
