"""What becomes of a claimed batch: limiter, delivery, and what each row's fate is. Lets go of no row itself."""

from __future__ import annotations

import math
import random
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from notifier import channels, preferences
from notifier.channels import Channel, Delivery, Failed, RetryAt
from notifier.channels.attempts import attempt, backoff_s
from notifier.channels.breaker import breakers
from notifier.deadletters.claiming import CLAIM_S
from notifier.deadletters.digest import Folded, object_of, together
from notifier.deadletters.line import Pace
from notifier.deadletters.schema import Kept, Row
from notifier.errors import SettingsError
from notifier.licence import TRIES, Denial, End, Grant, Reason, RowReply
from notifier.limits.verdict import Request, Verdict
from notifier.notification import WEBSOCKET, Identity, Priority
from notifier.preferences import OPTED_OUT
from notifier.settings import Settings

if TYPE_CHECKING:
    from notifier.deadletters.store import Store
    from notifier.ledger import Ledger
    from notifier.limits.limiter import Limiter

MAX_STARTS = 5
CHUNK = 100
CALLS_S = 1.0  # slow channels are called for this long from the first call on, then whatever is left is due as before
MARGIN_S = 5.0  # a claim outlives the call of a channel by this
Unit = list[Row]  # what goes out for one token: a row, or the members of a digest


class Calls:
    """The calls of channels outside within one task, whose time limit must not cut one off: it may have been taken."""

    def __init__(self) -> None:
        self._last_s = math.inf

    @property
    def over(self) -> bool:
        """Whether none may be begun any more."""
        return time.monotonic() > self._last_s

    def begin(self) -> None:
        """One begins now."""
        if math.isinf(self._last_s):
            self._last_s = time.monotonic() + CALLS_S


