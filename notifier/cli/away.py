"""What to do where a server cannot be reached: one sentence, the same for every command."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import click

from notifier.errors import (
    DatabaseUnavailable,
    LimiterUnavailable,
    NotAccepted,
    NotifierError,
    StateUnavailable,
    Unavailable,
)
from notifier.redis.reach import reach_broker, reach_redis
from notifier.settings import FIELD_OF, Settings, variable

_MISSED: list[tuple[type[NotifierError], tuple[str, ...]]] = [
    (StateUnavailable, ("state",)),
    (LimiterUnavailable, ("limiter",)),
    (DatabaseUnavailable, ("database",)),
    (NotAccepted, ("state", "broker")),
]


def way_out(*servers: str) -> str:
    """What to do where these (keys of FIELD_OF) cannot be reached."""
    names = (variable(FIELD_OF[server]) for server in servers)
    return f"start `notifier up` in this directory, or set {', '.join(names)}"


def way_out_of(error: NotifierError) -> str:
    """The same for an error; "" where it is no server's, or names a way out itself."""
    if "run `notifier" in str(error):
        return ""
    return next((way_out(*servers) for kind, servers in _MISSED if isinstance(error, kind)), "")


def say_if_broker_is_away(what: str, arguments: Sequence[str]) -> None:
    """One line before those of Celery, which name no setting. It tries on all the same."""
    if any(word.startswith(("-b", "--broker", "--help")) for word in arguments):
        return
    try:
        reach_broker(Settings().broker_url)
    except Unavailable as error:
        click.echo(f"{error}; {what} keeps trying; {way_out('broker')}", err=True)


def check_named(settings: Settings) -> None:
    """For those who start what is not named. Raises Unavailable for a server that is named and away.

    A shell may still hold what an earlier run wrote into its run.env.
    """
    from notifier.deadletters.migrate import current

    checks: dict[str, Callable[[], object]] = {
        "broker": lambda: reach_broker(settings.broker_url),
        "state": lambda: reach_redis("state Redis", settings.redis_url),
        "limiter": lambda: reach_redis("limiter Redis", settings.limiter_url),
        "database": lambda: current(settings.database_url),
    }
    for server, check in checks.items():
        if (field := FIELD_OF[server]) in settings.model_fields_set:
            try:
                check()
            except Unavailable as error:
                raise Unavailable(f"{error}; {variable(field)} names it: unset it to have one started here") from None
