"""`notifier demo`: everything on this machine under load, with the books at the end."""

from __future__ import annotations

import sys
import time
import webbrowser
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from notifier.cli.numbers import Number
from notifier.cli.output import console, emit_json, example, plain_table

if TYPE_CHECKING:
    from rich.table import Table

    from notifier.lab.demo import Progress, Result

LINE_EVERY_S = 5.0


@click.command(
    epilog=example("notifier demo", "notifier demo --open --keep", "notifier demo --seconds 60 --json | tail -1")
)
@click.option("--seconds", type=Number(1, 86_400), default=20, show_default=True, help="How long to send.")
@click.option("--open", "open_page", is_flag=True, help="Open the live page in a browser.")
@click.option("--keep", is_flag=True, help="Leave everything running after the count, until Ctrl-C.")
@click.option("--json", "as_json", is_flag=True, help="End with the result as one JSON object on one line.")
def command(seconds: float, open_page: bool, keep: bool, as_json: bool) -> None:
    """Start servers, workers, beat and gateway, let one noisy and twenty quiet users receive, and count.

    Everything is real: Valkey, PostgreSQL, Celery, websocket clients. The noisy user gets bursts far over the limit
    (NOTIFIER_USER_LIMIT), which wait in PostgreSQL and are replayed as the limit allows. What arrived at the sockets is
    then compared with the senders' own list.

    Exit code 0 only if nothing was lost, doubled, out of order or over the limit.
    """
    from notifier.cli.signals import asked_by_signals, ignore_signals
    from notifier.lab import demo

    with asked_by_signals() as asked, ExitStack() as running:
        with _display() as say:
            installation = running.enter_context(demo.installed(say, asked.check))
            running.callback(ignore_signals)  # before anything is stopped
            if open_page and not webbrowser.open(installation.page):
                click.echo(f"no browser to open; the live page: {installation.page}", err=True)
            result = installation.run(seconds, say)
        screen = console(stderr=as_json)
        screen.print(_table(result))
        screen.print(_verdict(result))
        if keep:
            text = f"\neverything goes on running until Ctrl-C; the live page: {installation.page}"
            installation.go_on(lambda: click.echo(text, err=True))
    if as_json:
        emit_json(asdict(result))
    sys.exit(0 if result.ok else 1)


@contextmanager
def _display() -> Iterator[Callable[[Progress], None]]:
    """Live on a terminal, else a line for each step and every few seconds; on stderr, so that --json stays clean."""
    from rich.live import Live

    screen = console(stderr=True)
    if screen.is_terminal:
        with Live(console=screen, refresh_per_second=8, transient=True) as live:
            yield lambda progress: live.update(_progress_table(progress))
        return
    last: dict[str, float] = {}

    def say(progress: Progress) -> None:
        if time.monotonic() - last.get(progress.step, -LINE_EVERY_S) >= LINE_EVERY_S:
            last[progress.step] = time.monotonic()
            screen.print(_line(progress), soft_wrap=True)

    yield say


def _line(progress: Progress) -> str:
    if not progress.elapsed_s:
        return progress.step
    counted = ("accepted", "delivered", "waiting", "replayed")
    numbers = ", ".join(f"{name} {getattr(progress, name):,}" for name in counted)
    return f"{progress.step}, {progress.elapsed_s:.0f} s: {numbers}, quiet p99 {progress.quiet_p99_ms:.1f} ms"


def _progress_table(progress: Progress) -> Table:
    table = plain_table("", f"{progress.step}{f', {progress.elapsed_s:.0f} s' if progress.elapsed_s else ''}")
    if progress.elapsed_s:
        table.add_row("accepted", f"{progress.accepted:,}")
        table.add_row("delivered", f"{progress.delivered:,}")
        table.add_row("deferred", f"{progress.deferred:,}")
        table.add_row("replayed", f"{progress.replayed:,}")
        table.add_row("quiet users", f"p50 {progress.quiet_p50_ms:.1f} ms, p99 {progress.quiet_p99_ms:.1f} ms")
        table.add_row("grants", _grants(progress.grants))
    return table


def _grants(grants: dict[str, int]) -> str:
    return ", ".join(f"{source} {count:,}" for source, count in grants.items())


def _table(result: Result) -> Table:
    table = plain_table("", "", "")
    table.show_header = False
    for name, value, meaning in (
        ("accepted", result.accepted, "the senders' own list"),
        ("delivered", result.delivered, "arrived at the sockets"),
        ("waiting", result.waiting, "in PostgreSQL, to be replayed as the limit allows"),
        *((name, value, "") for name in ("digested", "expired", "dropped", "duplicate", "parked", "in_flight")
          if (value := getattr(result, name))),
        ("", None, ""),
        ("noisy user", result.noisy_delivered, f"delivered; {result.noisy_deferred:,} were deferred"),
        ("replayed", result.replayed, "delivered later, from PostgreSQL"),
        ("", None, ""),
        ("lost", result.lost, "neither delivered nor held anywhere"),
        ("duplicates", result.duplicates, "delivered again"),
        ("disorder", result.disorder, "overtook one that had been denied before"),
        ("over limit", f"{result.limit_excess:g}", "tokens over B + R*T + L, in the worst window of any user"),
    ):  # fmt: skip
        table.add_row(name, "" if value is None else f"{value:,}" if isinstance(value, int) else value, meaning)
    table.columns[1].justify = "right"
    table.add_row("", "", "")
    quiet = f"p50 {result.quiet_p50_ms:.1f} ms, p99 {result.quiet_p99_ms:.1f} ms, from the call to the socket"
    table.add_row("quiet users", "", quiet)
    table.add_row("grants", "", _grants(result.grants))
    return table


def _verdict(result: Result) -> str:
    if result.ok:
        return "\nPASSED: nothing lost, nothing twice, in order, within the limits"
    wrong = [
        f"{name} {value:,}"
        for name, value in (
            ("lost", result.lost),
            ("duplicates", result.duplicates),
            ("disorder", result.disorder),
            ("over limit", result.limit_excess),
        )
        if value
    ]
    return f"\nFAILED: {', '.join(wrong)}"
