"""`notifier feed`: what a user got lately, read from state Redis."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import click
from redis.exceptions import RedisError

from notifier.cli.output import console, example, plain_table
from notifier.errors import StateUnavailable
from notifier.gateway.feed import entry_of
from notifier.notification import clean_user_id
from notifier.redis import keys
from notifier.redis.client import connect, place
from notifier.settings import Settings

TIMEOUT_S = 5.0


@click.command(epilog=example("notifier feed 42", "notifier feed 42 --json | jq .payload"))
@click.argument("user")
@click.option("--json", "as_json", is_flag=True, help="One frame a line, as the gateway sends it.")
def command(user: str, as_json: bool) -> None:
    """Print USER's feed, the oldest first: the last 50 notifications unless NOTIFIER_FEED_LENGTH says otherwise."""
    frames = read(Settings(), clean_user_id(user))
    if as_json:
        for frame in frames:
            click.echo(frame)
    elif frames:
        _print([json.loads(frame) for frame in frames])
    else:
        click.echo(f"nothing in the feed of {user}", err=True)


def read(settings: Settings, user_id: str) -> list[str]:
    """The feed's frames, the oldest first. Raises StateUnavailable."""
    client = connect(settings.redis_url, TIMEOUT_S)
    try:
        found: Any = client.xrange(keys.user_key("feed", user_id, "websocket"))
    except RedisError as error:
        where = place(client.connection_pool.connection_kwargs)
        raise StateUnavailable(f"state Redis at {where} cannot be read ({type(error).__name__})") from None
    finally:
        client.close()
    return [entry_of(stream_id, fields[b"f"]).text for stream_id, fields in found]


def _print(frames: list[dict[str, Any]]) -> None:
    table = plain_table("seq", "granted", "category", "payload")
    for frame in frames:
        granted = datetime.fromtimestamp(frame["granted_at"]).astimezone()
        table.add_row(str(frame["seq"]), f"{granted:%m-%d %H:%M:%S}", frame["category"], json.dumps(frame["payload"]))
    console().print(table)
