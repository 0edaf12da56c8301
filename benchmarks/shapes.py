"""Which shape of worker: prefork, threads, solo; one, two, four children; one worker or two. Not for quick runs."""

from __future__ import annotations

from typing import Any

from benchmarks.row import Row, median, row, spread
from benchmarks.stage import on_stage
from benchmarks.throughput import Bench

COMMAND = "python -m benchmarks shapes"
QUICK = False
SHAPES = (
    ("prefork", 1, 2),
    ("prefork", 1, 1),
    ("prefork", 1, 4),
    ("prefork", 2, 1),
    ("prefork", 2, 2),
    ("threads", 1, 2),
    ("threads", 2, 2),
    ("solo", 2, 1),
)
PASSES = 2


def rows(quick: bool) -> list[Row]:
    """Single sends a second of each shape over those of one prefork worker with two children, pass by pass."""
    rates: dict[tuple[str, int, int], dict[str, list[float]]] = {}
    for _ in range(PASSES):
        for shape in SHAPES:
            pool, workers, concurrency = shape
            with on_stage(pool=pool, workers=workers, concurrency=concurrency) as stage:
                bench = Bench(stage, seconds=2.0)
                bench.one_round(("empty", "single"))
                bench.one_round(("empty", "single"))
            found = rates.setdefault(shape, {"empty": [], "single": []})
            for name, values in found.items():
                values.append(median(bench.rates[name]))
    base = rates[SHAPES[0]]["single"]
    made = []
    for (pool, workers, concurrency), found in rates.items():
        ratios = [a / b for a, b in zip(found["single"], base, strict=True)]
        figures: dict[str, Any] = {f"{name}_per_s": spread(values) for name, values in found.items()}
        name = f"single sends/s, {workers} {pool} of {concurrency} / one prefork of 2"
        made.append(row(name, median(ratios), "", COMMAND, **figures))
    return made
