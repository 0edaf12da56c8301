"""`notifier status`: what is on its way, what waits, and what is degraded, asked of the servers themselves."""

from __future__ import annotations

import sys
from contextlib import closing
from typing import Any, NamedTuple

import click

from notifier.cli.away import way_out
from notifier.cli.output import emit_json, example
from notifier.resources import UNSHADOW, shadow
from notifier.settings import FIELD_OF, Settings
from notifier.survey import AWAY, NAMES, OK, REPLAY_IS_LATE_S, Survey, Surveyor

PATIENCE_S = 10.0  # far longer than a client waits that finds nobody: what is shown is its word, on a slow machine too
QUEUE_IS_OLD_S = 5.0
ENDS = ("delivered", "digested", "expired", "dropped", "duplicate", "parked")


class Report(NamedTuple):
    """What --json prints. Of a server that is away, its part is None and `servers` says why."""

    counts: dict[str, Any] | None  # the books: accepted, each end, waiting, in_flight, queued by priority, ...
    rows: dict[str, int] | None  # PostgreSQL: waiting, parked
    queue_age_s: dict[str, float | None] | None  # how long the last probe took through each queue
    replayed_s_ago: float | None  # None: an hour or longer
    unaccounted: int | None  # accepted, less all that is known; 0 at rest
    servers: dict[str, str]  # "ok", or what is wrong
    degraded: list[str]


@click.command(epilog=example("notifier status", "notifier status --json | python3 -m json.tool"))
@click.option("--json", "as_json", is_flag=True, help="One JSON object: counts, rows, servers, degraded, ...")
def command(as_json: bool) -> None:
    """Show what is on its way, what waits, and what is degraded.

    Exit code 1 if anything is degraded.
    """
    with closing(Surveyor(Settings(), timeout_s=PATIENCE_S)) as surveyor:
        report = report_of(surveyor.look())
    if as_json:
        emit_json(report._asdict())
    else:
        click.echo("\n".join(render(report)))
        if OK not in report.servers.values():
            click.echo(f"Nothing runs here: {way_out(*FIELD_OF)}.", err=True)
    sys.exit(1 if report.degraded else 0)


def report_of(survey: Survey) -> Report:
    """What a survey means."""
    books, rows = survey.books, survey.rows
    counts = books.counts._asdict() if books else None
    known = [counts[name] for name in (*ENDS, "waiting", "in_flight")] if counts else []
    return Report(
        counts=counts,
        rows={"waiting": rows.waiting, "parked": rows.parked} if rows else None,
        queue_age_s=books.queue_age_s if books else None,
        replayed_s_ago=books.replayed_s_ago if books else None,
        unaccounted=counts["accepted"] - sum(known) if counts else None,
        servers=survey.servers,
        degraded=degraded(survey),
    )


def degraded(survey: Survey) -> list[str]:
    """What is not as it should be, and what follows from it; [] where all is well."""
    books = survey.books
    lines = [
        f"{problem if NAMES[server] in problem else f'{NAMES[server]}: {problem}'}: {AWAY[server]}"
        for server, problem in survey.servers.items()
        if problem != OK
    ]
    if books is None:
        return lines or [f"{NAMES['state']} answers, but what is on its way it did not tell in time"]
    if books.replayed_s_ago is None or books.replayed_s_ago > REPLAY_IS_LATE_S:
        since = "an hour or longer" if books.replayed_s_ago is None else f"{books.replayed_s_ago:,.0f} s"
        lines.append(f"no replay has run for {since}: are beat and a worker running?{_shadow()}")
    if (oldest_s := books.counts.oldest_queued_s) > QUEUE_IS_OLD_S:
        lines.append(f"the oldest queued notification is {oldest_s:,.0f} s old: are there enough workers?")
    return lines


def _shadow() -> str:
    """Where another `tasks` lies here, a worker or beat of this directory may run without ours."""
    found = shadow()
    return f" {found} hides Notifier's own `tasks` from whatever starts here: {UNSHADOW}" if found else ""


def render(report: Report) -> list[str]:
    """The report for people: aligned, calm, complete."""
    lines = []
    if report.counts:
        width = max(len(f"{value:,}") for value in report.counts.values() if isinstance(value, int))
        lines.append(f"{'accepted':<12} {report.counts['accepted']:>{width},}")
        lines += [f"  {name:<10} {report.counts[name]:>{width},}" for name in ENDS]
        rows = "" if report.rows is None else f", rows in PostgreSQL {report.rows['waiting']:,}"
        waiting, queued = report.counts["waiting"], report.counts["queued"]
        lines.append(
            f"  {'waiting':<10} {waiting:>{width},}   on their way to PostgreSQL {report.counts['deferred']:,}{rows}"
        )
        by_queue = ", ".join(f"{queue} {size:,}" for queue, size in queued.items())
        lines.append(f"  {'in flight':<10} {report.counts['in_flight']:>{width},}   {by_queue}")
        so_far = (("deferred", "deferrals"), ("replayed", "replayed"), ("published again", "republished"))
        lines += ["", "so far: " + ", ".join(f"{word} {report.counts[name]:,}" for word, name in so_far)]
    if report.queue_age_s:
        ages = (
            f"{queue} {'unknown' if s is None else f'{s * 1000:,.0f} ms'}" for queue, s in report.queue_age_s.items()
        )
        lines.append(f"through the queues in: {', '.join(ages)}")
    if report.replayed_s_ago is not None:
        lines.append(f"last replay: {report.replayed_s_ago:,.1f} s ago")
    lines += [f"{NAMES[server]}: {problem}" for server, problem in report.servers.items() if problem == OK]
    if report.degraded and lines:
        lines.append("")
    return lines + [f"degraded: {line}" for line in report.degraded]
