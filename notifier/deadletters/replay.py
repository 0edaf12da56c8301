"""Replay: what waits goes out when its time has come.

`:deferred` -> rows (spill), due rows -> claimed -> limiter -> delivered, kept or parked -> let go. Any number of
replayers may run at once, and any of them may die anywhere: the ledger's licence decides what still counts, and a claim
runs out. No row is locked while Redis or a channel is waited for.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from notifier import metrics, tracing
from notifier.deadletters.claimed import Calls, Claimed
from notifier.deadletters.crowd import Crowd
from notifier.deadletters.digest import FOLDING
from notifier.deadletters.manage import Manager
from notifier.deadletters.schema import Row
from notifier.deadletters.store import BATCH, Store
from notifier.errors import NotifierError
from notifier.licence import Deferred
from notifier.notification import Identity
from notifier.settings import Settings

if TYPE_CHECKING:
    from notifier.ledger import Ledger
    from notifier.limits.limiter import Limiter

log = logging.getLogger(__name__)

RETIRE_EVERY_S = 60.0
BUDGET_S = 0.8  # of beat's period of one second


class ReplayReport(NamedTuple):
    """What one run did, in rows. `replayed` went out, `denied` wait on, `paced` got a later time unclaimed."""

    spilled: int = 0
    claimed: int = 0
    replayed: int = 0
    denied: int = 0
    ended: int = 0
    parked: int = 0
    paced: int = 0

    def __add__(self, other: object) -> ReplayReport:
        if not isinstance(other, ReplayReport):
            return NotImplemented
        return ReplayReport(*(a + b for a, b in zip(self, other, strict=True)))


class Replay:
    """Spill and replay. Raises StateUnavailable and DatabaseUnavailable; whatever it was at stays safe where it is."""

    def __init__(
        self,
        store: Store,
        ledger: Ledger,
        limiter: Limiter,
        settings: Settings,
        *,
        budget_s: float = BUDGET_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store, self._ledger, self._limiter, self._settings = store, ledger, limiter, settings
        self._crowd = Crowd(store, ledger, settings.max_waiting)
        self._manager, self._retired_s = Manager(store, ledger), float("-inf")
        self._budget_s, self._clock = budget_s, clock

    def run(self) -> ReplayReport:
        """Spill, then claim and send until nothing is due or the time is up.

        Each part gets its share: a flood that takes long to spill must not keep from going what is due.
        """
        started_s, calls = self._clock(), Calls()
        report = ReplayReport(spilled=self.spill(self._budget_s / 2))
        self._retire()
        alone_until_s = self._clock() + self._budget_s / 4
        while self._clock() < alone_until_s and (rows := self._store.claim_ran_out()):
            if rows[0].digest_id.startswith(FOLDING):
                self._crowd.take_up(rows)
            else:
                report += self._send(rows, calls)[0]
        while rows := self._store.claim(self._ledger.now_us()):
            done, go_on = self._send(rows, calls)
            report += done
            if not go_on or self._clock() - started_s >= self._budget_s:
                break
        return report

    def run_ids(self, identities: Sequence[Identity]) -> ReplayReport:
        """Send exactly these, as far as they wait, whether due or not; the limiter is asked as always."""
        report, calls = ReplayReport(spilled=self.spill()), Calls()
        for start in range(0, len(identities), BATCH):
            if rows := self._store.claim_these(identities[start : start + BATCH]):
                done, go_on = self._send(rows, calls)
                report += done
                if not go_on:
                    break
        return report

    def spill(self, budget_s: float = BUDGET_S) -> int:
        """Move `:deferred` into rows until it is empty or the time is up. Returns the number of rows."""
        until_s, spilled = self._clock() + budget_s, 0
        while self._clock() < until_s and (items := self._ledger.peek_deferred(BATCH)):
            refused = set(self._store.insert(items))
            if refused:
                self._drop(refused)
            # Only now that the rows are committed.
            self._ledger.settle_deferred([i for i in map(_identity, items) if i not in refused])
            self._crowd.thin(items)
            spilled += len(items) - len(refused)
            if len(items) < BATCH:
                break
        return spilled

    def _retire(self) -> None:
        """Once a minute: nobody came for these parked rows."""
        if self._clock() - self._retired_s >= RETIRE_EVERY_S:
            self._retired_s = self._clock()
            if retired := self._manager.retire(self._settings.parked_retention):
                metrics.degraded("parked_retired", f"{retired} parked notifications dropped: nobody came for them")

    def _drop(self, refused: set[Identity]) -> None:
        """What no row can hold would hold up all that comes after it."""
        metrics.degraded("dead_letter_refused", f"PostgreSQL refuses {len(refused)} notifications as rows: dropped")
        self._ledger.drop(list(refused), "row_refused", parked=True)

    @tracing.timed
    def _send(self, rows: Sequence[Row], calls: Calls) -> tuple[ReplayReport, bool]:
        """One claimed batch, from the limiter to the rows let go. False: the limiter is down, more would be denied."""
        batch = Claimed(self._store, self._ledger, self._limiter, self._settings, calls)
        try:
            batch.process(rows)
        except NotifierError:
            self._store.finish(batch.ended, batch.parked, [*batch.kept, *batch.unsettled(rows)])
            raise
        except BaseException:
            # A time limit, a bug: what is settled goes; the rest stays claimed, so that poison is counted.
            self._store.finish(batch.ended, batch.parked, batch.kept)
            raise
        self._store.finish(batch.ended, batch.parked, batch.kept)
        paced = self._store.pace(list(batch.paces.values()), self._ledger.estimated_us())
        report = ReplayReport(
            claimed=len(rows),
            replayed=batch.replayed,
            denied=batch.denied,
            ended=len(batch.ended),
            parked=len(batch.parked),
            paced=paced,
        )
        log.debug("replay: %s", report)
        return report, not batch.limiter_down


def _identity(item: Deferred) -> Identity:
    return item.notification.identity
