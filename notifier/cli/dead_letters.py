"""notifier dead-letters: what waits, and what is parked."""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import chain
from typing import Any, TypeVar

import click
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from notifier.cli.output import console, emit_json, example, many, plain_table
from notifier.cli.output import rows as aligned
from notifier.deadletters.manage import Done, Filter, Manager, Summary, forecast_s
from notifier.deadletters.schema import Row, State, instant
from notifier.licence import Reason
from notifier.notification import MAX_USER_ID, clean_identity, clean_text
from notifier.runtime import Runtime
from notifier.settings import Settings

F = TypeVar("F", bound=Callable[..., Any])
CHANGED = {"replay": "due now", "park": "parked", "drop": "dropped"}
LEFT = "a replay has them just now, or this command is not for them"
_UNITS_S = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
OLDEST_S = 50 * 31_557_600  # what comes before 1970 is no time of a row
_AGE = re.compile(r"(\d{1,9})([smhdw])")


class Age(click.ParamType[int]):
    """`15m` or `2h`, in microseconds."""

    name = "age"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """A number and a unit."""
        if isinstance(value, int):
            return value
        match = _AGE.fullmatch(value.strip())
        if match is None:
            self.fail(f"{value!r:.50} is no age; write e.g. 90s, 15m, 2h or 7d", param, ctx)
        seconds = int(match[1]) * _UNITS_S[match[2]]
        if seconds > OLDEST_S:
            self.fail(f"{value!r} is over {OLDEST_S // 31_557_600} years", param, ctx)
        return seconds * 1_000_000


class Moment(click.ParamType[int]):
    """An age, counted back from now, or an ISO time; in microseconds since the epoch."""

    name = "moment"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Without a time zone it is UTC."""
        if isinstance(value, int):
            return value
        if _AGE.fullmatch(value.strip()):
            return _now_us() - Age().convert(value, param, ctx)
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            self.fail(f"{value!r:.50} is no time; write e.g. 2h (ago) or 2026-01-31T12:00:00+00:00", param, ctx)
        return max(1, int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1_000_000))


def _now_us() -> int:
    return int(datetime.now(UTC).timestamp() * 1_000_000)


_FILTERS: list[Callable[[Any], Any]] = [
    click.option("--user", "user_id", metavar="USER", help="Only of this user."),
    click.option("--id", "notification_id", metavar="ID", help="Only this notification."),
    click.option("--channel", metavar="NAME", help="Only of this channel."),
    click.option("--category", metavar="NAME", help="Only of this category."),
    click.option(
        "--reason",
        type=click.Choice([reason.value for reason in Reason]),
        help="Only rows that are here for this reason.",
    ),
    click.option(
        "--state",
        type=click.Choice([state.value for state in State]),
        help="Only what waits by itself, or for a person.",
    ),
    click.option(
        "--since", "since_us", type=Moment(), metavar="TIME", help="Accepted since then: 2h (ago) or an ISO time."
    ),
    click.option("--older-than", "age_us", type=Age(), metavar="AGE", help="Accepted longer ago than this: 15m, 7d."),
]


def _filtered(command: F) -> F:
    """Adds the filter's options; the command gets them as one Filter named `which`."""

    def build(age_us: int | None = None, **values: Any) -> Filter:
        for name in ("user_id", "notification_id", "channel", "category"):
            if values[name] is not None:
                clean_text(name, values[name], MAX_USER_ID)
        return Filter(**values, until_us=None if age_us is None else _now_us() - age_us)

    names = ("user_id", "notification_id", "channel", "category", "reason", "state", "since_us", "age_us")

    @functools.wraps(command)
    def wrapped(**options: Any) -> Any:
        which = build(**{name: options.pop(name) for name in names})
        return command(which=which, **options)

    for option in reversed(_FILTERS):
        wrapped = option(wrapped)
    return wrapped  # type: ignore[return-value]


