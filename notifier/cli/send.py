"""`notifier send`: one notification from the shell, or many at once."""

from __future__ import annotations

import contextlib
import json
import logging
import sys
from collections.abc import Iterator
from datetime import datetime
from functools import partial
from logging.handlers import MemoryHandler
from typing import Any

import click

from notifier.cli.output import emit_json, example
from notifier.errors import InvalidNotification
from notifier.notification import Notification, Priority

MOST = 100_000
REMARKS = {
    "duplicate": "this id is known: it is delivered once\n",
    "dropped": "dropped: too many of this user wait (NOTIFIER_MAX_WAITING)\n",
}


@click.command(
    epilog=example(
        """notifier send 42 '{"text": "hello"}'""",
        """notifier send 42 '"A new login from Oslo"' --category security --priority critical""",
        """notifier send 42 '{"text": "good morning"}' --not-before 2027-01-01T08:00:00+01:00 --ttl 3600""",
        """notifier send 42 '{"text": "a burst"}' --count 30""",
    )
)
@click.argument("user")
@click.argument("payload", metavar="JSON")
@click.option("--channel", default="websocket", show_default=True, help="How it reaches the user.")
@click.option("--category", default="default", show_default=True, help="For limits and preferences.")
@click.option(
    "--id", "--notification-id", "notification_id", help="An id of your own: sent again, it is delivered once."
)
@click.option("--priority", type=click.Choice([str(p) for p in Priority]), default="normal", show_default=True)
@click.option("--ttl", type=float, metavar="SECONDS", help="Not worth delivering after so long.")
@click.option("--collapse-key", help="What waits with the same key goes out as one digest.")
@click.option("--not-before", metavar="TIME", help="ISO 8601 with a time zone.")
@click.option(
    "--count",
    type=click.IntRange(1, MOST),
    default=1,
    show_default=True,
    help="Send so many at once, each with an id of its own; of --id x: x-1, x-2, ...",
)
@click.option(
    "--json", "as_json", is_flag=True, help="One JSON object: notification_id; with --count: notification_ids, became."
)
def command(
    user: str,
    payload: str,
    not_before: str | None,
    count: int,
    notification_id: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Send USER a notification with JSON as its payload ('-' reads it from stdin).

    Prints the notification's id once it is accepted; with --count, what became of how many: `queued` goes to a worker
    at once, `deferred` waits for its time, `duplicate` was known by its id, `dropped` finds too many of USER waiting.
    """
    value, moment = _payload(payload), _moment(not_before)
    make = partial(Notification.create, user, value, not_before=moment, **options)
    ids = [notification_id] if count == 1 else [notification_id and f"{notification_id}-{n + 1}" for n in range(count)]
    notifications = [make(notification_id=given) for given in ids]
    from notifier.producer import notify_many  # loads Celery

    with _calm():
        became = notify_many(notifications)
    accepted = [n.notification_id for n in notifications]
    if as_json:
        emit_json({"notification_id": accepted[0]} if count == 1 else {"notification_ids": accepted, "became": became})
    elif count > 1:
        click.echo(", ".join(f"{status} {number:,}" for status, number in became.items()))
    else:
        click.echo(accepted[0])
        click.echo("".join(REMARKS.get(status, "") for status in became), err=True, nl=False)


@contextlib.contextmanager
def _calm() -> Iterator[None]:
    """What was degraded is said if it was sent all the same; else the error says it all."""
    log, kept = logging.getLogger("notifier"), MemoryHandler(1_000, flushLevel=logging.CRITICAL + 1, flushOnClose=False)
    log.addHandler(kept)
    log.propagate = False
    try:
        yield
        kept.setTarget(logging.StreamHandler())
        kept.flush()
    finally:
        log.removeHandler(kept)
        log.propagate = True


def _payload(text: str) -> Any:
    """The JSON value. Raises InvalidNotification; the text itself is not shown, it may be private."""
    try:
        return json.loads(_input() if text == "-" else text)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise InvalidNotification(
            "payload", f"is not JSON ({error.msg}, {where}); a bare string needs its quotes: '\"hello\"'"
        ) from None
    except (ValueError, RecursionError):
        raise InvalidNotification("payload", "is not JSON that can be read: a number too long, or too deep") from None


def _input() -> str:
    if sys.stdin is None:  # closed
        raise InvalidNotification("payload", "is to come from standard input, which is closed")
    return sys.stdin.read()


def _moment(text: str | None) -> datetime | None:
    try:
        return None if text is None else datetime.fromisoformat(text)
    except ValueError:
        raise InvalidNotification("not_before", "is no time; write e.g. 2027-01-01T08:00:00+01:00") from None
