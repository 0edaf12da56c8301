"""`notifier up`: everything on this machine."""

from __future__ import annotations

import logging
import secrets
import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from notifier import logs
from notifier.cli.output import example
from notifier.cli.signals import Asked, asked_by_signals, undisturbed

if TYPE_CHECKING:
    from notifier.lab.servers import Servers
    from notifier.lab.stack import Stack
    from notifier.settings import Settings

_log = logging.getLogger("notifier.up")
TEND_S = 0.2
LIVE_USER, LIVE_S = "you", 86_400.0  # whose feed the printed link shows, and for how long


@click.command(
    epilog=example(
        "notifier up",
        "notifier up --fresh",
        "NOTIFIER_DATABASE_URL=postgresql://me@db/notifier notifier up --workers 2",
    )
)
@click.option("--workers", type=click.IntRange(1, 64), default=1, show_default=True, help="Celery workers.")
@click.option("--concurrency", type=click.IntRange(1, 256), default=2, show_default=True, help="Processes of each.")
@click.option(
    "--fresh", is_flag=True, help="Delete what earlier runs stored here, PostgreSQL's part too, and begin anew."
)
def command(workers: int, concurrency: int, fresh: bool) -> None:
    """Run everything on this machine until Ctrl-C: servers, migrations, workers, beat, the gateway and its live page.

    Servers named in the settings (NOTIFIER_REDIS_URL, NOTIFIER_BROKER_URL, NOTIFIER_LIMITER_REDIS_URL,
    NOTIFIER_DATABASE_URL) are used; the others are started here, and keep their data in NOTIFIER_DATA_DIR
    (.notifier) between runs; root's PostgreSQL keeps it in a system directory, which is printed. Other `notifier`
    commands in this directory find them by themselves. A process that dies is started again.
    """
    from notifier.cli.away import check_named
    from notifier.lab import runfile
    from notifier.lab.servers import Servers, forget
    from notifier.settings import Settings

    with asked_by_signals() as asked, runfile.only_one():
        settings = Settings()
        if settings.log_format == "json":
            logs.setup("json", stream=sys.stdout)
        check_named(settings)
        if fresh:
            for place in forget(settings.data_dir.absolute()):
                _step(f"deleted {place}")
        servers = Servers()
        try:
            _run(settings, servers, workers, concurrency, asked)
        except KeyboardInterrupt:
            pass
        finally:
            with undisturbed():
                servers.stop()
    _say("stopped; nothing is left running")


def _run(settings: Settings, servers: Servers, workers: int, concurrency: int, asked: Asked) -> None:
    """Start it all and watch it until a signal comes. Ends with KeyboardInterrupt, or with what went wrong."""
    from notifier.deadletters.migrate import upgrade
    from notifier.gateway.auth import secret_of
    from notifier.lab import runfile
    from notifier.lab.stack import Stack
    from notifier.settings import Settings, raw_values

    began_s = time.monotonic()
    settings = _with_secret(settings)

    def step(text: str) -> None:
        asked.check()
        _step(text)

    servers.start(settings, say=step)
    step("migrations")
    upgrade(Settings(database_url=servers.urls["NOTIFIER_DATABASE_URL"]).database_url)

    port = _gateway_port(settings)
    shared = servers.urls | {"NOTIFIER_SECRET": secret_of(settings), "NOTIFIER_GATEWAY_PORT": str(port)}
    metrics = _emptied(settings.data_dir.absolute() / "metrics")
    stack = Stack(
        raw_values() | shared | {"NOTIFIER_LIVE_PAGE": "true", "PROMETHEUS_MULTIPROC_DIR": str(metrics)},
        settings.data_dir / "log",
        workers=workers,
        concurrency=concurrency,
        gateway_port=port,
    )
    try:
        step(", ".join(stack.members))
        stack.start(while_waiting=asked.check)
        runfile.write(shared)
        _tell(settings, servers, stack, time.monotonic() - began_s)
        while True:
            asked.check()
            servers.tend(_step)
            stack.tend(_step)
            time.sleep(TEND_S)
    finally:
        with undisturbed():
            _say("stopping", before="\n")
            stack.stop()


def _step(text: str) -> None:
    _say(text, before="  ")


def _say(text: str, before: str = "") -> None:
    """To a person, or as a line of the log where that is JSON."""
    if logs.is_json():
        _log.info(text)
    else:
        click.echo(before + text)


def _with_secret(settings: Settings) -> Settings:
    """With a secret for this run where none is named. Raises SettingsError where one is named, and too short."""
    from pydantic import SecretStr

    from notifier.gateway.auth import secret_of

    if settings.secret is None:
        return settings.model_copy(update={"secret": SecretStr(secrets.token_urlsafe(48))})
    secret_of(settings)
    return settings


def _emptied(directory: Path) -> Path:
    """A directory without what processes of an earlier run counted there. What else lies in it is somebody's."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    for kind in ("counter", "gauge", "histogram", "summary"):
        for file in directory.glob(f"{kind}_*.db"):  # as prometheus_client names them
            file.unlink()
    return directory


def _gateway_port(settings: Settings) -> int:
    """The port of the settings; another one where that is only the default, and taken."""
    import socket

    from notifier.embedded.process import free_port
    from notifier.errors import SettingsError

    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", settings.gateway_port))
        except OSError as error:
            if "gateway_port" in settings.model_fields_set:
                problem = f"port {settings.gateway_port} cannot be used ({error.strerror}); name another"
                raise SettingsError(f"NOTIFIER_GATEWAY_PORT: {problem}") from None
            return free_port()
    return settings.gateway_port or free_port()


def _tell(settings: Settings, servers: Servers, stack: Stack, took_s: float) -> None:
    from notifier.gateway.auth import token_for
    from notifier.settings import RUN_ENV

    if logs.is_json():  # without the link: a log is no place for a token
        _log.info("ready after %.1f s; the gateway is at %s", took_s, stack.gateway_url)
        return
    token = token_for(settings, LIVE_USER, LIVE_S, live=True)  # in the fragment: browsers send that to no server

    data = [settings.data_dir.absolute()] if servers.started else []
    data += [place for place in servers.places() if not place.is_relative_to(settings.data_dir.absolute())]
    click.echo(f"\nready after {took_s:.1f} s. Ctrl-C stops everything.\n")
    for name, text in (
        ("live page", f"{stack.gateway_url}/#token={token}"),
        ("send", f"""notifier send {LIVE_USER} '{{"text": "hello"}}'"""),
        ("watch", f"notifier listen {LIVE_USER}   notifier feed {LIVE_USER}   notifier status"),
        ("your app", f"finds it when it runs in {Path.cwd()}; elsewhere first:"),
        ("", f"set -a; . {shlex.quote(str(RUN_ENV.absolute()))}; set +a"),
        *(("data" if place == data[0] else "", f"{place}") for place in data),
        ("logs", f"{(settings.data_dir / 'log').absolute()}"),
    ):
        click.echo(f"  {name:<10} {text}")
    click.echo()
