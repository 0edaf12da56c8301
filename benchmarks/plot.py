"""Plots as SVG, written by hand: a picture is a few dozen lines of text and needs no library."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from benchmarks.row import Row

FONT = 'font-family="system-ui, sans-serif" font-size="13"'
GREEN, RED, GREY = "#2a7f4f", "#b3412e", "#767676"


class Line(NamedTuple):
    """A named curve; `dashes` tell it from others without colour."""

    name: str
    points: Sequence[tuple[float, float]]
    colour: str
    dashes: str = ""


def bars(rows: Sequence[Row]) -> str:
    """Each value as a share of its bar, which is the vertical line: right of it is better, whichever way it counts."""
    width, left, step = 860, 470, 30
    height = 40 + step * len(rows)
    unit = (width - left - 90) / 2  # px from nothing to the bar
    parts = [f'<line x1="{left + unit:.0f}" y1="24" x2="{left + unit:.0f}" y2="{height - 8}" stroke="{GREY}"/>',
             f'<text x="{left + unit:.0f}" y="16" text-anchor="middle" fill="{GREY}">the bar</text>']  # fmt: skip
    for n, row in enumerate(rows):
        y = 30 + step * n
        kind, number = row.bar.split()
        share = row.value / float(number) if kind == ">=" else float(number) / max(row.value, 1e-9)
        length = unit * min(share, 2.0)
        parts += [
            f'<text x="{left - 8}" y="{y + 14}" text-anchor="end">{escape(row.name)}</text>',
            f'<rect x="{left}" y="{y}" width="{length:.0f}" height="18" fill="{GREEN if row.met else RED}"/>',
            f'<text x="{left + length + 6:.0f}" y="{y + 14}">{row.value:.3g} ({escape(row.bar)})</text>',
        ]
    return _svg(width, height, parts)


def lines(curves: Sequence[Line], *, title: str, x_label: str, y_label: str) -> str:
    """Curves over a linear x and a logarithmic y."""
    width, height, left, top, right, bottom = 860, 420, 70, 40, 210, 50
    points = [point for curve in curves for point in curve.points]
    most_x = max(x for x, _ in points)
    low = math.floor(math.log10(max(1e-6, min(y for _, y in points))))
    high = max(low + 1, math.ceil(math.log10(max(y for _, y in points))))

    def place(x: float, y: float) -> tuple[float, float]:
        share = (math.log10(max(y, 10**low)) - low) / (high - low)
        return left + (width - left - right) * x / most_x, top + (height - top - bottom) * (1 - share)

    parts = [f'<text x="{left}" y="20" font-weight="bold">{escape(title)}</text>']
    for power in range(low, high + 1):
        _, y = place(0, 10**power)
        parts.append(f'<line x1="{left}" y1="{y:.1f}" x2="{width - right}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{left - 8}" y="{y + 4:.1f}" text-anchor="end">{10.0**power:g}</text>')
    for fraction in (0, 0.25, 0.5, 0.75, 1):
        value = most_x * fraction
        x, _ = place(value, 1)
        parts.append(f'<text x="{x:.1f}" y="{height - bottom + 18}" text-anchor="middle">{value:.0f}</text>')
    middle = (left + width - right) / 2
    parts.append(f'<text x="{middle:.0f}" y="{height - 10}" text-anchor="middle">{escape(x_label)}</text>')
    parts.append(f'<text x="14" y="{top - 10}">{escape(y_label)}</text>')
    taken: list[float] = []
    for curve in curves:
        path = " ".join("{:.1f},{:.1f}".format(*place(x, y)) for x, y in curve.points)
        parts.append(
            f'<polyline points="{path}" fill="none" stroke="{curve.colour}" stroke-width="2"'
            f' stroke-dasharray="{curve.dashes}"/>'
        )
        end_x, end_y = place(*curve.points[-1])
        while any(abs(end_y - y) < 15 for y in taken):
            end_y += 15
        taken.append(end_y)
        parts.append(f'<text x="{end_x + 6:.1f}" y="{end_y + 4:.1f}" fill="{curve.colour}">{escape(curve.name)}</text>')
    return _svg(width, height, parts)


def _svg(width: int, height: int, parts: Sequence[str]) -> str:
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'{FONT}>\n<rect width="100%" height="100%" fill="white"/>\n{body}\n</svg>\n'
    )
