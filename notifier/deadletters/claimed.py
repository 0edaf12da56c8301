"""What becomes of a claimed batch: limiter, delivery, and what each row's fate is. Touches no row itself."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from notifier import channels
from notifier.channels import WEBSOCKET, Channel, Delivery, Duplicate, Failed, RetryAt, Sent
from notifier.channels.attempts import attempt, backoff_s
from notifier.deadletters.schema import Kept, Reason, Row
from notifier.deadletters.store import Pace
from notifier.errors import SettingsError
from notifier.licence import Denial, End, Grant, RowReply
from notifier.limits.verdict import Request, Verdict
from notifier.notification import Identity
from notifier.settings import Settings

if TYPE_CHECKING:
    from notifier.ledger import Ledger
    from notifier.limits.limiter import Limiter

MAX_STARTS = 5
TRIES = 3  # how often a grant that grew stale is asked for again
REASONS = {
    "user": Reason.RATE_LIMITED,
    "channel": Reason.RATE_LIMITED,
    "quota": Reason.QUOTA,
    "order": Reason.ORDER,
    "unavailable": Reason.LIMITER_UNAVAILABLE,
}


class Claimed:
    """One batch of claimed rows on its way through limiter and channels. `process` fills the lists.

    `ended` rows are to be deleted, `parked` to be parked, `kept` to be released, `paces` say how the rest of a denied
    user's rows follow. `limiter_down`: everything was denied because of it, and more would be too.
    """

    def __init__(self, ledger: Ledger, limiter: Limiter, settings: Settings) -> None:
        self._ledger, self._limiter, self._settings = ledger, limiter, settings
        self.ended: list[Identity] = []
        self.parked: list[Kept] = []
        self.kept: list[Kept] = []
        self.paces: dict[tuple[str, str], Pace] = {}
        self.granted = 0
        self.denied = 0
        self.limiter_down = False

    def process(self, rows: Sequence[Row]) -> None:
        """Every row gets exactly one fate. Raises StateUnavailable; then those without one are still to be released."""
        now_us = self._ledger.now_us()
        live = []
        for row in rows:
            if row.starts >= MAX_STARTS and row.claim_ran_out:
                self._park([row], Reason.POISON, f"its worker or replayer died with it {row.starts} times")
            elif row.expires_us and row.expires_us <= now_us:
                self._book([row], End.EXPIRED)
            else:
                live.append(row)
        # Feeds first: a slow channel outside must not hold them up.
        for channel, group in groupby(sorted(live, key=_feeds_first), key=lambda row: row.channel):
            if channel == WEBSOCKET:
                self._to_feeds(list(group))
            else:
                self._to_channel(channel, list(group))

    # ---- limiter

    def _ask(self, rows: Sequence[Row]) -> list[tuple[Row, Verdict]]:
        """Deny what is denied, and return what is granted, in the order of `rows`."""
        verdicts = self._limiter.acquire_many([Request(r.user_id, r.channel, r.category, r.priority) for r in rows])
        asked = list(zip(rows, verdicts, strict=True))
        self._deny([(row, verdict) for row, verdict in asked if not verdict.granted])
        return [(row, verdict) for row, verdict in asked if verdict.granted]

    def _deny(self, denied: Sequence[tuple[Row, Verdict]]) -> None:
        never = [row for row, verdict in denied if math.isinf(verdict.interval_s)]
        self._park(never, Reason.RATE_LIMITED, "the limit is 0/s: none pass")
        left = [(row, verdict) for row, verdict in denied if not math.isinf(verdict.interval_s)]
        denials = [
            Denial(
                wait_us=max(1, math.ceil(verdict.retry_after * 1e6)),
                interval_us=int(verdict.interval_s * 1e6) or self._interval_us(row),
                reason=REASONS.get(verdict.level or "user", Reason.RATE_LIMITED),
            )
            for row, verdict in left
        ]
        if not denials:
            return
        replies = self._ledger.deny_rows([row for row, _ in left], denials)
        self.denied += len(replies)
        for (row, verdict), denial, reply in zip(left, denials, replies, strict=True):
            self._settle(row, reply)
            if verdict.level == "unavailable":
                self.limiter_down = True
            elif reply.action == "keep":
                self._pace_after(row, reply.retry_at_us, denial.interval_us)

    def _pace_after(self, row: Row, retry_at_us: int, interval_us: int) -> None:
        """What else is due of this user follows the last one denied here."""
        who = (row.user_id, row.channel)
        base_us = retry_at_us + interval_us
        if who not in self.paces or self.paces[who].base_us < base_us:
            self.paces[who] = Pace(*who, base_us, interval_us)

    def _interval_us(self, row: Row) -> int:
        limit = self._settings.user_limit_of(row.channel)
        return 0 if limit.off else limit.emission_us

    # ---- feeds

    def _to_feeds(self, rows: list[Row]) -> None:
        for _ in range(TRIES):
            asked_at_s = time.monotonic()
            granted = self._ask(rows)
            if not granted:
                return
            deadline_us = self._ledger.deadline_us(asked_at_s)
            grants = [Grant(verdict.granted_at_us, deadline_us, self._interval_us(row)) for row, verdict in granted]
            replies = self._ledger.deliver_rows([row for row, _ in granted], grants)
            rows = []
            for (row, _), reply in zip(granted, replies, strict=True):
                if reply.action == "late":
                    rows.append(row)
                else:
                    self.granted += reply.action == "ended"
                    self._settle(row, reply)
            if not rows:
                return
        # Late again and again: this process is too slow now. Any other may take them at once.
        for row in rows:
            self.kept.append(_as_it_was(row))

    # ---- channels outside

    def _to_channel(self, name: str, rows: list[Row]) -> None:
        try:
            channel = channels.get(name)
        except SettingsError as error:
            self._park(rows, Reason.DELIVERY_FAILED, str(error))
            return
        live = []
        for row, reply in zip(rows, self._ledger.check_rows(rows, [self._interval_us(r) for r in rows]), strict=True):
            if reply.action == "go":
                live.append(row)
            else:
                self._settle(row, reply)
        granted = self._ask(live)
        if granted:
            self._call(channel, granted)

    def _call(self, channel: Channel, granted: Sequence[tuple[Row, Verdict]]) -> None:
        deliveries = [Delivery(r.notification, r.accepted_us, v.granted_at_us, r.attempts + 1) for r, v in granted]
        paired = list(zip((row for row, _ in granted), attempt(channel, deliveries), strict=True))
        sent = [row for row, outcome in paired if isinstance(outcome, (Sent, Duplicate))]
        self._book(sent, End.DELIVERED)
        self.granted += len(sent)
        for row, outcome in paired:
            if isinstance(outcome, Failed):
                self._park([row._replace(attempts=row.attempts + 1)], Reason.DELIVERY_FAILED, outcome.error)
        again = [(row, outcome) for row, outcome in paired if isinstance(outcome, RetryAt)]
        denials = [
            Denial(
                int(backoff_s(row.attempts + 1, outcome.wait_s) * 1e6),
                0,
                Reason.DELIVERY_FAILED,
                row.attempts + 1,
                outcome.error,
            )
            for row, outcome in again
        ]
        replies = self._ledger.deny_rows([row for row, _ in again], denials)
        for (row, _), denial, reply in zip(again, denials, replies, strict=True):
            self._settle(row, reply, attempts=denial.attempts, error=denial.error)

    # ---- fates

    def _book(self, rows: Sequence[Row], end: End, reason: str = "-") -> None:
        for row, reply in zip(rows, self._ledger.book_rows(rows, end, reason), strict=True):
            self._settle(row, reply)

    def _park(self, rows: Sequence[Row], reason: Reason, error: str) -> None:
        for row, reply in zip(rows, self._ledger.book_rows(rows, End.PARKED, reason), strict=True):
            self._settle(row, reply._replace(reason=reason), error=error)

    def _settle(self, row: Row, reply: RowReply, *, attempts: int | None = None, error: str | None = None) -> None:
        kept = Kept(
            row.identity,
            reply.reason or row.reason,
            reply.retry_at_us,
            row.attempts if attempts is None else attempts,
            row.last_error if error is None else error,
        )
        if reply.action == "ended":
            self.ended.append(row.identity)
        elif reply.action == "parked":
            self.parked.append(kept)
        else:
            self.kept.append(kept)

    def unsettled(self, rows: Iterable[Row]) -> list[Kept]:
        """Those of `rows` that have no fate yet, to be released as they were."""
        settled = {*self.ended, *(kept.identity for kept in (*self.parked, *self.kept))}
        return [_as_it_was(row) for row in rows if row.identity not in settled]


def _feeds_first(row: Row) -> tuple[bool, str, str, int]:
    return row.channel != WEBSOCKET, row.channel, row.user_id, row.seq


def _as_it_was(row: Row) -> Kept:
    return Kept(row.identity, row.reason, 0, row.attempts, row.last_error)