class Claimed:
    """One batch of claimed rows on its way through limiter and channels. `process` fills the lists.

    `ended` rows are to be deleted, `parked` to be parked, `kept` to be released, `paces` say how the rest of a denied
    user's rows follow. `replayed` counts rows that went out just now, alone or in a digest. `limiter_down`: everything
    was denied because of it, and more would be too.
    """

    def __init__(self, store: Store, ledger: Ledger, limiter: Limiter, settings: Settings, calls: Calls) -> None:
        self._store, self._ledger, self._limiter, self._settings, self._calls = store, ledger, limiter, settings, calls
        self.ended: list[Identity] = []
        self.parked: list[Kept] = []
        self.kept: list[Kept] = []
        self.paces: dict[tuple[str, str], Pace] = {}
        self._in_line: Counter[str] = Counter()
        self.replayed = 0
        self.denied = 0
        self.limiter_down = False
        self._misplaced: set[Identity] = set()

    def process(self, rows: Sequence[Row]) -> None:
        """Every row gets exactly one fate. Raises StateUnavailable; then those without one are still to be released."""
        now_us = self._ledger.now_us()
        live, expired = [], []
        for row in rows:
            if row.starts >= MAX_STARTS and row.claim_ran_out:
                self._park([row], Reason.POISON, f"its worker or replayer died with it {row.starts} times")
            elif row.expires_us and row.expires_us <= now_us:
                expired.append(row)
            else:
                live.append(row)
        self._book(expired, End.EXPIRED)
        live = self._wanted(live, now_us)
        # Feeds first: a slow channel outside must not hold them up. The others in any order: none is always the last.
        order = {channel: (channel != WEBSOCKET, random.random()) for channel in {row.channel for row in live}}  # noqa: S311
        for channel, group in groupby(sorted(live, key=lambda row: order[row.channel]), key=lambda row: row.channel):
            units = together(group)
            if channel == WEBSOCKET:
                self._to_feeds(units)
            else:
                self._to_channel(channel, units)
        self._mend_seqs()

    def _wanted(self, rows: list[Row], now_us: int) -> list[Row]:
        """Those that their users' preferences, which may have changed, let go now."""
        if not preferences.asked():
            return rows
        found = preferences.objections(rows, now_us, self._settings.preferences_seconds)
        objected = [(row, o) for row, o in zip(rows, found, strict=True) if o]
        self._book([row for row, o in objected if o.reason == OPTED_OUT], End.DROPPED, OPTED_OUT)
        self._put_off([(row, o.denial(row.attempts, row.last_error)) for row, o in objected if o.reason != OPTED_OUT])
        return [row for row, o in zip(rows, found, strict=True) if o is None]

    # ---- limiter

    def _ask(self, units: Sequence[Unit]) -> tuple[list[tuple[Unit, Verdict]], list[tuple[Row, Verdict]]]:
        """What is granted, in the order of `units`, and the rows that are denied. A digest takes one token."""
        verdicts = self._limiter.acquire_many(
            [Request(last.user_id, last.channel, last.category, last.priority) for *_, last in units]
        )
        asked = list(zip(units, verdicts, strict=True))
        granted = [(unit, verdict) for unit, verdict in asked if verdict.granted]
        return granted, [(row, verdict) for unit, verdict in asked if not verdict.granted for row in unit]

    def _deny(self, denied: Sequence[tuple[Row, Verdict]]) -> None:
        never = [row for row, verdict in denied if math.isinf(verdict.interval_s)]
        self._park(never, Reason.RATE_LIMITED, "the limit is 0/s: none pass")
        left = [(row, verdict) for row, verdict in denied if not math.isinf(verdict.interval_s)]
        if not left:
            return
        denials = [self._denial(row, verdict) for row, verdict in left]
        replies = self._ledger.deny_rows([row for row, _ in left], denials)
        now_us = self._ledger.estimated_us()
        self.denied += sum(reply.action == "keep" for reply in replies)
        for (row, verdict), denial, reply in zip(left, denials, replies, strict=True):
            if verdict.level == "unavailable":
                self.limiter_down = True
            elif reply.action == "keep" and row.priority != Priority.CRITICAL:
                self._pace(row, verdict, denial)
                if verdict.level != "channel":
                    reply = reply._replace(retry_at_us=now_us)  # due, until it gets its place in line
            self._settle(row, reply)

    def _denial(self, row: Row, verdict: Verdict) -> Denial:
        denial = verdict.denial(self._interval_us(row))
        if verdict.level == "channel":  # one queue over all users: a slot among the user's own rows would say nothing
            place = self._in_line[row.channel]
            self._in_line[row.channel] += 1
            return denial._replace(wait_us=denial.wait_us + place * denial.interval_us, interval_us=0)
        return denial

    def _pace(self, row: Row, verdict: Verdict, denial: Denial) -> None:
        """What else is due of this user, or of this whole channel, would be denied too."""
        now_us = self._ledger.estimated_us()
        if verdict.level == "channel":
            interval_us = int(verdict.interval_s * 1e6)
            pace = Pace("", row.channel, now_us + denial.wait_us + interval_us, interval_us)
            self.paces["", row.channel] = pace  # behind the last one denied
        else:
            first = Pace(row.user_id, row.channel, now_us + denial.wait_us, denial.interval_us)
            self.paces.setdefault((row.user_id, row.channel), first)

    def _interval_us(self, row: Row) -> int:
        return self._settings.interval_us_of(row.channel)

    # ---- feeds

    def _to_feeds(self, units: list[Unit]) -> None:
        for _ in range(TRIES):
            asked_at_s = time.monotonic()
            granted, denied = self._ask(units)
            units = self._deliver(granted, self._ledger.deadline_us(asked_at_s)) if granted else []
            # Only now: rows that outlived their Redis get their seqs anew, in the order in which they are touched.
            self._deny(denied)
            if not units:
                return
        # Late again and again: this process is too slow now. Any other may take them at once.
        self.kept += [row.as_it_was() for unit in units for row in unit]

    def _deliver(self, granted: Sequence[tuple[Unit, Verdict]], deadline_us: int) -> list[Unit]:
        """To feeds. Returns those for which it was too late."""
        units = [unit for unit, _ in granted]
        grants = [Grant(v.granted_at_us, deadline_us, self._interval_us(unit[0])) for unit, v in granted]
        folded = [[Folded.of(row).argument() for row in unit] for unit in units]
        replies = iter(self._ledger.deliver_digests(units, grants, folded))
        again: list[Unit] = []
        for unit in units:
            answered = [(row, next(replies)) for row in unit]
            if late := [row for row, reply in answered if reply.action == "late"]:
                again.append(late)
            for row, reply in answered:
                if reply.action != "late":
                    self._settle(row, reply)
        return again

    # ---- channels outside

    def _to_channel(self, name: str, units: list[Unit]) -> None:
        for batch in _batches(units):  # one after the other: what is not yet sent holds back what follows
            rows = [row for unit in batch for row in unit]
            if self._calls.over:
                self.kept += [row.as_it_was() for row in rows]
            elif wait_s := breakers.wait_s(name):  # before the channel: to make it may fail, and take long
                self._wait_for_breaker(rows, wait_s)
            elif channel := self._channel(name, rows):
                granted, denied = self._ask(self._checked(batch))
                self._deny(denied)
                if granted:
                    self._calls.begin()
                    self._call(channel, granted)

    def _channel(self, name: str, rows: Sequence[Row]) -> Channel | None:
        """None, and they are parked, where there is no such channel."""
        try:
            return channels.get(name)
        except SettingsError as error:
            self._park(rows, Reason.DELIVERY_FAILED, str(error))
            return None

    def _wait_for_breaker(self, rows: Sequence[Row], wait_s: float) -> None:
        wait_us = int(wait_s * 1e6)
        self._put_off([(row, Denial(wait_us, 0, Reason.BREAKER_OPEN, row.attempts, row.last_error)) for row in rows])

    def _checked(self, units: Sequence[Unit]) -> list[Unit]:
        """What may be sent: neither ended nor expired, and nothing earlier waits."""
        rows = [row for unit in units for row in unit]
        replies = iter(self._ledger.check_rows(rows, [self._interval_us(row) for row in rows]))
        live = []
        for unit in units:
            checked = [(row, next(replies)) for row in unit]
            for row, reply in checked:
                if reply.action != "go":
                    self._settle(row, reply)
            if ready := [row for row, reply in checked if reply.action == "go"]:
                live.append(ready)
        return live

    def _call(self, channel: Channel, granted: Sequence[tuple[Unit, Verdict]]) -> None:
        deliveries = [
            Delivery(last.notification, last.accepted_us, verdict.granted_at_us, last.attempts + 1, object_of(unit))
            for unit, verdict in granted
            for last in unit[-1:]
        ]
        if channel.lease_s + MARGIN_S > CLAIM_S:
            self._store.hold([row.identity for unit, _ in granted for row in unit], channel.lease_s + MARGIN_S)
        sent: list[Unit] = []
        again: list[tuple[Row, Denial]] = []
        for (unit, _), outcome in zip(granted, attempt(channel, deliveries), strict=True):
            attempts = unit[-1].attempts + 1
            if isinstance(outcome, RetryAt):
                wait_us = int(backoff_s(attempts, outcome.wait_s) * 1e6)
                denial = Denial(wait_us, 0, Reason.DELIVERY_FAILED, attempts, outcome.error)
                again += [(row, denial) for row in unit]
            elif isinstance(outcome, Failed):
                self._park([row._replace(attempts=attempts) for row in unit], Reason.DELIVERY_FAILED, outcome.error)
            else:
                sent.append(unit)
        self._book([unit[0] for unit in sent if len(unit) == 1], End.DELIVERED)
        for unit in sent:
            if len(unit) > 1:  # all its members in one step: a crash must not leave some to be sent as another digest
                self._book(unit, [End.DIGESTED] * (len(unit) - 1) + [End.DELIVERED])
        self._put_off(again)

    # ---- fates

    def _put_off(self, denied: Sequence[tuple[Row, Denial]]) -> None:
        """For another reason than a limit: whoever else waits need not wait longer for it."""
        replies = self._ledger.deny_rows([row for row, _ in denied], [denial for _, denial in denied])
        for (row, denial), reply in zip(denied, replies, strict=True):
            self._settle(row._replace(attempts=denial.attempts, last_error=denial.error), reply)

    def _book(self, rows: Sequence[Row], end: End | Sequence[End], reason: str = "-") -> None:
        for row, reply in zip(rows, self._ledger.book_rows(rows, end, reason), strict=True):
            self._settle(row, reply)

    def _park(self, rows: Sequence[Row], reason: Reason, error: str) -> None:
        for row, reply in zip(rows, self._ledger.book_rows(rows, End.PARKED, reason), strict=True):
            self._settle(row._replace(last_error=error), reply._replace(reason=reason))

    def _settle(self, row: Row, reply: RowReply) -> None:
        self.replayed += reply.booked in (End.DELIVERED, End.DIGESTED)
        if reply.action == "ended":
            self.ended.append(row.identity)
            return
        if reply.action == "keep" and (not row.seq or reply.reason == Reason.ORDER):
            self._misplaced.add(row.identity)
        kept = row.as_it_was()._replace(reason=reply.reason or row.reason, retry_at_us=reply.retry_at_us)
        (self.parked if reply.action == "parked" else self.kept).append(kept)

    def _mend_seqs(self) -> None:
        """A row that a worker wrote, or that outlived its Redis, has another seq in the ledger than in the table.

        Left so, it would be claimed before those that it must wait for, again and again, and use up their tokens.
        """
        if not self._misplaced:
            return
        identities = sorted(self._misplaced)
        seqs = dict(zip(identities, self._ledger.seqs(identities), strict=True))
        self.kept = [kept._replace(seq=seqs.get(kept.identity, 0)) for kept in self.kept]
        self._misplaced.clear()

    def unsettled(self, rows: Iterable[Row]) -> list[Kept]:
        """Those of `rows` that have no fate yet, to be released as they were."""
        settled = {*self.ended, *(kept.identity for kept in (*self.parked, *self.kept))}
        return [row.as_it_was() for row in rows if row.identity not in settled]


def _batches(units: Iterable[Unit]) -> Iterator[list[Unit]]:
    """At most a hundred rows each: what one script looks at in one step."""
    batch: list[Unit] = []
    for unit in units:
        if batch and sum(map(len, batch)) + len(unit) > CHUNK:
            yield batch
            batch = []
        batch.append(unit)
    if batch:
        yield batch
