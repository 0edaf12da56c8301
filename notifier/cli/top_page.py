"""The page of `notifier top`: one column on a narrow terminal, two on a wide one. Words say what colours stress."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from notifier.cli.top_figures import Figures
from notifier.survey import NAMES, OK, REPLAY_IS_LATE_S

WIDE = 96
BLOCKS = "▁▂▃▄▅▆▇█"
FLOW = ("accepted", "delivered", "deferrals", "replayed", "digested", "expired", "dropped", "republished")
SLOW_S = 5.0
UNKNOWN = "-"
Cell = str | Text


def page(figures: Figures, history: Sequence[float], title: str, width: int) -> RenderableType:
    """Everything. `history` are the deliveries per second so far, the newest last."""
    flow = _flow(figures)
    left: list[RenderableType] = [flow, _waits(figures)]
    right: list[RenderableType] = [_latency(figures, history), _limiter(figures), _gateways(figures)]
    below: list[RenderableType] = [_servers(figures), *_degraded(figures)]
    head = Text(title, style="dim")
    if width < WIDE:
        return Group(head, Text(), *_spaced([*left, *right, *below]))
    side_by_side = Columns([Group(*_spaced(left)), Group(*_spaced(right))], width=width // 2 - 2, padding=(0, 2))
    return Group(head, Text(), side_by_side, Text(), *_spaced(below))


def line(figures: Figures) -> str:
    """All in one line, for what is no terminal."""
    waiting = "unknown" if figures.waiting is None else f"{figures.waiting:,}"
    parts = [f"{name} {figures.rates[name]:,.1f}/s" for name in FLOW[:4] if name in figures.rates]
    parts += [f"p50 {_time(figures.latency_s['p50'])}", f"p99 {_time(figures.latency_s['p99'])}", f"waiting {waiting}"]
    away = [NAMES[server] for server, problem in figures.servers.items() if problem != OK]
    return ", ".join([*parts, *(f"{server} is away" for server in away)])


def text(renderable: RenderableType, width: int) -> str:
    """As plain text, whatever the terminal."""
    console = Console(width=width, highlight=False, markup=False, color_system=None, force_terminal=False)
    with console.capture() as capture:
        console.print(renderable)
    return "\n".join(part.rstrip() for part in capture.get().splitlines())


def _flow(figures: Figures) -> Table:
    table = _table("notifications", "per second", "so far")
    for name in FLOW:
        rate, total = figures.rates.get(name), figures.totals.get(name)
        bad = name == "dropped" and rate
        cells = [name, UNKNOWN if rate is None else f"{rate:,.1f}", UNKNOWN if total is None else f"{total:,}"]
        table.add_row(*cells, style="bold red" if bad else "")
    return table


def _waits(figures: Figures) -> Table:
    table = _table("what waits", "", "age")
    for queue, size in figures.queued.items():
        age_s = figures.queue_age_s.get(queue)
        slow = age_s is not None and age_s > SLOW_S and queue != "bulk"
        table.add_row(f"queue {queue}", f"{size:,}", _stressed(_time(age_s), "slow", slow))
    table.add_row("waiting", _number(figures.waiting), "")
    table.add_row("  still in Redis", _number(figures.deferred), "")
    rows = figures.rows or {}
    oldest_s = rows.get("oldest_waiting_s")
    table.add_row("  rows", _number(rows.get("waiting")), _time(oldest_s) if oldest_s else "")
    parked = figures.parked or 0
    table.add_row(
        "parked",
        _number(figures.parked),
        _time(rows.get("oldest_parked_s")) if parked else "",
        style="bold" if parked else "",
    )
    overdue_s, ago_s = rows.get("overdue_s"), figures.replayed_s_ago
    table.add_row("replay behind by", "", _stressed(_time(overdue_s), "late", (overdue_s or 0) > REPLAY_IS_LATE_S))
    if figures.totals:
        late = ago_s is None or ago_s > REPLAY_IS_LATE_S
        table.add_row("last replay", "", _stressed("over 1 h" if ago_s is None else _time(ago_s), "late", late))
    return table


def _latency(figures: Figures, history: Sequence[float]) -> RenderableType:
    table = _table("accept to delivered", "")
    table.add_row("p50", _time(figures.latency_s["p50"]))
    table.add_row("p99", _time(figures.latency_s["p99"]))
    return Group(table, Text(f"delivered  {sparkline(history)}")) if history else table


def _limiter(figures: Figures) -> Table:
    table = _table("limiter", "per second")
    _rows(table, "granted, ", figures.grants)
    _rows(table, "denied, ", {level: rate for level, rate in figures.denials.items() if rate or level == "user"})
    table.add_row("open loans", _number(figures.loans))
    for state, size in figures.limiters.items():
        if size or state == "in_touch":
            table.add_row(
                f"processes {state.replace('_', ' ')}", _stressed(f"{size:,}", "degraded", state != "in_touch")
            )
    for channel, size in figures.breakers_open.items():
        table.add_row(f"breaker of {channel}", _stressed(f"{size:,}", "open", True))
    return table


def _gateways(figures: Figures) -> Table:
    table = _table("gateways", "")
    for transport, size in figures.clients.items():
        table.add_row(f"clients, {transport}", f"{size:,}")
    table.add_row("messages to them", UNKNOWN if figures.sent is None else f"{figures.sent:,.1f}/s")
    return table


def _servers(figures: Figures) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    for server, problem in figures.servers.items():
        table.add_row(NAMES[server], Text("ok") if problem == OK else Text(f"away: {problem}", style="bold red"))
    for url, problem in figures.scraped.items():
        table.add_row("metrics", Text(url) if problem == OK else Text(f"{url}: {problem}", style="bold red"))
    return table


def _degraded(figures: Figures) -> Iterable[Text]:
    if figures.fallbacks:
        taken = ", ".join(f"{what} {count:,.0f}" for what, count in sorted(figures.fallbacks.items()))
        yield Text(f"degraded: fallbacks taken in the last {figures.window_s:.0f} s: {taken}", style="bold red")


def sparkline(history: Sequence[float]) -> str:
    """A bar a figure, from 0 to the highest."""
    most = max(history, default=0.0)
    return "".join(BLOCKS[round((len(BLOCKS) - 1) * value / most)] if most else BLOCKS[0] for value in history)


def _table(name: str, *numbers: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column(name, min_width=20, no_wrap=True)
    for number in numbers:
        table.add_column(number, justify="right", min_width=10, no_wrap=True)
    return table


def _rows(table: Table, prefix: str, rates: Mapping[str, float]) -> None:
    for name, rate in rates.items():
        table.add_row(f"{prefix}{name}", f"{rate:,.1f}", style="bold" if name == "grace" and rate else "")


def _spaced(parts: Iterable[RenderableType]) -> list[RenderableType]:
    return [each for part in parts for each in (Text(), part)][1:]


def _stressed(figure: str, word: str, stress: bool) -> Cell:
    return Text(f"{word} {figure}", style="bold red") if stress else figure


def _number(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:,.0f}"


def _time(seconds: float | None) -> str:
    if seconds is None:
        return UNKNOWN
    if seconds < 1:
        return f"{seconds * 1000:,.0f} ms"
    if seconds < 120:
        return f"{seconds:,.1f} s"
    return f"{seconds / 60:,.0f} min" if seconds < 7_200 else f"{seconds / 3_600:,.0f} h"
