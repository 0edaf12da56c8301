"""What OpenTelemetry costs a notification, accepted and delivered: processor time of our side and of its SDK's."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, Sampler

from benchmarks.row import Row, rounded, row, spread
from notifier import tracing
from notifier.hooks import Booked
from notifier.notification import Notification

COMMAND = "python -m benchmarks tracing"
BATCH = 100
MODES: dict[str, Sampler | None] = {"no provider set": None, "nothing sampled": ALWAYS_OFF, "all sampled": ALWAYS_ON}


def rows(quick: bool) -> list[Row]:
    """Microseconds of processor time; exporting comes on top, in a thread of the SDK's."""
    made: list[Row] = []
    for mode, sampler in MODES.items():
        with _provider(sampler):
            for size, kind in ((1, "alone"), (BATCH, f"in a batch of {BATCH}")):
                found = [_us(size, 500 if quick else 5_000) for _ in range(3 if quick else 9)]
                name = f"us: traced accept and delivery, {mode}, {kind}"
                made.append(row(name, rounded(min(found)), "", COMMAND, ratio=False, rounds=spread(found)))
    return made


@contextmanager
def _provider(sampler: Sampler | None) -> Iterator[None]:
    """OpenTelemetry's own way to set one works once in a process."""
    before = trace._TRACER_PROVIDER
    trace._TRACER_PROVIDER = TracerProvider(sampler=sampler) if sampler else None
    try:
        yield
    finally:
        trace._TRACER_PROVIDER = before


def _us(size: int, count: int) -> float:
    """Of one notification: `count` of them, `size` a call, as ledger and tally call it."""
    sent = [Notification(f"user-{number}", '{"text":"hello"}', f"id-{number}") for number in range(size)]
    statuses, found = ["queued"] * size, [Booked(place, "delivered", "") for place in range(size)]

    @tracing.timed
    def deliver() -> None:
        if tracing.wanted():
            tracing.booked(sent, found, "message")

    begun_s = time.process_time()
    for _ in range(count // size):
        tracing.accepted(sent, statuses, tracing.now_ns())
        deliver()
    return (time.process_time() - begun_s) / (count // size * size) * 1e6
