"""The protocol's Redis scripts, each a single step: what lua/ does, without times, bodies and numbers."""

from __future__ import annotations

from collections.abc import Sequence

from tests.model.state import (
    ACC,
    BEHIND,
    COUNTED,
    DEFERRED,
    DENIED,
    END,
    MARK,
    OLD,
    ORPHAN,
    PLACE,
    SEQ,
    WAITING,
    Draft,
    State,
    Violation,
    first,
    seq,
)

# Each can be left out, which breaks something.
RULES = frozenset(
    {
        "licence", "order_by_seq", "row_denial", "skip_parked", "stale_row", "epoch", "carrier", "waiting_kept",
        "late_life", "reconcile", "probe_again", "row_starts", "orphan_mark",
    }
)  # fmt: skip
# Put in: `held` (a mark without TTL while a row waits) and `claim_order` (rows claimed in seq order). Each looks as if
# it replaced a rule, and does not.


class Scripts:
    """Says which rules hold and which disturbances there are, and runs scripts on drafts of states.

    `budget` is the number of disturbances in one run; `scheduled`, `critical` and `toxic` (kills its process) name
    notifications; `outbox` those that are rows before they are accepted, written with the application's own data.
    """

    def __init__(
        self,
        budget: int,
        workers: int = 2,
        replayers: int = 2,
        one: bool = False,
        rules: frozenset[str] = RULES,
        scheduled: Sequence[int] = (),
        critical: Sequence[int] = (),
        toxic: Sequence[int] = (),
        cancel: bool = True,
        ledger_down: bool = False,
        redis_away: bool = True,
        poison: bool = True,
        probe: bool = False,
        tail: bool = False,
        flush: bool = False,
        repeats: bool = True,
        outbox: Sequence[int] = (),
    ) -> None:
        self.budget, self.rules = budget, rules
        self.scheduled, self.critical, self.toxic = scheduled, critical, toxic
        self.cancel, self.ledger_down, self.redis_away, self.poison = cancel, ledger_down, redis_away, poison
        self.probe, self.tail, self.flush, self.repeats = probe, tail, flush, repeats
        self.licence = "licence" in rules
        self.outbox = outbox
        self.first: State = first(workers, replayers, one=one, outbox=outbox)

    def accept(self, s: Draft, n: int, by_row: bool = False) -> None:
        """Give it its licence; straight to :deferred if it is scheduled or something waits."""
        if s[ACC + n]:
            raise Violation(f"I3: {n} is accepted a second time")
        s[ACC + n] = 1
        s[SEQ] += str(n)
        s[BEHIND + n] = s[DENIED + 1 - n]
        s[PLACE + n] = "H" if by_row else "Q"
        if not by_row and (n in self.scheduled or (s[WAITING] > 0 and n not in self.critical)):
            self.defer(s, n, counted=n not in self.scheduled)

    def known(self, s: Draft, n: int) -> bool:
        """Would accept call it a duplicate? Only the replay can have been faster than the application."""
        return bool(s[PLACE + n] or s[MARK + n] or s[END + n] == "p")

    def licensed(self, s: Draft, n: int) -> bool:
        """Head of every worker script."""
        if not s[PLACE + n] and not s[MARK + n] and not s[OLD + n]:
            self.accept(s, n)  # the ledger was down or lost its tail
        return bool(s[PLACE + n] == "Q")  # else: ended, a stale copy, or somebody else holds it

    def row_licensed(self, s: Draft, n: int) -> str:
        """Head of every script about a row. Reply: "" go on, x it has ended (delete it), p it is parked (keep it)."""
        if s[END + n] == "p":
            return "p" if "skip_parked" in self.rules else "x"
        if not s[PLACE + n]:
            if s[MARK + n] in ("t", "n"):
                return "x"
            if (
                s[OLD + n]
                and self.licence
                and "stale_row" in self.rules
                and not (s[ORPHAN + n] and "epoch" in self.rules)
            ):
                return "x"  # inserted late, after its notification had ended
            if self.licence or not s[ACC + n]:
                self.accept(s, n, by_row=True)
        return ""

    def defer(self, s: Draft, n: int, counted: bool = True, row: bool = False) -> None:
        """Move the licence to :deferred (or, of a row, to the row) and count it in waiting."""
        if counted:
            s[WAITING] += not s[COUNTED + n]
            s[DENIED + n] = s[COUNTED + n] = 1
        s[DEFERRED] = s[DEFERRED].replace(str(n), "") if row else s[DEFERRED] + str(n)
        s[PLACE + n] = "" if not self.licence else "H" if row else "D"
        if "held" in self.rules:
            s[MARK + n] = "h"

    def blocked(self, s: Draft, n: int, row: bool = False) -> bool:
        """A lower seq waits."""
        if n in self.critical:
            return False
        if "order_by_seq" in self.rules:
            return bool(s[COUNTED + 1 - n] and seq(s, 1 - n) < seq(s, n))
        return bool(s[WAITING] > 0 and not row)

    def book(self, s: Draft, n: int, what: str, row: bool = False) -> None:
        """Book one end; the caller has found the licence."""
        if s[END + n]:
            raise Violation(f"{'I1' if what == 'delivered' else 'I3'}: {n} had ended, and is now {what}")
        if what == "delivered" and s[BEHIND + n] and n not in self.critical:
            raise Violation(f"I4: {n}, accepted after the other was denied, overtakes it")
        s[WAITING] -= s[COUNTED + n]
        if s[WAITING] < 0:
            raise Violation("I5: waiting is negative")
        s[COUNTED + n] = s[DENIED + n] = s[BEHIND + 1 - n] = 0
        s[DEFERRED] = s[DEFERRED].replace(str(n), "")
        s[END + n], s[PLACE + n], s[MARK + n] = "e", "", "t" if self.licence or not row else "n"
        if what == "parked":  # keeps its licence until a person decides
            s[END + n], s[PLACE + n], s[MARK + n] = "p", "H" * self.licence, "n" * (not self.licence)
            if not row:
                self.defer(s, n, counted=False)

    def worker_script(self, s: Draft, n: int, what: str) -> None:
        """deny, delivered, expired or parked. Afterwards the worker acks, whatever the reply."""
        if self.licensed(s, n):
            if what == "deny" or (what == "delivered" and self.blocked(s, n)):
                self.defer(s, n)
            else:
                self.book(s, n, what)

    def row_script(self, s: Draft, n: int, what: str) -> str:
        """deny, delivered, expired or parked. Reply: x delete the row, p park it, k keep it for later."""
        gone = self.row_licensed(s, n)
        if gone:
            return gone
        if what == "deny" or (what == "delivered" and self.blocked(s, n, row=True)):
            s[DENIED + n] = 1
            if "row_denial" in self.rules:
                self.defer(s, n, row=True)
            return "k"
        self.book(s, n, what, row=True)
        return "p" if what == "parked" else "x"

    def digest_script(self, s: Draft, batch: Sequence[int]) -> str:
        """The newest member that has not ended is delivered for all; those that have are skipped."""
        plan = {n: self.row_licensed(s, n) for n in batch}
        live = [n for n in batch if not plan[n]]
        if live and live[-1] != batch[-1] and "carrier" not in self.rules:
            raise Violation(f"I2: {live[-1]} is digested into a notification that had already ended")
        for n in live:
            plan[n] = "x"
            self.book(s, n, "delivered" if n == live[-1] else "digested", row=True)
        return "".join(str(n) + plan[n] for n in batch)
