"""What to do where a server cannot be reached: one sentence, the same for every command."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

import click
from redis.exceptions import RedisError

from notifier.errors import (
    DatabaseUnavailable,
    LimiterUnavailable,
    NotAccepted,
    NotifierError,
    StateUnavailable,
    Unavailable,
)
from notifier.redis.client import connect, place
from notifier.settings import Settings

TIMEOUT_S = 1.0
VARIABLE = {
    "broker": "NOTIFIER_BROKER_URL",
    "state": "NOTIFIER_REDIS_URL",
    "limiter": "NOTIFIER_LIMITER_REDIS_URL",
    "database": "NOTIFIER_DATABASE_URL",
}
_MISSED: list[tuple[type[NotifierError], tuple[str, ...]]] = [
    (StateUnavailable, ("state",)),
    (LimiterUnavailable, ("limiter",)),
    (DatabaseUnavailable, ("database",)),
    (NotAccepted, ("state", "broker")),
]


def way_out(*servers: str) -> str:
    """What to do where these (keys of VARIABLE) cannot be reached."""
    return f"start `notifier up` in this directory, or set {', '.join(VARIABLE[server] for server in servers)}"


def way_out_of(error: NotifierError) -> str:
    """The same for an error; "" where it is no server's, or names a way out itself."""
    if "run `notifier" in str(error):
        return ""
    return next((way_out(*servers) for kind, servers in _MISSED if isinstance(error, kind)), "")


def reach_redis(name: str, url: str) -> None:
    """Ping it, and let go. Raises Unavailable, which says where it was looked for."""
    with contextlib.closing(connect(url, TIMEOUT_S)) as client:
        try:
            client.ping()
        except RedisError as error:
            where = place(client.connection_pool.connection_kwargs)
            raise Unavailable(f"{name} at {where} cannot be used ({type(error).__name__})") from None


def reach_broker(url: str) -> None:
    """Connect, and let go. Raises Unavailable, which says where it was looked for."""
    if url.startswith(("redis://", "rediss://")):
        reach_redis("the broker", url)
        return
    from kombu import Connection

    from notifier.redis.broker import tls

    with Connection(url, connect_timeout=TIMEOUT_S, heartbeat=0, ssl=tls(url) or False) as connection:
        try:
            connection.connect()
        except Exception as error:  # what a transport raises is its own affair
            where = f"{connection.hostname or 'localhost'}:{connection.port or 5672}"
            raise Unavailable(f"the broker at {where} cannot be used ({type(error).__name__})") from None


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

    checks: dict[str, tuple[str, Callable[[], object]]] = {
        "broker": ("broker_url", lambda: reach_broker(settings.broker_url)),
        "state": ("redis_url", lambda: reach_redis("state Redis", settings.redis_url)),
        "limiter": ("limiter_redis_url", lambda: reach_redis("limiter Redis", settings.limiter_url)),
        "database": ("database_url", lambda: current(settings.database_url)),
    }
    for server, (field, check) in checks.items():
        if field in settings.model_fields_set:
            try:
                check()
            except Unavailable as error:
                raise Unavailable(f"{error}; {VARIABLE[server]} names it: unset it to have one started here") from None
