"""`notifier send`: one notification from the shell."""

from __future__ import annotations

import json
import sys
from datetime import datetime
from typing import Any

import click

from notifier.cli.output import emit_json, example
from notifier.errors import InvalidNotification
from notifier.notification import Priority


@click.command(
    epilog=example(
        """notifier send 42 '{"text": "hello"}'""",
        """notifier send 42 '"A new login from Oslo"' --category security --priority critical""",
        """notifier send 42 '{"text": "good morning"}' --not-before 2027-01-01T08:00:00+01:00 --ttl 3600""",
    )
)
@click.argument("user")
@click.argument("payload", metavar="JSON")
@click.option("--channel", default="websocket", show_default=True, help="How it reaches the user.")
@click.option("--category", default="default", show_default=True, help="For limits and preferences.")
@click.option("--notification-id", help="An id of your own: sent again with it, it is delivered once.")
@click.option("--priority", type=click.Choice([str(p) for p in Priority]), default="normal", show_default=True)
@click.option("--ttl", type=float, metavar="SECONDS", help="Not worth delivering after so long.")
@click.option("--collapse-key", help="What waits with the same key goes out as one digest.")
@click.option("--not-before", metavar="TIME", help="ISO 8601 with a time zone.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object: notification_id.")
def command(user: str, payload: str, not_before: str | None, as_json: bool, **options: Any) -> None:
    """Send USER a notification with JSON as its payload ('-' reads it from stdin).

    Prints the notification's id once it is accepted.
    """
    value, moment = _payload(payload), _moment(not_before)
    from notifier.producer import notify  # loads Celery

    notification_id = notify(user, value, not_before=moment, **options)
    if as_json:
        emit_json({"notification_id": notification_id})
    else:
        click.echo(notification_id)


def _payload(text: str) -> Any:
    """The JSON value. Raises InvalidNotification; the text itself is not shown, it may be private."""
    try:
        return json.loads(sys.stdin.read() if text == "-" else text)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise InvalidNotification(
            "payload", f"is not JSON ({error.msg}, {where}); a bare string needs its quotes: '\"hello\"'"
        ) from None
    except (ValueError, RecursionError):
        raise InvalidNotification("payload", "is not JSON that can be read: a number too long, or too deep") from None


def _moment(text: str | None) -> datetime | None:
    try:
        return None if text is None else datetime.fromisoformat(text)
    except ValueError:
        raise InvalidNotification("not_before", "is no time; write e.g. 2027-01-01T08:00:00+01:00") from None