def _changes(command: Callable[..., Done]) -> Callable[..., None]:
    """Adds what all commands that change rows have, and refuses to touch everything by accident."""

    @functools.wraps(command)
    def wrapped(which: Filter, everything: bool, dry_run: bool, as_json: bool) -> None:
        if which.everything and not everything and not dry_run:
            raise click.UsageError(
                "no filter: this would touch every dead letter. Name a filter, or --all if that is meant"
            )
        with _parts() as parts:
            parts.replay.spill()
            manager = Manager(parts.store, parts.ledger)
            summary = manager.summary(which)
            if dry_run:
                _show_summary(summary, parts.settings, as_json)
                return
            with _progress(summary.total, as_json) as advance:
                done: Done = command(manager, which, advance)
        if as_json:
            emit_json({"changed": done.changed, "skipped": done.skipped, **_forecast(summary, parts.settings)})
        else:
            left = f"; {done.skipped:,} left as they are: {LEFT}" if done.skipped else ""
            click.echo(f"{many(done.changed, 'dead letter')} {CHANGED[command.__name__]}{left}.")

    for option in (
        click.option("--all", "everything", is_flag=True, help="Without any filter: all of them."),
        click.option("--dry-run", is_flag=True, help="Change nothing; count, and say when the last would go."),
        click.option("--json", "as_json", is_flag=True, help="Print one JSON object."),
    ):
        wrapped = option(wrapped)
    return _filtered(wrapped)


@click.group(
    epilog=example(
        "notifier dead-letters list --state parked",
        "notifier dead-letters replay --reason delivery_failed --since 2h --dry-run",
    )
)
def command() -> None:
    """List, replay, park, drop and export what waits."""


@command.command("list", epilog=example("notifier dead-letters list --user 42", "notifier dead-letters list --json"))
@_filtered
@click.option("--limit", type=click.IntRange(1, 100_000), default=50, show_default=True, help="Rows shown at most.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object: total, rows.")
def list_rows(which: Filter, limit: int, as_json: bool) -> None:
    """Show dead letters, without their payloads: what is due first comes first, what is parked last."""
    with _parts() as parts:
        manager = Manager(parts.store, parts.ledger)
        rows = manager.soonest(which, limit)
        total = len(rows) if len(rows) < limit else manager.summary(which).total
        deferred = parts.ledger.counts().deferred
    if as_json:
        emit_json({"total": total, "rows": [_described(row) for row in rows]})
        return
    if rows:
        for line in aligned(HEADERS, map(_cells, rows)):
            click.echo(line)
    hidden = f", {total - len(rows):,} of them not shown (--limit)" if total > len(rows) else ""
    click.echo(f"{many(total, 'dead letter')}{hidden}; {deferred:,} more on their way into the table.")


