"""`notifier simulate`: the limiter with many processes and users, in simulated time."""

from __future__ import annotations

import os
from pathlib import Path

import click
from rich.progress import Progress

from notifier.cli.limits import LimitType
from notifier.cli.numbers import Number
from notifier.cli.output import console, emit_json, example, plain_table
from notifier.lab.simulate_report import TRAFFICS, Report, plot, run, suggestion
from notifier.limit import Limit
from notifier.settings import Settings


def _in_a_folder(_ctx: click.Context, _param: click.Parameter, path: Path | None) -> Path | None:
    """Refused before the work, not after it."""
    if path and not os.access(path, os.F_OK) and not (path.parent.is_dir() and os.access(path.parent, os.W_OK)):
        raise click.BadParameter(f"{str(path.parent)!r} is no folder that can be written to")
    return path


@click.command(
    epilog=example(
        "notifier simulate --limit '2/s burst 10' --processes 64 --traffic flood",
        "notifier simulate --local-bucket off --users 1000000 --processes 1000 --json",
        "notifier simulate --traffic flood --overshoot 200 --plot flood.svg",
    )
)
@click.option("--limit", type=LimitType(), help="The users' limit.  [default: NOTIFIER_USER_LIMIT]")
@click.option("--local-bucket", type=LimitType(), help="Each process's bucket, or off.  [default: the setting]")
@click.option("--processes", type=click.IntRange(1, 10_000), default=1_000, show_default=True)
@click.option("--users", type=click.IntRange(1, 100_000_000), default=1_000_000, show_default=True)
@click.option("--traffic", type=click.Choice(TRAFFICS), default="skewed", show_default=True, help="Who is asked for.")
@click.option("--rate", type=Number(0.001, 1e6), default=1_000.0, show_default=True, help="Requests a second.")
@click.option("--seconds", type=Number(1, 86_400), default=60.0, show_default=True, help="Simulated time.")
@click.option("--seed", type=int, default=1, show_default=True, help="The same seed draws the same traffic.")
@click.option(
    "--overshoot", type=Number(0), help="Suggest a local bucket that keeps every user below this many tokens more."
)
@click.option(
    "--plot",
    "plot_to",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    callback=_in_a_folder,
    help="Write a picture (SVG) there.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def command(
    limit: Limit | None,
    local_bucket: Limit | None,
    processes: int,
    users: int,
    traffic: str,
    rate: float,
    seconds: float,
    seed: int,
    overshoot: float | None,
    plot_to: Path | None,
    as_json: bool,
) -> None:
    """Simulate the limiter: how much is decided without Redis, and how far any user gets over the limit.

    The processes run the real local logic; the shared buckets are held equal to the script by a test.
    """
    given = Settings()
    changes = {"user_limit": limit or given.user_limit, "local_bucket": local_bucket or given.local_bucket}
    if changes["local_bucket"].blocks:
        raise click.BadParameter("write 'off' to go without local buckets", param_hint="--local-bucket")
    settings = given.model_copy(update={**changes, "max_processes": max(processes, given.max_processes)})
    with Progress(console=console(stderr=True), transient=True) as bar:
        task = bar.add_task("simulating", total=seconds * 1e6)
        shown = [0]

        def progress(time_us: int) -> None:
            if time_us - shown[0] > seconds * 5_000:
                shown[0] = time_us
                bar.update(task, completed=time_us)

        report = run(settings, traffic, processes, users, rate, seconds, seed, progress)
    if plot_to is not None:
        try:
            plot_to.write_text(plot(report, settings.user_limit, seconds), encoding="utf-8")
        except OSError as error:
            raise click.FileError(str(plot_to), error.strerror) from error
    advice = None if overshoot is None else suggestion(settings, processes, overshoot)
    if as_json:
        emit_json({**report.plain(), **({} if advice is None else {"suggested_local_bucket": advice})})
    else:
        _show(report, settings, advice)


def _show(report: Report, settings: Settings, advice: str | None) -> None:
    requests = max(1, report.requests)
    table = plain_table("", "")
    table.show_header = False
    table.add_row("limit", f"{settings.user_limit}, local bucket {settings.local_bucket}")
    table.add_row("requests", f"{report.requests:,}")
    table.add_row("granted", f"{report.granted:,} ({report.local:,} locally)")
    table.add_row("decided without Redis", f"{report.decided_here / requests:.1%}")
    table.add_row("Redis calls", f"{report.redis_calls_per_s:,.1f} a second")
    table.add_row("worst excess", f"{report.excess:.2f} tokens over B + R*T; the theorem allows {report.allowed:.0f}")
    table.add_row("the article's design", f"{report.article_excess:.2f} tokens over, on the same traffic")
    table.add_row(
        "deferred",
        f"{report.deferred:,}; wait p50 {report.delay_p50_s:.2f} s, p99 {report.delay_p99_s:.2f} s,"
        f" longest {report.delay_max_s:.2f} s",
    )
    if advice is not None:
        table.add_row("suggested local bucket", advice)
    console().print(table)
