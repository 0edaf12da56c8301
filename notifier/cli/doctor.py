"""`notifier doctor`: what is wrong with this installation, why it matters, and how to mend it."""

from __future__ import annotations

import shutil
import sys
import textwrap
import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from notifier.cli.output import emit_json, example, many
from notifier.errors import NotifierError, SettingsError
from notifier.settings import Settings

if TYPE_CHECKING:
    from notifier.doctor.examine import Named
    from notifier.doctor.finding import Finding

COLOUR = {"ok": "green", "warning": "yellow", "problem": "red"}
NARROWEST, WIDEST = 60, 160


@click.command(
    epilog=example(
        "notifier doctor",
        "notifier doctor --app shop.celery --gateway https://push.example.com",
        "notifier doctor --json | python3 -m json.tool",
    )
)
@click.option("-A", "--app", "team", metavar="MODULE", help="A Celery app of your own, to be looked at too.")
@click.option("--gateway", metavar="URL", help="Where it is [default: as NOTIFIER_GATEWAY_HOST or _PORT says].")
@click.option("--canary/--no-canary", default=True, help="Send a harmless message through each queue [default: yes].")
@click.option("--json", "as_json", is_flag=True, help="One JSON object: ok, problems, warnings, findings.")
def command(team: str | None, gateway: str | None, canary: bool, as_json: bool) -> None:
    """Look for what is wrong, why it matters, and how to mend it.

    Looks at servers, schema, clocks, beat, workers, settings and packages, from the machine it runs on; changes
    nothing and leaves nothing behind. Takes 15 s at most. Exit code 1 if there is a problem; warnings do not count.
    """
    from notifier.doctor.examine import examine

    if gateway is not None and not gateway.startswith(("http://", "https://")):
        raise click.BadParameter("must begin with http:// or https://", param_hint="--gateway")
    began_s = time.monotonic()
    found, checks, tick = _prepared(team, gateway, canary)
    found += examine(checks, tick)
    problems = [finding for finding in found if finding.level == "problem"]
    warnings = [finding for finding in found if finding.level == "warning"]
    if as_json:
        counts = {"ok": not problems, "problems": len(problems), "warnings": len(warnings)}
        emit_json(counts | {"findings": [finding._asdict() for finding in found]})
    else:
        for line in render(found):
            click.echo(line)
        counted = f"{many(len(problems), 'problem')}, {many(len(warnings), 'warning')}"
        click.echo(f"\n{counted}, {len(found) - len(problems) - len(warnings)} ok ({time.monotonic() - began_s:.1f} s)")
    sys.exit(1 if problems else 0)


def _prepared(team: str | None, gateway: str | None, with_canary: bool) -> tuple[list[Finding], list[Named], Any]:
    """What is found before any server is asked, the checks that ask, and what is to be called meanwhile."""
    from notifier.doctor import celery_app, clocks, postgres, redis_servers, surroundings, workers
    from notifier.doctor.examine import Named
    from notifier.doctor.finding import problem

    found = [*surroundings.variables(), *surroundings.tasks_module(), *surroundings.packages()]
    try:
        settings = Settings()
    except SettingsError as error:
        why = "no process starts with it; nothing else can be looked at"
        mend = "`notifier config` lists what each may be"
        return (
            [*found, *(problem("settings.values", line, why, mend) for line in str(error).splitlines())],
            [],
            _nothing,
        )
    ours, theirs = _apps(team, found)
    checks = [
        Named("state", partial(redis_servers.server, redis_servers.STATE, settings.redis_url)),
        Named("limiter", partial(redis_servers.server, redis_servers.LIMITER, settings.limiter_url)),
        Named("broker", partial(_broker, settings.broker_url)),
        Named("database", partial(postgres.server, settings.database_url), 8.0),
        Named("clock", partial(clocks.clocks, settings)),
        Named("replay", partial(workers.replay, settings)),
    ]
    tick = _nothing
    if (app := theirs or ours) is not None:
        watched = workers.Canary(settings, app)
        if with_canary:
            checks.append(Named("workers.consume", watched.check, workers.WAIT_S + 4))
            tick = workers.progress(watched, partial(click.echo, err=True))
    if ours is not None:
        checks.append(Named("celery", partial(celery_app.celery_app, ours, settings)))
    if theirs is not None:
        checks.append(Named("app", partial(celery_app.celery_app, theirs, settings, name=team or "")))
    checks.append(Named("gateway.secret", partial(surroundings.secret, settings)))
    if url := gateway or surroundings.gateway_url(settings):
        checks.append(Named("gateway.reachable", partial(surroundings.gateway, url, asked=gateway is not None)))
    return found, checks, tick


def _nothing() -> None:
    pass


def _broker(url: str) -> Any:
    from notifier.doctor import rabbitmq, redis_servers
    from notifier.doctor.finding import warning

    if url.startswith(("redis://", "rediss://")):
        return redis_servers.server(redis_servers.BROKER, url)
    if url.startswith("memory://"):
        why = "it lives within one process: no worker hears of anything"
        return iter([warning("broker.reachable", "memory:// is for tests", why, "set NOTIFIER_BROKER_URL")])
    return rabbitmq.server(url)


def _apps(team: str | None, found: list[Finding]) -> tuple[Any, Any]:
    """Our Celery app and the team's, each ready to be asked; None, and a finding, where there is none."""
    from notifier.cli import celery_app
    from notifier.doctor.finding import problem

    try:
        ours = celery_app.load()
    except NotifierError as error:
        why = "no worker and no beat can be started here"
        found.append(problem("tasks.module", str(error), why, "install celery-notifier into an environment of its own"))
        return None, None
    try:
        return ours, _team(team) if team else None
    except Exception as error:  # whatever its module raises
        what = f"{team} cannot be loaded: {type(error).__name__}"
        mend = "run it where its workers run, with the same environment; try python -c 'import ...'"
        found.append(problem("app.load", what, "its workers do not start either", mend))
        return ours, None


def _team(name: str) -> Any:
    """As `celery -A` finds it: from this directory first."""
    from celery.app.utils import find_app

    sys.path.insert(0, "")
    try:
        app = find_app(name)
        app.loader.import_default_modules()
        app.finalize()
    finally:
        sys.path.remove("")
    return app


def render(found: Sequence[Finding]) -> list[str]:
    """For people: level, check, what; under what is not well, why and how to mend it."""
    width = max(NARROWEST, min(WIDEST, shutil.get_terminal_size((100, 24)).columns))
    level_width = max(len(finding.level) for finding in found)
    check_width = max(len(finding.check) for finding in found)
    indent = " " * (level_width + check_width + 4)
    lines = []
    for check, level, what, why, mend in found:
        head = f"{level:<{level_width}}  {check:<{check_width}}  "
        first, *rest = textwrap.wrap(what, width - len(indent), break_on_hyphens=False) or [""]
        lines.append(click.style(head[: level_width + 2], fg=COLOUR[level]) + head[level_width + 2 :] + first)
        lines += [indent + line for line in rest]
        for word, text in (("why", why), ("mend", mend)):
            wrapped = textwrap.wrap(text, width - len(indent) - 6, break_long_words=False, break_on_hyphens=False)
            lines += [f"{indent}{word if k == 0 else '':<4}  {line}" for k, line in enumerate(wrapped)]
    return lines
