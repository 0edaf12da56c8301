"""The ledger: the record in state Redis of every accepted notification that has not ended. See lua/ledger.lua.

An entry is the licence to act. Its place says who owns the notification: Q the broker, D `:deferred`, H a row.
Every method takes a list and is one round trip for up to a hundred items.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from json.encoder import encode_basestring_ascii as json_string
from typing import Any, TypeVar

from redis import Redis

from notifier import hooks, tally, tracing
from notifier.licence import Accepted, Counts, Deferred, Denial, End, Grant, HeldRow, Reply, RowReply
from notifier.notification import Identity, Notification, Priority
from notifier.redis.items import Items
from notifier.redis.keys import ALL_PREFIXES, identity_part, parse_identity, prefix_of
from notifier.redis.scripts import Argument, script
from notifier.redis.state import Calls, call
from notifier.settings import Settings
from notifier.wire import Message, pack_meta, unpack

CHUNK = 100  # items a script handles in one go, so that none blocks Redis for over 5 ms
SHARDS_A_CALL = 256
LIFE_S = 600  # a message or row older than this and without entry or mark has ended
UNLEDGERED_LIFE_S = 86_400
MARK_MARGIN_S = 60
ORPHAN_MARK_MS = 604_800_000  # as in lua/ledger.lua: of what a row holds that no ledger calls stale
DEADLINE_US = 2_000_000  # a grant is good for this long
T = TypeVar("T")
Own = Callable[[Notification], tuple[Argument, ...]]  # the fields that a script adds to a class
_ENDS = frozenset(End) - {End.PARKED}
_LETTER = {Priority.CRITICAL: "c", Priority.NORMAL: "n", Priority.BULK: "b"}
_PRIORITY = {letter: priority for priority, letter in _LETTER.items()}


class Ledger:
    """The Redis side of the protocol. Raises StateUnavailable."""

    def __init__(self, client: Redis, settings: Settings) -> None:
        self.client = client
        self._calls = Calls(client)
        self._settings = settings
        self._default_ttl_us = int(settings.default_ttl * 1_000_000)
        self._peeked = 0  # the shard that the spill begins with
        self._clock_offset_us: int | None = (
            None  # state Redis time minus this process's monotonic time, never too large
        )

    def close(self) -> None:
        """Let go of connections; a later call makes new ones."""
        self._calls.close()

    # ---- time

    def now_us(self) -> int:
        """State Redis time."""
        seconds, micros = call(lambda: self._calls.ask("TIME"))
        return self._heard(int(seconds) * 1_000_000 + int(micros))

    def deadline_us(self, asked_at_s: float) -> int:
        """When a grant asked for at `asked_at_s` (time.monotonic) is stale, in state Redis time."""
        if self._clock_offset_us is None:
            self.now_us()
        assert self._clock_offset_us is not None
        return int(asked_at_s * 1_000_000) + self._clock_offset_us + DEADLINE_US

    def estimated_us(self) -> int:
        """State Redis time as far as this process can tell without asking."""
        if self._clock_offset_us is None:
            return int(time.time() * 1_000_000)
        return int(time.monotonic() * 1_000_000) + self._clock_offset_us

    def _heard(self, now_us: int) -> int:
        self._clock_offset_us = now_us - int(time.monotonic() * 1_000_000)
        return now_us

    # ---- accept

    def accept(self, notifications: Sequence[Notification], *, in_rows: bool = False) -> list[Accepted]:
        """Give each its licence and say where it goes.

        `in_rows`: each is in a row already (of the outbox), which its mark must outlive.
        """
        accepted: list[Accepted] = []
        begun_ns = tracing.now_ns()
        for chunk in _chunks(notifications):
            items = Items()
            for n in chunk:
                self._add(items, n, own=self._metered, least_mark_ms=ORPHAN_MARK_MS * in_rows)
            reply = self._run("accept", items, [secrets.token_hex(8), *self._most()])
            accepted += [
                Accepted(
                    status.decode(), _PRIORITY.get(queue.decode(), Priority.NORMAL), seq, int(reply[0]), epoch.decode()
                )
                for status, queue, seq, epoch in zip(reply[1::4], reply[2::4], reply[3::4], reply[4::4], strict=True)
            ]
        tally.of_accepts(notifications, [a.status for a in accepted], begun_ns)
        if hooks.wanted():
            dropped = (n for n, a in zip(notifications, accepted, strict=True) if a.status == "dropped")
            hooks.fire(hooks.Event("dropped", n, "max_waiting") for n in dropped)
        return accepted

    # ---- messages

    def begin(self, messages: Sequence[Message], *, lease_us: int = 0) -> list[Reply]:
        """Codes: go, gone, expired, parked; blocked with a lease, which claims. Counts a start of what comes again."""
        return self._messages("begin", messages, [(int(m.again),) for m in messages], (lease_us,))

    def deliver(self, messages: Sequence[Message], grants: Sequence[Grant]) -> list[Reply]:
        """To feeds. Codes: delivered, gone, expired, late, deferred."""
        return self._messages("deliver", messages, [(*grant, "") for grant in grants], self._feed(), own=_frame)

    def deny(self, messages: Sequence[Message], denials: Sequence[Denial]) -> list[Reply]:
        """Codes: deferred, gone, expired, dropped (too many wait, and it cannot fold into another)."""
        errors = [d.error for d in denials]
        extras = [_denial(m.notification, d) for m, d in zip(messages, denials, strict=True)]
        return self._messages("deny", messages, extras, self._most(), errors)

    def book(self, messages: Sequence[Message], end: End, reason: str = "-", errors: Sequence[str] = ()) -> list[Reply]:
        """Codes: booked, gone. `errors` go into the rows of those that park."""
        return self._messages("book", messages, [(end, reason, "own")] * len(messages), errors=errors)

    # ---- rows

    def deliver_digests(
        self, groups: Sequence[Sequence[HeldRow]], grants: Sequence[Grant], folded: Sequence[Sequence[str]] = ()
    ) -> list[RowReply]:
        """Each group (1 to 100 rows of one user and collapse key, in seq order) as one notification for one grant.

        The newest that has not ended carries a `digest` object; the others end as digested (action ended). `folded`
        says for each row of each group what was folded into it before, see lua/deliver.lua, or "".
        Replies in the order of the rows.
        """
        replies: list[RowReply] = []
        rows: list[HeldRow] = []
        extras: list[Sequence[Argument]] = []
        for k, (group, grant) in enumerate(zip(groups, grants, strict=True)):
            if len(rows) + len(group) > CHUNK:
                replies += self._rows("deliver", rows, extras, self._feed(), "order")
                rows, extras = [], []
            for place, row in enumerate(group):
                members, lines = len(group) if place == 0 else 1, folded[k][place] if folded else ""
                rows.append(row)
                extras.append((*grant, f"{members}\n{lines}" if members > 1 or lines else ""))
        return replies + self._rows("deliver", rows, extras, self._feed(), "order")

    def fold_rows(self, rows: Sequence[HeldRow]) -> list[RowReply]:
        """All but the last end as digested into the last, which is kept. If the last has ended, all are kept."""
        return self._rows("fold", rows, [()] * len(rows), chunk=len(rows))

    def deny_rows(self, rows: Sequence[HeldRow], denials: Sequence[Denial]) -> list[RowReply]:
        """Back to their rows, to be tried again later."""
        replies = self._rows(
            "deny", rows, [_denial(r.notification, d) for r, d in zip(rows, denials, strict=True)], self._most()
        )
        return [
            reply._replace(reason=denial.reason) if reply.action == "keep" else reply
            for reply, denial in zip(replies, denials, strict=True)
        ]

    def book_rows(self, rows: Sequence[HeldRow], end: End | Sequence[End], reason: str = "-") -> list[RowReply]:
        """Ended or parked, all or each its own way; up to a hundred rows are booked in one step."""
        ends = [end] * len(rows) if isinstance(end, End) else end
        return self._rows("book", rows, [(each, reason, "own") for each in ends])

    def check_rows(self, rows: Sequence[HeldRow], intervals_us: Sequence[int]) -> list[RowReply]:
        """Before a channel outside: go, ended, parked, or keep (an earlier one waits)."""
        return self._rows("check_rows", rows, [(interval_us,) for interval_us in intervals_us], reason="order")

    # ---- whoever holds it

    def drop(self, identities: Sequence[Identity], reason: str, *, parked: bool = False) -> list[bool]:
        """Book as dropped whatever holds these; parked ones only if `parked`. True where one was dropped."""
        messages = [Message(Notification(i.user_id, "", i.notification_id, i.channel)) for i in identities]
        extras = [(End.DROPPED, reason, "any" if parked else "cancel")] * len(identities)
        return [reply.code == "booked" for reply in self._messages("book", messages, extras)]

    def cancel(self, identity: Identity) -> bool:
        """Drop one that waits, is scheduled or is still queued. False: it has ended, is parked or is unknown."""
        return self.drop([identity], "cancelled")[0]

    def unpark(self, identities: Sequence[Identity]) -> list[bool]:
        """Let parked rows be tried again. False where it is not parked."""
        return [bool(n) for n in self._on_identities("unpark", identities)]

    # ---- :deferred, the sweep, the books

    def peek_deferred(self, limit: int) -> list[Deferred]:
        """The oldest of each shard, not taken out. No more than `limit`."""
        self._peeked = (self._peeked + SHARDS_A_CALL // 2) % len(ALL_PREFIXES)  # no shard is always the last
        shards = ALL_PREFIXES[self._peeked :] + ALL_PREFIXES[: self._peeked]
        reply = call(lambda: script("peek_deferred").run(self.client, shards, [limit]))
        found = []
        for epoch, part, entry, packed in zip(reply[0::4], reply[1::4], reply[2::4], reply[3::4], strict=True):
            identity = parse_identity(part.decode())
            if entry and packed:
                found.append(Deferred.read(identity, epoch.decode(), entry.decode().split(), packed.decode()))
            else:
                self.settle_deferred([identity])
        return found

    def settle_deferred(self, identities: Sequence[Identity]) -> None:
        """Their rows have been committed: D becomes H."""
        self._on_identities("settle_deferred", identities)

    def overdue(self, queue: Priority, before_us: int, limit: int = 500) -> list[Message]:
        """What was last published to this queue before then, marked as published again now."""
        found: list[Message] = []
        for start in range(0, len(ALL_PREFIXES), SHARDS_A_CALL):
            shards = ALL_PREFIXES[start : start + SHARDS_A_CALL]
            while (most := min(CHUNK, limit - len(found))) > 0:  # what was taken counts as published now: this ends
                arguments = [_LETTER[queue], before_us, most]
                reply = call(lambda s=shards, a=arguments: script("overdue").run(self.client, s, a))  # type: ignore[misc]
                for epoch, part, entry, packed in zip(reply[0::4], reply[1::4], reply[2::4], reply[3::4], strict=True):
                    notification, _ = unpack(parse_identity(part.decode()), packed.decode())
                    accepted_us = int(entry.split()[5])
                    found.append(Message(notification, accepted_us=accepted_us, epoch=epoch.decode(), again=True))
                if len(reply) // 4 < most:
                    break
        return found

    def seqs(self, identities: Sequence[Identity]) -> list[int]:
        """What accept gave to each; 0 where nothing is held any more."""
        pipe = self.client.pipeline(transaction=False)
        for identity in identities:
            pipe.hget(f"{prefix_of(identity.user_id)}ledger", identity_part(identity))
        entries: list[Any] = call(pipe.execute)
        return [int(entry.split()[4]) if entry else 0 for entry in entries]

    def counts(self) -> Counts:
        """Sums over all shards, each consistent in itself."""
        totals: dict[str, int] = {}
        entries, deferred, oldest_us, now_us = 0, 0, 0, 0
        queued = dict.fromkeys(_LETTER, 0)
        for start in range(0, len(ALL_PREFIXES), SHARDS_A_CALL):
            shards = ALL_PREFIXES[start : start + SHARDS_A_CALL]
            reply = call(lambda s=shards: script("counts").run(self.client, s, []))  # type: ignore[misc]
            now_us, first_us = int(reply[0]), int(reply[6])
            entries += reply[1]
            for priority, size in zip(_LETTER, reply[2:5], strict=True):
                queued[priority] += size
            deferred += reply[5]
            oldest_us = min(oldest_us or first_us, first_us or oldest_us)
            for name, value in zip(reply[7::2], reply[8::2], strict=True):
                totals[name.decode()] = totals.get(name.decode(), 0) + value
        ends = {end: totals.get(end, 0) for end in End}
        in_flight = sum(queued.values())
        return Counts(
            accepted=totals.get("accepted", 0),
            **ends,
            waiting=entries - in_flight - ends[End.PARKED],
            in_flight=in_flight,
            deferred=deferred,
            deferrals=totals.get("deferrals", 0),
            replayed=totals.get("replayed", 0),
            republished=totals.get("republished", 0),
            queued=queued,
            oldest_queued_s=max(0.0, (now_us - oldest_us) / 1e6) if oldest_us else 0.0,
        )

    def held(self) -> Iterator[list[Identity]]:
        """All identities that a row should hold, a batch at a time: for reconciling."""
        for prefix in ALL_PREFIXES:
            entries: dict[bytes, bytes] = dict(call(lambda p=prefix: list(self.client.hscan_iter(f"{p}ledger"))))  # type: ignore
            held = [parse_identity(part.decode()) for part, entry in entries.items() if entry.startswith(b"H 0 ")]
            if held:
                yield held

    # ---- plumbing

    def _messages(
        self,
        name: str,
        messages: Sequence[Message],
        extras: Sequence[Sequence[Argument]],
        head: Sequence[Argument] = (),
        errors: Sequence[str] = (),
        own: Own | None = None,
    ) -> list[Reply]:
        replies: list[Reply] = []
        for start in range(0, len(messages), CHUNK):
            items = Items()
            for k, message in enumerate(messages[start : start + CHUNK], start):
                self._add(items, message.notification, message, errors[k] if errors else "", own, extras[k])
            reply = self._run(name, items, head)
            tally.of_reply(name, messages[start : start + CHUNK], extras[start:], reply, "message")
            replies += [Reply(code.decode(), int(n)) for code, n in zip(reply[1::2], reply[2::2], strict=True)]
        return replies

    def _rows(
        self,
        name: str,
        rows: Sequence[HeldRow],
        extras: Sequence[Sequence[Argument]],
        head: Sequence[Argument] = (),
        reason: str = "",
        chunk: int = CHUNK,
    ) -> list[RowReply]:
        replies: list[RowReply] = []
        for start in range(0, len(rows), max(1, chunk)):
            items = Items()
            for k, row in enumerate(rows[start : start + chunk], start):
                n = row.notification
                ttl_us = max(1, row.expires_us - row.accepted_us) if row.expires_us else 0
                shared = ("r", LIFE_S * 1_000_000, _LETTER[n.priority], ttl_us, 0, self._mark_ms(n), "")
                frame = (n.body, *_frame(n)) if name == "deliver" else ("",)
                number = items.known((shared, frame)) or items.learn((shared, frame), (*shared, *frame))
                items.add(n, number, row.accepted_us, row.epoch, extras[k])
            reply = self._run(name, items, head)
            tally.of_reply(name, rows[start : start + chunk], extras[start:], reply, "row")
            replies += [_row_reply(c.decode(), int(n), reason) for c, n in zip(reply[1::2], reply[2::2], strict=True)]
        return replies

    def _add(
        self,
        items: Items,
        n: Notification,
        message: Message | None = None,
        error: str = "",
        own: Own | None = None,
        extra: Sequence[Argument] = (),
        least_mark_ms: int = 0,
    ) -> None:
        """One message; `own` gives the fields that the script adds to a class, `extra` those it adds to an item."""
        # One sent by task name has no time of acceptance: as without the ledger, only its mark can tell a late copy.
        unledgered = message is not None and (message.unledgered or not message.accepted_us)
        alike = (n.body, n.notification_id, n.channel, n.category, n.priority, n.ttl_us, n.collapse_key,
                 n.not_before_us, n.chosen, unledgered, error)  # fmt: skip
        number = items.known(alike)
        if not number:
            life_s = UNLEDGERED_LIFE_S if unledgered else LIFE_S
            mark_ms = (UNLEDGERED_LIFE_S + MARK_MARGIN_S) * 1000 if unledgered else self._mark_ms(n)
            shared = ("m", life_s * 1_000_000, _LETTER[n.priority], n.ttl_us or self._default_ttl_us, n.not_before_us,
                      max(mark_ms, least_mark_ms), pack_meta(n, error), n.body, *(own(n) if own else ()))  # fmt: skip
            number = items.learn(alike, shared)
        items.add(n, number, message.accepted_us if message else 0, message.epoch if message else "", extra)

    def _metered(self, n: Notification) -> tuple[Argument, ...]:
        limit = self._settings.user_limit_of(n.channel)
        metered = not (limit.off or limit.blocks)
        return limit.emission_us * metered, limit.tolerance_us * metered, int(bool(n.collapse_key))

    def _mark_ms(self, n: Notification) -> int:
        window_s = self._settings.dedupe_window if n.chosen else 0
        return int(max(window_s, LIFE_S + MARK_MARGIN_S) * 1000)

    def _feed(self) -> list[Argument]:
        return [self._settings.feed_length, int(self._settings.feed_seconds)]

    def _most(self) -> list[Argument]:
        return [self._settings.max_waiting, self._settings.max_deferred]

    def _run(self, name: str, items: Items, head: Sequence[Argument]) -> Any:
        arguments = items.arguments(head)
        reply = call(lambda: self._calls.run(script(name), items.keys, arguments))
        self._heard(int(reply[0]))
        return reply

    def _on_identities(self, name: str, identities: Sequence[Identity]) -> list[int]:
        replies: list[int] = []
        for chunk in _chunks(identities):
            keys = [prefix_of(i.user_id) for i in chunk]
            parts = [identity_part(i) for i in chunk]
            reply = call(lambda k=keys, p=parts: script(name).run(self.client, k, p))  # type: ignore[misc]
            replies += reply if isinstance(reply, list) else [reply]
        return replies


def _chunks(items: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), CHUNK):
        yield items[start : start + CHUNK]


def _row_reply(code: str, number: int, reason: str) -> RowReply:
    if code == "keep":
        return RowReply(code, number, reason)
    if code == End.PARKED:
        return RowReply(code, booked=code if number else "")
    return RowReply("ended", booked=code) if code in _ENDS else RowReply(code)


def _frame(n: Notification) -> tuple[Argument, ...]:
    return json_string(n.notification_id), json_string(n.category)


def _denial(n: Notification, d: Denial) -> tuple[Argument, ...]:
    return d.reason, d.wait_us, d.interval_us, d.attempts, int(bool(n.collapse_key))