@command.command(
    epilog=example("notifier dead-letters show 42 like-7", "notifier dead-letters show 42 like-7 --payload")
)
@click.argument("user_id")
@click.argument("notification_id")
@click.option("--channel", default="websocket", show_default=True, help="Its channel.")
@click.option("--payload", is_flag=True, help="Show the payload too.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def show(user_id: str, notification_id: str, channel: str, payload: bool, as_json: bool) -> None:
    """Show one dead letter."""
    identity = clean_identity(user_id, channel, notification_id)
    which = Filter(**identity._asdict())
    with _parts() as parts:
        rows = next(Manager(parts.store, parts.ledger).pages(which, bodies=payload, size=1), [])
    if not rows:
        raise click.ClickException(
            f"no dead letter {notification_id!r} of {user_id!r} on {channel}; `notifier why` tells what became of it"
        )
    described = _described(rows[0])
    if payload:
        described["payload"] = json.loads(rows[0].body)
    if as_json:
        emit_json(described)
        return
    width = max(map(len, described))
    for name, value in described.items():
        click.echo(f"{name:{width}}  {json.dumps(value) if name == 'payload' else '' if value is None else value}")


@command.command(epilog=example("notifier dead-letters replay --reason delivery_failed --since 2h"))
@_changes
def replay(manager: Manager, which: Filter, advance: Callable[[int], None]) -> Done:
    """Send rows again now, at the pace of the limits. Parked ones too; scheduled ones only with --reason scheduled."""
    return manager.send_again(which, advance)


@command.command(epilog=example("notifier dead-letters park --category campaign --all"))
@_changes
def park(manager: Manager, which: Filter, advance: Callable[[int], None]) -> Done:
    """Hold rows back until you replay or drop them."""
    return manager.park(which, advance)


@command.command(epilog=example("notifier dead-letters drop --category campaign --dry-run"))
@_changes
def drop(manager: Manager, which: Filter, advance: Callable[[int], None]) -> Done:
    """End rows as dropped. They are gone for good."""
    return manager.drop(which, advance)


@command.command(epilog=example("notifier dead-letters export --state parked > parked.jsonl"))
@_filtered
@click.option("--payload", is_flag=True, help="With payloads.")
def export(which: Filter, payload: bool) -> None:
    """Print all rows as JSON, one a line."""
    with _parts() as parts:
        for row in chain.from_iterable(Manager(parts.store, parts.ledger).pages(which, bodies=payload)):
            described = _described(row)
            if payload:
                described["payload"] = json.loads(row.body)
            emit_json(described)


HEADERS = ("due (UTC)", "user", "channel", "id", "state", "reason", "tries", "error")


def _cells(row: Row) -> tuple[str, ...]:
    due = "" if row.state == State.PARKED else f"{instant(row.retry_at_us):%Y-%m-%d %H:%M:%S}"
    return (
        due,
        row.user_id,
        row.channel,
        row.notification_id,
        row.state,
        row.reason,
        str(row.attempts),
        row.last_error,
    )


@contextmanager
def _parts() -> Iterator[Runtime]:
    parts = Runtime(Settings())
    try:
        yield parts
    finally:
        parts.close()


def _described(row: Row) -> dict[str, Any]:
    return {
        "user_id": row.user_id,
        "channel": row.channel,
        "notification_id": row.notification_id,
        "seq": row.seq,
        "category": row.category,
        "priority": row.priority,
        "collapse_key": row.collapse_key or None,
        "state": row.state,
        "reason": row.reason,
        "retry_at": _iso(row.retry_at_us),
        "expires_at": _iso(row.expires_us),
        "accepted_at": _iso(row.accepted_us),
        "attempts": row.attempts,
        "starts": row.starts,
        "last_error": row.last_error or None,
    }


def _iso(us: int) -> str | None:
    return instant(us).isoformat() if us else None


def _forecast(summary: Summary, settings: Settings) -> dict[str, Any]:
    seconds = forecast_s(summary.backlogs, settings)
    return {"last_in_s": None if math.isinf(seconds) else round(seconds, 1)}


def _show_summary(summary: Summary, settings: Settings, as_json: bool) -> None:
    rows = [{"state": s, "reason": r, "rows": n} for (s, r), n in sorted(summary.rows.items())]
    forecast = _forecast(summary, settings)
    if as_json:
        emit_json({"total": summary.total, "users": summary.users, "rows": rows, **forecast})
        return
    table = plain_table("state", "reason", "rows")
    for row in rows:
        table.add_row(str(row["state"]), str(row["reason"]), f"{row['rows']:,}")
    if rows:
        console().print(table)
    click.echo(f"{many(summary.total, 'dead letter')} of {many(summary.users, 'user')}; nothing was changed.")
    if summary.backlogs:
        seconds = forecast["last_in_s"]
        when = "never" if seconds is None else f"in about {_span(seconds)}"
        click.echo(f"Under the present limits the last of those that wait would go {when}, if nothing else came.")


def _span(seconds: float) -> str:
    for unit, length_s in (("days", 86_400), ("hours", 3_600), ("minutes", 60)):
        if seconds >= 2 * length_s:
            return f"{seconds / length_s:.1f} {unit}"
    return f"{math.ceil(seconds)} s"


@contextmanager
def _progress(total: int, quiet: bool) -> Iterator[Callable[[int], None]]:
    """A bar on a terminal, nothing elsewhere."""
    out = console(stderr=True)
    columns = (TextColumn("dead letters"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=out, transient=True, disable=quiet or not out.is_terminal) as bar:
        task = bar.add_task("", total=total)
        yield lambda rows: bar.advance(task, rows)
