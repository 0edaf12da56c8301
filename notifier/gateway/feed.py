"""What a client gets next. Pure: no I/O, no clock.

A feed is a stream; a push says which entry came before it. Whoever holds the entry before may send the push as it is;
whoever does not has missed something and reads the feed again from the last entry it holds.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import NamedTuple

PING = "ping"
START = "0-0"  # before the first entry
PAGE = 64  # entries one read asks for
HELD = 256  # pushes kept while a read is under way; beyond, the feed is read once more instead

_ID = re.compile(r"\d{1,20}-\d{1,20}", re.ASCII)
_LAST = 2**64 - 1  # of each half: Redis takes no higher one


class Message(NamedTuple):
    """What a client gets: an entry of its feed, or, with a `type`, word about the feed. It then stands at `id`."""

    id: str
    text: str
    type: str = ""


class Push(NamedTuple):
    """A published entry, and the id of the entry before it."""

    id: str
    previous: str
    frame: str


_LOST = Push("", "", "")  # held in place of pushes that are not known: the feed is read once more


class Step(NamedTuple):
    """What a read led to: the client stands at `stands_at`, and the entries come next, in order.

    `gap`: entries between the two are gone, or may be.
    """

    entries: list[Message]
    stands_at: str
    gap: bool


def is_id(text: str) -> bool:
    """Whether a client's last id can be one: `1764471120123-0`."""
    return _ID.fullmatch(text) is not None and max(order(text)) <= _LAST


def heard(said: str) -> str | None:
    """What a client says: PING, the id up to which its user has read, or None where it is nonsense."""
    try:
        message = json.loads(said)
        kind = message["type"]
        if kind == PING:
            return PING
        read_id = message["id"] if kind == "read" else ""
        return read_id if isinstance(read_id, str) and is_id(read_id) else None
    except (KeyError, TypeError, ValueError, RecursionError):
        return None


def order(stream_id: str) -> tuple[int, int]:
    """By which ids are compared; their text cannot be."""
    milliseconds, _, sequence = stream_id.partition("-")
    return int(milliseconds), int(sequence)


def parse_push(message: bytes) -> Push:
    """`<id> <id before> <frame>`. Raises ValueError."""
    stream_id, previous, frame = message.decode().split(" ", 2)
    if not (is_id(stream_id) and is_id(previous)):
        raise ValueError("not a push: it must begin with two stream ids")
    return Push(stream_id, previous, frame)


def entry_of(stream_id: bytes, field: bytes) -> Message:
    """The feed keeps frames without brace and id; the payload in them is never parsed."""
    text = stream_id.decode()
    return Message(text, f'{{"id":"{text}",{field.decode()}')


class ReadMark(NamedTuple):
    """How far the user has read: `unread` entries lie above `read_id`, counted when `counted_to` was the last."""

    read_id: str
    unread: int
    counted_to: str


def hello(recovered: bool, last_id: str, mark: ReadMark) -> Message:
    """The first message to a client: is nothing missing after the id it named, and where it stands now."""
    return _word("hello", last_id, {"recovered": recovered, "last_id": last_id, **mark._asdict()})


def gap(last_id: str) -> Message:
    """Sent where entries were missed that the feed no longer keeps. The client now stands at `last_id`."""
    return _word("gap", last_id, {"last_id": last_id})


def read_message(mark: ReadMark) -> Message:
    """Sent when the user has read something, in whichever tab."""
    return _word("read", "", mark._asdict())


def _word(kind: str, stands_at: str, values: dict[str, object]) -> Message:
    return Message(stands_at, json.dumps({"type": kind, **values}, separators=(",", ":")), kind)


def parse_read(message: bytes) -> ReadMark | None:
    """`read <read id> <unread> <counted to>`, as lua/mark_read.lua publishes it; None for anything else."""
    word, *values = message.split(b" ", 4)
    if word != b"read" or len(values) != 3:
        return None
    return ReadMark(values[0].decode(), int(values[1]), values[2].decode())


class Cursor:
    """Where one client stands in one feed.

    `last` is the last entry handed over for sending. While `behind`, the feed has to be read: begin(), read the entries
    from that id on (itself included, PAGE at most), apply() them; fail() if the read failed.
    """

    __slots__ = ("_feed_length", "_held", "_reading", "_sure", "behind", "last", "resumes")

    def __init__(self, last_id: str | None, feed_length: int) -> None:
        """`last_id`: the last entry the client has, START if it saw the feed empty, None if it has seen nothing."""
        self.last = last_id or START
        self.behind = True
        self.resumes = last_id is not None
        self._sure = self.resumes  # of having seen all there was up to `last`
        self._feed_length = feed_length
        self._reading = False
        self._held: list[Push] = []

    def push(self, push: Push) -> bool:
        """Take a push. True: send it now. False: it is a repeat, or it waits for the feed to be read."""
        if self._reading:
            self._hold(push)
        elif not self.behind:
            if push.previous == self.last:
                self.last = push.id
                return True
            # What is not newer is a repeat, unless the feed has begun anew under ids that are lower.
            newer = order(push.id) > order(self.last)
            self.behind = newer or (push.previous == START and push.id != self.last)
        return False

    def miss(self) -> None:
        """Pushes may have been lost: read the feed, and once more if a read is under way."""
        self.behind = True
        if self._reading:
            self._held = [_LOST]

    def begin(self) -> str:
        """A read starts; it includes all that was pushed before. Returns the id to read from, inclusive."""
        self._reading = True
        self._held = []
        return self.last

    def fail(self) -> None:
        """The read failed; the cursor is still behind."""
        self._reading = False
        self._held = []

    def apply(self, entries: Sequence[Message]) -> Step:
        """Take what was read. `behind` afterwards: there is more to read."""
        self._reading = False
        whole_page = len(entries) >= PAGE
        ready = list(entries)
        stood_at, missed = self.last, False
        if self.last == START:
            # From an empty feed nothing was trimmed as long as it is not full.
            missed = self._sure and len(ready) >= min(PAGE, self._feed_length)
            self._sure = True
        elif not ready:
            # The client is ahead of the feed: it was lost or has expired. Start over.
            self.last, self._sure, self.behind = START, False, True
            return Step([], START, True)
        elif ready[0].id == self.last:
            del ready[0]
        else:
            missed = True
        if ready:
            self.last = ready[-1].id
        self.behind = whole_page
        if not whole_page:
            ready += self._release()
        return Step(ready, stood_at, missed)

    def _hold(self, push: Push) -> None:
        if len(self._held) < HELD:
            self._held.append(push)
        else:
            self._held = [_LOST]

    def _release(self) -> list[Message]:
        """The pushes that came during the read, as far as they follow on."""
        held, self._held = self._held, []
        ready = []
        for push in held:
            if self.behind:
                break
            if push is _LOST:
                self.behind = True
            elif self.push(push):
                ready.append(Message(push.id, push.frame))
        return ready
