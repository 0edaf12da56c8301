"""notifier migrate."""

from __future__ import annotations

import click

from notifier.cli.output import emit_json, example
from notifier.deadletters import migrate
from notifier.settings import Settings


@click.command(epilog=example("notifier migrate", "notifier migrate --check --json"))
@click.option("--to", "revision", metavar="REVISION", help="Go back to this revision; base drops all dead letters.")
@click.option("--check", is_flag=True, help="Change nothing; exit 1 if the schema is not the one this version needs.")
@click.option("--yes", is_flag=True, help="Go back without being asked.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(revision: str | None, check: bool, yes: bool, as_json: bool) -> None:
    """Bring the database's schema up to date.

    Safe to run again, and by several processes at once. NOTIFIER_DATABASE_URL names the database.
    """
    database_url = Settings().database_url
    if check:
        _check(database_url, as_json)
        return
    if revision is None:
        moved = migrate.upgrade(database_url)
    else:
        if not yes:
            click.confirm(f"Going back to {revision} may lose dead letters for good. Go on?", abort=True, err=as_json)
        moved = migrate.downgrade(database_url, revision)
    if as_json:
        emit_json({"before": moved.before, "after": moved.after, "head": migrate.head()})
    elif moved.before == moved.after:
        click.echo(f"Nothing to do: the schema is at {moved.after or 'base'}.")
    else:
        click.echo(f"The schema went from {moved.before or 'base'} to {moved.after or 'base'}.")


def _check(database_url: str, as_json: bool) -> None:
    current, head = migrate.current(database_url), migrate.head()
    if as_json:
        emit_json({"current": current, "head": head, "up_to_date": current == head})
    elif current == head:
        click.echo(f"The schema is at {head}, as it should be.")
    else:
        click.echo(
            f"The schema is at {current or 'base'}, this version needs {head}: run `notifier migrate`.", err=True
        )
    if current != head:
        raise SystemExit(1)
