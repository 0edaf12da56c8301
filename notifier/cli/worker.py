"""`notifier worker`: a Celery worker with our app."""

from __future__ import annotations

import click

from notifier.cli.output import example

PASS_THROUGH = {"ignore_unknown_options": True, "help_option_names": ["--help"]}


@click.command(
    context_settings=PASS_THROUGH,
    epilog=example("notifier worker", "notifier worker --concurrency 4", "notifier worker -- --help"),
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[CELERY OPTIONS]...")
def command(arguments: tuple[str, ...]) -> None:
    """Run a Celery worker for Notifier's queues.

    Takes all options of `celery worker`. The same as `celery -A tasks worker`, but a tasks.py of your own in the
    working directory does not get in its way.
    """
    _share_metrics()
    from notifier.cli import away, celery_app  # celery is slow to import
    from notifier.resources import shadow

    away.say_if_broker_is_away("the worker", arguments)
    if found := shadow():
        click.echo(f"{found} is not what runs here: this worker takes Notifier's queues and no others.", err=True)

    celery_app.run("worker", ("--loglevel", "INFO", *arguments))


def _share_metrics() -> None:
    """A worker that is to serve /metrics needs a directory in which its pool processes tell it what they counted."""
    import atexit
    import os
    import shutil
    import tempfile

    from notifier.settings import Settings

    variable = "PROMETHEUS_MULTIPROC_DIR"  # read once, when prometheus_client is imported: so it is not imported here
    if Settings().metrics_port and variable not in os.environ:
        memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # noqa: S108  a busy disk would hold up work
        os.environ[variable] = tempfile.mkdtemp(prefix="notifier-metrics-", dir=memory)
        atexit.register(shutil.rmtree, os.environ[variable], ignore_errors=True)
