"""A Grafana dashboard's time series as one SVG: each panel where the dashboard has it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from benchmarks.plot import GREY

COLOURS = ("#2a7f4f", "#3b62b0", "#b3412e", "#8a5fa8", "#b07a1e", "#3f8f9b", "#555555", "#a04070")
DASHES = ("", "6 3", "2 3", "8 3 2 3", "1 2", "12 4")
COLUMN, UNIT = 36.0, 26.0  # px of the dashboard's grid
GAP_S = 2.0
LEFT, RIGHT, TOP, BOTTOM = 62.0, 14.0, 30.0, 40.0


class Series(NamedTuple):
    """A curve: (seconds since the beginning, value)."""

    name: str
    points: Sequence[tuple[float, float]]


class Panel(NamedTuple):
    """What to draw at (x, y, width, height) of the grid; a row's heading has no series."""

    title: str
    place: tuple[int, int, int, int]
    unit: str
    series: Sequence[Series]
    heading: bool = False


def draw(panels: Sequence[Panel], seconds: float, marks: Sequence[tuple[float, str]] = ()) -> str:
    """`marks` are moments that something happened at."""
    width = 24 * COLUMN
    height = UNIT * max(panel.place[1] + panel.place[3] for panel in panels) + 8
    parts = [part for panel in panels for part in (_heading(panel) if panel.heading else _panel(panel, seconds, marks))]
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" '
        f'height="{height:.0f}" font-family="system-ui, sans-serif" font-size="11">\n'
        f'<rect width="100%" height="100%" fill="white"/>\n{body}\n</svg>\n'
    )


def _heading(panel: Panel) -> list[str]:
    return [_text(4, panel.place[1] * UNIT + 19, panel.title, 'font-size="15" font-weight="bold"')]


def _panel(panel: Panel, seconds: float, marks: Sequence[tuple[float, str]]) -> list[str]:
    x, y, columns, rows = panel.place
    left, top = x * COLUMN + LEFT, y * UNIT + TOP
    right, bottom = (x + columns) * COLUMN - RIGHT, (y + rows) * UNIT - BOTTOM
    most, step = _scale(max((value for series in panel.series for _, value in series.points), default=0.0))

    def across(at_s: float) -> float:
        return left + (right - left) * at_s / seconds

    def up(value: float) -> float:
        return bottom - (bottom - top) * value / most

    parts = [_text(x * COLUMN + 4, top - 12, panel.title, 'font-size="12" font-weight="bold"')]
    for k in range(round(most / step) + 1):
        parts.append(_line(left, up(k * step), right, up(k * step), 'stroke="#e4e4e4"'))
        parts.append(
            _text(left - 6, up(k * step) + 4, _value(k * step, panel.unit), f'fill="{GREY}" text-anchor="end"')
        )
    for at_s, name in marks:
        parts.append(_line(across(at_s), top, across(at_s), bottom, f'stroke="{GREY}" stroke-dasharray="2 2"'))
        parts.append(_text(across(at_s) + 3, top + 8, name, f'fill="{GREY}" font-size="9"'))
    for number, series in enumerate(panel.series):
        for piece in _pieces(series.points):
            points = " ".join(f"{across(at_s):.1f},{up(value):.1f}" for at_s, value in piece)
            parts.append(f'<polyline points="{points}" fill="none" stroke-width="1.6" {_stroke(number)}/>')
    if not panel.series:
        parts.append(_text((left + right) / 2, (top + bottom) / 2, "none", f'fill="{GREY}" text-anchor="middle"'))
    return parts + _legend(panel.series, x * COLUMN + 8, bottom + 16, right)


def _pieces(points: Sequence[tuple[float, float]]) -> list[list[tuple[float, float]]]:
    """Without a line where there was no value for a while."""
    pieces: list[list[tuple[float, float]]] = []
    for point in points:
        if not pieces or point[0] - pieces[-1][-1][0] > GAP_S:
            pieces.append([])
        pieces[-1].append(point)
    return pieces


def _legend(series: Sequence[Series], left: float, y: float, right: float) -> list[str]:
    parts, x = [], left
    for number, one in enumerate(series):
        width = 36 + 6.0 * len(one.name)
        if x + width > right and x > left:
            x, y = left, y + 14
        parts.append(_line(x, y - 4, x + 20, y - 4, f'stroke-width="2" {_stroke(number)}'))
        parts.append(_text(x + 24, y, one.name))
        x += width
    return parts


def _text(x: float, y: float, text: str, style: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{escape(text)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, style: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" {style}/>'


def _stroke(number: int) -> str:
    return f'stroke="{COLOURS[number % len(COLOURS)]}" stroke-dasharray="{DASHES[number % len(DASHES)]}"'


def _scale(most: float) -> tuple[float, float]:
    """An end of the axis, and the distance of its lines: 1, 2 or 5 times a power of ten."""
    if most <= 0:
        return 1.0, 0.5
    power = 10 ** math.floor(math.log10(most / 3))
    step = next(factor * power for factor in (1, 2, 5, 10) if most / (factor * power) <= 4)
    return step * math.ceil(most / step), step


def _value(value: float, unit: str) -> str:
    if unit == "s":
        return f"{value:g} s" if value >= 1 or value == 0 else f"{value * 1000:g} ms"
    return f"{value:,g}/s" if unit == "cps" else f"{value:,g}"
