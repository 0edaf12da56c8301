"""notifier why: the story of one notification, from ledger, done mark, feed and table."""

from __future__ import annotations

import json
import sys
from typing import Any, NamedTuple

import click

from notifier.cli.output import emit_json, example, printable
from notifier.deadletters.manage import Filter, Manager
from notifier.deadletters.schema import Row, State, instant
from notifier.errors import DatabaseUnavailable
from notifier.licence import Reason
from notifier.notification import WEBSOCKET, Identity, clean_identity
from notifier.redis.keys import done_key, identity_part, prefix_of, user_key
from notifier.redis.state import call
from notifier.runtime import Runtime
from notifier.settings import Settings
from notifier.tracing import trace_id

PLACES = {"Q": "queue", "D": "deferred", "H": "row"}
QUEUES = {"c": "critical", "n": "normal", "b": "bulk"}
REASONS = {
    "rate_limited": "a limit said no",
    "quota": "the user's quota is used up",
    "order": "an earlier one of this user waits",
    "limiter_unavailable": "the limiter's Redis was away",
    "preferences_unavailable": "nobody could say whether the user wants it",
    "scheduled": "its time has not come",
    "quiet_hours": "the user is not to be disturbed",
    "delivery_failed": "the channel did not take it",
    "breaker_open": "its channel fails altogether and is left alone for a while",
    "poison": "whoever worked on it died, again and again",
    "max_waiting": "too many of this user waited",
    "opted_out": "the user opted out of its category",
    "cancelled": "it was cancelled",
    "by_hand": "a person did it",
    "erased": "the user was erased",
    "retired": "it was parked and nobody came for it",
    "reconciled": "its end was in the tail that state Redis lost",
}


class Entry(NamedTuple):
    """What the ledger has of one that has not ended. Times in microseconds, 0 for none."""

    place: str
    parked: bool
    queue: str
    seq: int
    accepted_us: int
    expires_us: int
    starts: int
    retry_us: int
    attempts: int
    reason: str


class Mark(NamedTuple):
    """How and when it ended; `detail` is a feed entry or a reason."""

    end: str
    at_us: int
    seq: int
    detail: str


class Story(NamedTuple):
    """All that is known. `ahead`: how many of this user and channel wait before it."""

    identity: Identity
    entry: Entry | None
    mark: Mark | None
    frame: dict[str, Any] | None
    row: Row | None
    ahead: int | None
    table: str  # "ok", or why the table could not be asked


