"""A line of docs/performance.md: what was measured, against which bar, and the command that measures it again."""

from __future__ import annotations

import operator
import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

_KEPT = {">=": operator.ge, "<=": operator.le}


class Row(NamedTuple):
    """`ratio`: both sides were measured in this run, so it means the same on every machine, and CI may fail on it."""

    name: str
    value: float
    bar: str  # ">= 0.8", "<= 1.5", or "" for a figure without one
    met: bool
    command: str
    ratio: bool
    detail: dict[str, Any]

    def within(self, margin: float, known: float | None = None) -> bool:
        """Whether the bar, moved by that share, is kept. `known`: a worse value that the documents own up to."""
        if not self.bar:
            return True
        kind, number = self.bar.split()
        bar = float(number)
        if known is not None and not _KEPT[kind](known, bar):
            bar = known
        return bool(_KEPT[kind](self.value, bar * (1 - margin if kind == ">=" else 1 + margin)))


def row(name: str, value: float, bar: str, command: str, *, ratio: bool = True, **detail: Any) -> Row:
    """A row, `met` or not by its bar. `detail` is what the value was made of."""
    made = Row(name, value, bar, False, command, ratio, detail)
    return made._replace(met=made.within(0.0))


def median(values: Sequence[float]) -> float:
    """The median of the rounds."""
    return float(statistics.median(values))


def spread(values: Sequence[float]) -> list[float]:
    """Least, median and most of the rounds, to three digits."""
    return [rounded(number) for number in (min(values), statistics.median(values), max(values))]


def rounded(number: float) -> float:
    """To three significant digits; whole from 1,000 on."""
    return float(round(number)) if abs(number) >= 1_000 else float(f"{number:.3g}")


def percentile(values: Sequence[float], share: float) -> float:
    """The value that `share` of all do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
