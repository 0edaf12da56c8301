"""`notifier beat`: Celery beat with our app."""

from __future__ import annotations

import click

from notifier.cli.output import example
from notifier.cli.worker import PASS_THROUGH


@click.command(
    context_settings=PASS_THROUGH,
    epilog=example("notifier beat", "notifier beat --loglevel WARNING", "notifier beat -- --help"),
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[CELERY OPTIONS]...")
def command(arguments: tuple[str, ...]) -> None:
    """Run Celery beat: the replay of dead letters and the sweep, every second.

    Takes all options of `celery beat`. Run one; two do no harm. It keeps no file.
    """
    from notifier.cli import away, celery_app  # celery is slow to import

    away.say_if_broker_is_away("beat", arguments)

    celery_app.run("beat", ("--loglevel", "INFO", *arguments))
