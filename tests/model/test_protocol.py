"""The protocol, explored: every rule that the scripts keep is needed, and together they are enough.

Where the protocol is to change, change it here first, then in lua/. `python -m tests.model.explore` explores more.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.model.explore import explore
from tests.model.protocol import Model, Steps
from tests.model.scripts import RULES
from tests.model.state import DEFERRED, MARK, PLACE, REPLAYERS, ROW, UNL, WAITING, Draft, State, change

pytestmark = pytest.mark.slow

QUICK: dict[str, dict[str, Any]] = {
    "two, 1, ledger down": {"budget": 1, "ledger_down": True},
    "two, 1, second critical": {"budget": 1, "critical": (1,)},
    "two, 1, first scheduled": {"budget": 1, "scheduled": (0,)},
    "two, 0, first kills its process": {"budget": 0, "toxic": (0,)},
    "one, 3, ledger down, probes": {"one": True, "budget": 3, "ledger_down": True, "probe": True},
    "one, 3, Redis loses its tail": {"one": True, "budget": 3, "tail": True, "poison": False},
    "two, 1, first of the outbox": {"budget": 1, "outbox": (0,)},
    "two, 0, both of the outbox": {"budget": 0, "outbox": (0, 1)},
    "one, 3, of the outbox": {"one": True, "budget": 3, "outbox": (0,)},
    "one, 2, of the outbox, Redis loses all": {
        "one": True,
        "budget": 2,
        "outbox": (0,),
        "flush": True,
        "poison": False,
    },
    "one, 3, Redis loses all": {"one": True, "budget": 3, "flush": True, "poison": False},
}


@pytest.mark.parametrize("scenario", QUICK.values(), ids=QUICK)
def test_with_all_rules_every_state_leads_to_a_good_end(scenario: dict[str, Any]) -> None:
    found = explore(Model(**scenario))
    assert not found.violation, "\n".join([found.violation, *found.trace])
    assert found.states > 1_000


CALM = {"poison": False, "cancel": False}
WITHOUT: list[tuple[str, str, dict[str, Any]]] = [
    ("licence", "", {"one": True, "budget": 1, "repeats": False, "cancel": False, "redis_away": False, "replayers": 1}),
    ("licence", "", {"one": True, "budget": 0, "scheduled": (0,)}),
    ("licence", "held", {"one": True, "budget": 0, "cancel": False, "redis_away": False}),
    ("licence", "held", {"one": True, "budget": 1, "cancel": False, "redis_away": False, "replayers": 1}),
    ("waiting_kept", "", {"one": True, "budget": 0}),
    ("order_by_seq", "", {"budget": 0}),
    ("order_by_seq", "claim_order", {"budget": 2, "workers": 1, "replayers": 1, **CALM}),
    ("row_denial", "", {"budget": 0, "scheduled": (0,)}),
    ("stale_row", "", {"one": True, "budget": 0}),
    ("epoch", "", {"one": True, "budget": 1, "flush": True, "replayers": 1, **CALM}),
    ("orphan_mark", "", {"one": True, "budget": 2, "flush": True, **CALM}),
    ("orphan_mark", "", {"one": True, "budget": 0, "outbox": (0,), **CALM}),
    ("epoch", "", {"one": True, "budget": 1, "outbox": (0,), **CALM}),
    ("skip_parked", "", {"one": True, "budget": 2}),
    ("carrier", "", {"budget": 2, "workers": 1, "redis_away": False}),
    ("late_life", "", {"one": True, "budget": 1, "ledger_down": True}),
    ("reconcile", "", {"one": True, "budget": 1, "tail": True, "poison": False}),
    ("probe_again", "", {"one": True, "budget": 2, "probe": True}),
    ("row_starts", "", {"one": True, "budget": 0, "toxic": (0,), "redis_away": False}),
]


@pytest.mark.parametrize(("out", "instead", "scenario"), WITHOUT, ids=[f"{out}-{put}" for out, put, _ in WITHOUT])
def test_each_rule_left_out_breaks_something(out: str, instead: str, scenario: dict[str, Any]) -> None:
    assert explore(Model(**scenario, rules=RULES - {out} | {instead})).violation


class NoLicenceAtDeliver(Model):
    def licensed(self, s: Draft, n: int) -> bool:
        return True


class DenyWithoutLicence(Model):
    def worker_script(self, s: Draft, n: int, what: str) -> None:
        if what == "deny" and s[PLACE + n] != "Q":
            self.defer(s, n)
        else:
            super().worker_script(s, n, what)


class SettleBeforeInsert(Model):
    def replayer_steps(self, s: State, replayer: str, faults: bool) -> Steps:
        items = [int(n) for n in replayer[1:]] if replayer[:1] in ("S", "I") else []
        if replayer[:1] == "S":
            t = change(s, {}, REPLAYERS, replayer, "I" + replayer[1:])
            for n in items:
                t[PLACE + n] = "H" if t[PLACE + n] == "D" else t[PLACE + n]
                t[DEFERRED] = t[DEFERRED].replace(str(n), "")
            yield "settle first", 0, t
        elif replayer[:1] == "I":
            yield "insert", 0, change(s, {ROW + n: s[ROW + n] or "f" for n in items}, REPLAYERS, replayer, "")
        else:
            yield from super().replayer_steps(s, replayer, faults)


class NoMark(Model):
    def book(self, s: Draft, n: int, what: str, row: bool = False) -> None:
        super().book(s, n, what, row)
        s[MARK + n] = ""


class DeleteBeforeBooking(Model):
    def replayer_steps(self, s: State, replayer: str, faults: bool) -> Steps:
        if replayer[:1] == "C" and len(replayer) == 2:
            yield "delete first", 0, change(s, {ROW + int(replayer[1]): ""}, REPLAYERS, replayer, "D" + replayer[1])
        elif replayer[:1] == "D":
            t = change(s)
            self.row_script(t, int(replayer[1]), "delivered")
            yield "deliver", 0, change(t, {}, REPLAYERS, replayer, "")
            if faults:
                yield "crash", 1, change(s, {}, REPLAYERS, replayer, "")
        else:
            yield from super().replayer_steps(s, replayer, faults)


class ParkDropsLicence(Model):
    def book(self, s: Draft, n: int, what: str, row: bool = False) -> None:
        super().book(s, n, what, row)
        if what == "parked":
            s[PLACE + n] = ""


class NoSweep(Model):
    def producer_broker_time(self, s: State, n: int, faults: bool) -> Steps:
        for step in super().producer_broker_time(s, n, faults):
            if "republished" not in step[0]:
                yield step


class NeverLeavesWaiting(Model):
    def book(self, s: Draft, n: int, what: str, row: bool = False) -> None:
        waiting = s[WAITING]
        super().book(s, n, what, row)
        s[WAITING] = waiting


BROKEN = [
    NoLicenceAtDeliver, DenyWithoutLicence, SettleBeforeInsert, NoMark, DeleteBeforeBooking, ParkDropsLicence, NoSweep,
    NeverLeavesWaiting,
]  # fmt: skip


@pytest.mark.parametrize("broken", BROKEN, ids=[broken.__name__ for broken in BROKEN])
def test_the_checker_notices_what_is_broken(broken: type[Model]) -> None:
    assert explore(broken(2, one=True)).violation


class LostReplyTakenForLedgerDown(Model):
    """Flags a message whose accept may have run as sent without the ledger, so that its age does not matter."""

    def licensed(self, s: Draft, n: int) -> bool:
        if s[UNL + n] == 2 and not s[PLACE + n] and not s[MARK + n]:
            self.accept(s, n)
            return bool(s[PLACE + n] == "Q")
        return super().licensed(s, n)

    def producer_broker_time(self, s: State, n: int, faults: bool) -> Steps:
        for name, cost, t in super().producer_broker_time(s, n, faults):
            if "reply lost" in name:
                t[UNL + n] = 2
            yield name, cost, t


def test_a_lost_reply_is_not_ledger_down() -> None:
    assert explore(LostReplyTakenForLedgerDown(2, one=True, ledger_down=True)).violation.startswith("I3")
