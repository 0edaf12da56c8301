"""`notifier worker`: a Celery worker with our app."""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import os
import shutil
import time
from pathlib import Path

import click

from notifier.cli.output import example

PREFIX = "notifier-metrics-"
NEW_S = 60.0  # one that was made just now is not locked yet
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
    import tempfile

    from notifier.settings import Settings

    variable = "PROMETHEUS_MULTIPROC_DIR"  # read once, when prometheus_client is imported: so it is not imported here
    if Settings().metrics_port and variable not in os.environ:
        memory = os.access("/dev/shm", os.W_OK)  # noqa: S108  a busy disk would hold up work
        home = "/dev/shm" if memory else tempfile.gettempdir()  # noqa: S108
        for left in Path(home).glob(f"{PREFIX}*"):
            with contextlib.suppress(OSError):
                _remove_if_left(left)
        os.environ[variable] = place = tempfile.mkdtemp(prefix=PREFIX, dir=home)
        with contextlib.suppress(OSError):  # a file system without locks: there nobody removes anything
            fcntl.flock(os.open(place, os.O_RDONLY), fcntl.LOCK_EX)  # until this process and all it forks have ended
        atexit.register(shutil.rmtree, place, ignore_errors=True)


def _remove_if_left(place: Path) -> None:
    """What a worker that was killed could not remove. Raises OSError where it is in use, or cannot be looked at."""
    directory = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
        found = os.fstat(directory)
        counting = (file.stem.rpartition("_")[2] for file in place.glob("*.db"))  # --detach loses the lock
        if any(Path("/proc", pid).exists() for pid in counting) or found.st_uid != os.geteuid():
            return
        if time.time() - found.st_mtime > NEW_S:
            shutil.rmtree(place)
    finally:
        os.close(directory)
