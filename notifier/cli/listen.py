"""`notifier listen`: what a user's page would get, in the terminal."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from datetime import datetime
from typing import Any
from urllib.parse import quote

import click

from notifier.cli.output import example
from notifier.errors import NotifierError, Unavailable
from notifier.notification import clean_user_id

TOKEN_S = 3_600.0
WAY_OUT = "Does `notifier up` run in this directory, or `notifier gateway`? --url names another one."
PAUSE_S = (0.1, 5.0)  # between attempts to connect: at first, at most


@click.command(
    epilog=example("notifier listen 42", "notifier listen 42 --json --count 10", "notifier listen 42 --last-id 0-0")
)
@click.argument("user")
@click.option("--url", help="The gateway [default: ws://127.0.0.1:8000, from NOTIFIER_GATEWAY_HOST and _PORT].")
@click.option("--last-id", help="Go on after this frame; without it the whole feed comes first.")
@click.option("--count", type=click.IntRange(1), help="End after so many frames.")
@click.option("--json", "as_json", is_flag=True, help="One frame a line, as it came.")
def command(user: str, url: str | None, last_id: str | None, count: int | None, as_json: bool) -> None:
    """Connect to the gateway as USER and print each notification as it arrives, until Ctrl-C.

    Reconnects when the connection is lost, and misses nothing. Makes its own token from NOTIFIER_SECRET.
    """
    from notifier.gateway.auth import token_for
    from notifier.settings import Settings

    settings = Settings()
    user_id = clean_user_id(user)
    token_for(settings, user_id, TOKEN_S)  # a missing secret is said before anything else
    messages = follow(url or f"ws://{settings.gateway_here}", lambda: token_for(settings, user_id, TOKEN_S), last_id)
    left = count
    for text in messages:
        message = json.loads(text)
        if "type" in message:
            _remark(message)
            continue
        click.echo(text if as_json else _line(message))
        if left is not None and (left := left - 1) == 0:
            return


def follow(base: str, token: Any, last_id: str | None) -> Iterator[str]:
    """Every message, over as many connections as it takes. Raises NotifierError where connecting again is no use."""
    from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, InvalidURI
    from websockets.sync.client import connect

    pause_s, said = PAUSE_S[0], False
    while True:
        query = f"?last_id={quote(last_id)}" if last_id else ""
        try:
            with connect(
                f"{base.rstrip('/')}/ws{query}",
                additional_headers={"Authorization": f"Bearer {token()}"},
                max_size=None,
                proxy=None,
            ) as connection:
                pause_s, said = PAUSE_S[0], False
                for text in connection:
                    message = json.loads(text)
                    last_id = message.get("id") or message.get("last_id") or last_id
                    yield str(text)
        except InvalidStatus as error:
            if error.response.status_code < 500:
                raise NotifierError(_refusal(error.response.body, error.response.status_code)) from None
        except InvalidURI:
            raise Unavailable(f"{base} is not the address of a gateway; it looks like ws://host:8000") from None
        except (ConnectionClosed, InvalidHandshake, OSError):
            pass
        if not said:
            click.echo(f"no connection to the gateway at {base}; trying on. {WAY_OUT}", err=True)
            said = True
        time.sleep(pause_s * random.uniform(0.5, 1))  # noqa: S311
        pause_s = min(2 * pause_s, PAUSE_S[1])


def _refusal(body: bytes | bytearray | None, status: int) -> str:
    try:
        return f"the gateway refused: {json.loads(body or b'')['message']}"
    except (ValueError, KeyError, TypeError):
        return f"the gateway refused with HTTP {status}"


def _remark(message: dict[str, Any]) -> None:
    if message["type"] == "gap":
        click.echo("some notifications were missed: the feed no longer keeps them", err=True)


def _line(frame: dict[str, Any]) -> str:
    granted = datetime.fromtimestamp(frame["granted_at"]).astimezone()
    return f"{granted:%H:%M:%S}  #{frame['seq']}  {frame['category']}  {json.dumps(frame['payload'])}"