@click.command(epilog=example("notifier why 42 like-7", "notifier why 42 like-7 --json"))
@click.argument("user")
@click.argument("notification_id", metavar="ID")
@click.option("--channel", default=WEBSOCKET, show_default=True, help="Its channel.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(user: str, notification_id: str, channel: str, as_json: bool) -> None:
    """Tell the story of the notification ID of USER: where it is, what it waits for, or how it ended.

    Exit code 1 if nothing is known of it.
    """
    identity = clean_identity(user, channel, notification_id)
    runtime = Runtime(Settings())
    try:
        story = tell(runtime, identity)
    finally:
        runtime.close()
    if as_json:
        emit_json(as_object(story))
    else:
        click.echo("\n".join(map(printable, lines(story))))
    sys.exit(0 if story.entry or story.mark or story.frame or story.row else 1)


def tell(runtime: Runtime, identity: Identity) -> Story:
    """Ask state Redis, and the table if it can be asked. Raises StateUnavailable."""
    client, prefix = runtime.client, prefix_of(identity.user_id)
    found: Any = call(lambda: client.hget(f"{prefix}ledger", identity_part(identity)))
    entry = _entry(found)
    found = call(lambda: client.get(done_key(identity)))
    mark = _mark(found)
    ahead: Any = None
    if entry:
        waiting = user_key("waiting", identity.user_id, identity.channel)
        ahead = call(lambda: client.zrank(waiting, str(entry.seq)))
    entries: Any = call(lambda: client.xrevrange(user_key("feed", identity.user_id, identity.channel)))
    row, table = None, "ok"
    try:
        which = Filter(user_id=identity.user_id, channel=identity.channel, notification_id=identity.notification_id)
        row = next(iter(next(Manager(runtime.store, runtime.ledger).pages(which), [])), None)
    except DatabaseUnavailable as error:
        table = str(error)
    return Story(identity, entry, mark, _frame(entries, identity.notification_id), row, ahead, table)


def lines(story: Story) -> list[str]:
    """The story for a person, in the order in which it happened."""
    user_id, channel, notification_id = story.identity
    told = [f"{notification_id} to user {user_id} on {channel}"]
    entry, mark, row, frame = story.entry, story.mark, story.row, story.frame
    if row and not (entry or mark or row.epoch):
        told.append(f"committed   {_time(row.accepted_us)}, with the transaction that sent it; not accepted yet")
    elif accepted_us := (entry and entry.accepted_us) or (row and row.accepted_us):
        told.append(f"accepted    {_time(accepted_us)}, seq {entry.seq if entry else row.seq if row else 0}")
    elif frame:
        told.append(f"accepted    {_time(int(frame['accepted_at'] * 1e6))}, seq {frame['seq']}")
    if row and row.attempts:
        told.append(f"tried       {_times(row.attempts)}; last error: {row.last_error}")
    starts = row.starts - (channel != WEBSOCKET) if row else 0  # a call outside counts as one, however it ends
    if starts > 0:
        told.append(f"started     {_times(starts)} without an end")
    if entry:
        told += _present(story, entry)
    elif row and not mark and row.state == State.WAITING:
        why = REASONS.get(row.reason, row.reason)
        told.append(f"waits       until {_time(row.retry_at_us)}: {why}; in the table only")
    if mark:
        told.append(f"{mark.end:<11} {_time(mark.at_us)}{_detail(mark)}")
    if frame and frame["notification_id"] != notification_id:
        told.append(f"in a digest {frame['notification_id']}, feed entry {frame['id']}")
    elif frame:
        count = frame["digest"]["count"] - 1 if "digest" in frame else 0
        others = f", with {count} other{'s' * (count != 1)} as a digest" if count else ""
        told.append(f"in the feed entry {frame['id']}{others}")
    if len(told) == 1:
        told.append("unknown     never accepted, or it ended so long ago that its done mark and feed entry are gone")
    if story.table != "ok":
        told.append(f"not asked   {story.table}")
    return told


def as_object(story: Story) -> dict[str, Any]:
    """The story for a script. No payload."""
    frame = {k: story.frame[k] for k in ("id", "notification_id")} if story.frame else None
    row = story.row
    return {
        **story.identity._asdict(),
        "ledger": story.entry._asdict() if story.entry else None,
        "ahead": story.ahead,
        "done": story.mark._asdict() if story.mark else None,
        "feed": frame,
        "row": row and {name: value for name, value in row._asdict().items() if name not in ("body", "epoch")},
        "table": story.table,
        "trace_id": trace_id(story.identity),  # of OpenTelemetry, where it is used
    }


def _present(story: Story, entry: Entry) -> list[str]:
    why = REASONS.get(entry.reason, entry.reason)
    if entry.parked:
        if entry.reason == Reason.DELIVERY_FAILED:
            why = "refused for good"
        error = f": {story.row.last_error}" if story.row and story.row.last_error else ""
        return [f"parked      {why}{error}; it waits for `notifier dead-letters replay` or `drop`"]
    if entry.place == "queue":
        return [f"queued      in {entry.queue}, for a worker"]
    row = story.row
    until_us = row.retry_at_us if row and row.state == State.WAITING else entry.retry_us
    where = "in the table" if entry.place == "row" else "in Redis, on its way to the table"
    ahead = f", {story.ahead} before it" if story.ahead else ""
    told = [f"waits       until {_time(until_us)}: {why}{ahead}; {where}"]
    if entry.expires_us:
        told.append(f"expires     {_time(entry.expires_us)}")
    return told


def _detail(mark: Mark) -> str:
    if mark.detail == "-":
        return ""
    if mark.end in ("delivered", "digested"):
        return f", as feed entry {mark.detail}"
    return f": {REASONS.get(mark.detail, mark.detail)}"


def _times(number: int) -> str:
    return f"{number} time{'s' * (number != 1)}"


def _time(us: int) -> str:
    return f"{instant(us).astimezone():%Y-%m-%d %H:%M:%S.%f}"[:-3]


def _entry(found: bytes | None) -> Entry | None:
    """See lua/ledger.lua for the form."""
    if found is None:
        return None
    f = found.decode().split()
    return Entry(
        place=PLACES[f[0]],
        parked=f[1] == "1",
        queue=QUEUES[f[3]],
        seq=int(f[4]),
        accepted_us=int(f[5]),
        expires_us=int(f[6]),
        starts=int(f[8]),
        retry_us=int(f[11]),
        attempts=int(f[12]),
        reason=f[13],
    )


def _mark(found: bytes | None) -> Mark | None:
    if found is None:
        return None
    end, at_us, seq, detail = found.decode().split(" ", 3)
    return Mark(end, int(at_us), int(seq), detail)


def _frame(entries: Any, notification_id: str) -> dict[str, Any] | None:
    """The newest frame that is, or tells of, this notification."""
    for entry_id, fields in entries:
        frame: dict[str, Any] = {"id": entry_id.decode(), **json.loads(b"{" + fields[b"f"])}
        if notification_id in (frame["notification_id"], *frame.get("digest", {}).get("ids", ())):
            return frame
    return None
