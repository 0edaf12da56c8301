"""The protocol as a state machine: who may do what next, and what may go wrong.

Scripts and PostgreSQL's transactions are single steps; between two steps every process may pause for as long as it
likes. Disturbances come from a budget: crash; message lost, repeated, restored; reply lost; ledger down; state Redis
away; claim running out under a living replayer; probe lost; cancel; Redis losing its tail or everything. Time is
abstract: once an identity has no licence its life may be over at any moment (its mark expires, its copies are old).
Whether a verdict, a start count or a deadline falls this way or that is left open, so any limit, number of starts and
ttl is covered.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.model.scripts import Scripts
from tests.model.state import (
    ACC,
    COUNTED,
    DEFERRED,
    EMPTY_REDIS,
    END,
    FRESH,
    LOSSY,
    MARK,
    OLD,
    ORPHAN,
    PLACE,
    PROBE,
    PROD,
    REDEL,
    REDIS,
    REPLAYERS,
    ROW,
    SNAP,
    UNL,
    WAITING,
    WORKERS,
    Draft,
    State,
    Violation,
    change,
    seq,
)

Steps = Iterator[tuple[str, int, Draft]]  # label, disturbances (0 or 1), successor


class Model(Scripts):
    """All steps from a state, and what must hold in every state."""

    def steps(self, s: State, faults: bool) -> Steps:
        """Every step; with `faults` every disturbance too."""
        for n in (0, 1):
            yield from self.producer_broker_time(s, n, faults)
        for worker in set(s[WORKERS]) - {""}:
            yield from self.worker_steps(s, worker, faults)
        for replayer in set(s[REPLAYERS]):
            yield from self.replayer_steps(s, replayer, faults)
        yield from self.rare_steps(s, faults)

    def producer_broker_time(self, s: State, n: int, faults: bool) -> Steps:
        """Accept, publish, take, lose, repeat; and the passing of time."""
        safe = s[UNL + n] and not s[ACC + n]  # without the ledger: the broker's own guarantee, no loss
        if s[PROD + n] == 0 and n in self.outbox and faults:
            yield f"the application dies before it accepts {n}, or no server is there", 1, change(s, {PROD + n: 2})
        if s[PROD + n] == 0 and n in self.outbox and self.known(list(s), n):
            yield f"the replay was faster than accept {n}", 0, change(s, {PROD + n: 2})
        elif s[PROD + n] == 0 and (n == 0 or s[PROD]):
            t = change(s)
            self.accept(t, n)
            t[PROD + n] = 1 if t[PLACE + n] == "Q" else 2
            yield f"accept {n}", 0, t
            if faults:
                lost = {PROD + n: 2, FRESH + n: int(n not in self.outbox)}
                yield f"accept {n} runs, reply lost, published all the same", 1, change(t, lost)
            if faults and self.ledger_down and n not in self.outbox:
                without = {PROD + n: 2, UNL + n: 1, FRESH + n: 1}
                yield f"ledger down: {n} published without it", 1, change(s, without)
        if s[PROD + n] == 1:
            yield f"publish {n}", 0, change(s, {PROD + n: 2, FRESH + n: s[FRESH + n] + 1})
            if faults:
                yield f"publish {n} fails or is lost", 1, change(s, {PROD + n: 2})
        if s[PLACE + n] == "Q" and not s[FRESH + n] + s[REDEL + n] and str(n) not in "".join(s[WORKERS]):
            slow = s[PROD + n] == 1  # the producer has not published yet: frozen for seconds
            if (s[PROBE] == "q" or not self.probe) and (faults or not slow):
                yield f"a probe runs: {n} is republished", int(slow), change(s, {REDEL + n: 1, PROBE: ""})
        yield from self.broker_steps(s, n, faults, safe)
        may_age = s[MARK + n] == "t" or not (s[MARK + n] or s[OLD + n])
        if s[MARK + n] and s[ORPHAN + n] and s[ROW + n] and "orphan_mark" in self.rules:
            may_age = False  # the mark of a row of another epoch outlives the row
        if not s[PLACE + n] and s[PROD + n] and may_age and not (safe and "late_life" in self.rules):
            yield f"life of {n} over: mark gone, copies old", 0, change(s, {OLD + n: 1, MARK + n: ""})
        if s[ROW + n] == "s":
            yield f"row {n} falls due", 0, change(s, {ROW + n: "f"})
        if s[ROW + n] in ("c", "C"):
            alive = any(r[:1] in ("C", "B") and str(n) in r for r in s[REPLAYERS])
            if faults or not alive:
                under = " under a frozen replayer" * alive
                yield f"claim of {n} runs out{under}", int(alive), change(s, {ROW + n: "F"})
        if s[PLACE + n] == "H" and not s[ROW + n] and not s[END + n] and "reconcile" in self.rules:
            t = change(s)
            self.book(t, n, "dropped")
            yield f"reconcile: no row of {n}, booked as dropped", 0, t

    def broker_steps(self, s: State, n: int, faults: bool, safe: bool) -> Steps:
        """What becomes of the copies in the broker."""
        for kind in (FRESH, REDEL):
            if not s[kind + n]:
                continue
            fewer = {kind + n: s[kind + n] - 1}
            if "" in s[WORKERS]:
                yield f"a worker takes {n}", 0, change(s, fewer, WORKERS, "", f"R{n}")
                if kind == REDEL and self.poison:  # begin: starts is raised first; any count may be the last
                    t = change(s, fewer)
                    self.worker_script(t, n, "parked")
                    yield f"a worker takes {n}, it has started too often", 0, t
            if faults:
                yield f"broker repeats {n}", 1, change(s, {REDEL + n: s[REDEL + n] + 1})
            if faults and not safe:
                yield f"broker loses {n}", 1, change(s, fewer)

    def worker_steps(self, s: State, worker: str, faults: bool) -> Steps:
        """What a worker that holds a message does, and how it may fail to."""
        phase, n = worker[0], int(worker[1])
        restored = {REDEL + n: s[REDEL + n] + 1}
        if phase == "W":
            yield f"worker inserts row {n} itself", 0, change(s, {ROW + n: s[ROW + n] or "f"}, WORKERS, worker, "")
        for what in self.verdicts(s, n) if phase == "R" else ():
            t = change(s)
            self.worker_script(t, n, what)
            yield f"worker: {what} {n}, ack", 0, change(t, {}, WORKERS, worker, "")
            if faults:
                yield f"worker: {what} {n}, crash before the ack", 1, change(t, restored, WORKERS, worker, "")
            if faults and self.redis_away:
                yield f"worker: {what} {n} runs, reply lost", 1, change(t, {}, WORKERS, worker, f"W{n}")
        if faults or n in self.toxic:
            crashed = change(s, restored, WORKERS, worker, "")
            yield f"worker with {n} crashes, message restored", int(n not in self.toxic), crashed
        if faults:
            yield f"worker with {n} frozen, message restored", 1, change(s, restored)
            if not s[UNL + n] or s[ACC + n]:
                yield f"worker with {n} crashes, message gone", 1, change(s, {}, WORKERS, worker, "")
            if self.redis_away:
                yield f"worker with {n}: state Redis is away", 1, change(s, {}, WORKERS, worker, f"W{n}")

    def replayer_steps(self, s: State, replayer: str, faults: bool) -> Steps:
        """Spill, claim, script, let go; and a crash between any two."""
        phase, items = replayer[:1], replayer[1:]
        if phase == "":
            for size in range(1, len(s[DEFERRED]) + 1):  # read in list order, not popped
                read = s[DEFERRED][:size]
                yield f"spill reads {read}", 0, change(s, {}, REPLAYERS, replayer, "S" + read)
            for batch in self.claimable(s):
                claim = {ROW + int(n): "c" if s[ROW + int(n)] == "f" else "C" for n in batch}
                yield f"replay claims {batch}", 0, change(s, claim, REPLAYERS, replayer, "C" + batch)
        elif phase in "Ss":
            yield f"spill inserts {items}", 0, self.inserted(s, replayer)
        elif phase == "I":
            t = change(s, {}, REPLAYERS, replayer, "")
            for n in map(int, items):
                t[PLACE + n] = "H" if t[PLACE + n] == "D" else t[PLACE + n]
                t[DEFERRED] = t[DEFERRED].replace(str(n), "")
            yield f"spill settles {items}", 0, t
        elif phase == "C":
            for t, plan in self.batch(change(s), items):
                yield f"replay script: {plan}", 0, change(t, {}, REPLAYERS, replayer, "B" + plan)
            if len(items) == 2 and not self.toxic:
                t = change(s)
                plan = self.digest_script(t, [int(n) for n in items])
                yield f"replay script, as a digest: {plan}", 0, change(t, {}, REPLAYERS, replayer, "B" + plan)
        elif phase == "B":  # one transaction: DELETE, park, or release
            todo = {int(n): do for n, do in zip(items[::2], items[1::2], strict=True)}
            rows = {
                ROW + n: {"x": "", "p": "p", "k": "f"}[do]
                for n, do in todo.items()
                if do == "x" or s[ROW + n] not in ("", "p")
            } | {ORPHAN + n: 0 for n, do in todo.items() if do != "k" and s[END + n]}
            ended = "".join(str(n) for n in todo if todo[n] == "x")
            then = "T" + ended if ended and not self.licence else ""
            yield f"replay: rows {items}", 0, change(s, rows, REPLAYERS, replayer, then)
        elif phase == "T":  # without licences: the mark gets its TTL after the DELETE
            marks = {MARK + int(n): "t" for n in items if s[MARK + int(n)] == "n"}
            yield f"replay gives the mark of {items} a TTL", 0, change(s, marks, REPLAYERS, replayer, "")
        poisoned = phase == "C" and any(int(n) in self.toxic for n in items)
        if phase and (faults or poisoned):
            yield f"replayer {replayer} crashes", int(not poisoned), change(s, {}, REPLAYERS, replayer, "")

    def inserted(self, s: State, replayer: str) -> Draft:
        """INSERT ON CONFLICT DO NOTHING of what was read from :deferred; rows of the outbox become what was read."""
        t = change(s, {}, REPLAYERS, replayer, "I" + replayer[1:])
        for n in map(int, replayer[1:]):
            if not t[ROW + n]:
                scheduled = n in self.scheduled and not s[COUNTED + n]
                t[ROW + n] = "p" if s[END + n] == "p" else "s" if scheduled else "f"
                t[ORPHAN + n] = int(replayer[0] == "s" and not s[END + n])
            elif n in self.outbox and t[ORPHAN + n] and t[ROW + n] != "p":
                t[ORPHAN + n] = int(replayer[0] == "s" and not s[END + n])
                t[ROW + n] = "p" if s[END + n] == "p" else t[ROW + n]
        return t

    def verdicts(self, s: State | Draft, n: int) -> tuple[str, ...]:
        """A toxic one kills its process before it can be delivered. Expired differs only where order blocks."""
        if n in self.toxic:
            return ("deny",)
        return ("deny", "delivered") + ("expired",) * self.blocked(list(s), n)

    def claimable(self, s: State) -> Iterator[str]:
        """Batches of free rows."""
        free = sorted((n for n in (0, 1) if s[ROW + n] in ("f", "F")), key=lambda n: seq(s, n))
        for n in free:
            earlier = s[ROW + 1 - n] in ("f", "F", "c", "C") and seq(s, 1 - n) < seq(s, n)
            if not earlier or "claim_order" not in self.rules:
                yield str(n)
        if len(free) == 2:
            yield "".join(map(str, free))

    def batch(self, s: Draft, items: str, plan: str = "", denied: bool = False) -> Iterator[tuple[Draft, str]]:
        """Every mix of verdicts over a claimed batch; one script call."""
        if not items:
            yield s, plan
            return
        n = int(items[0])
        may_park = self.poison and s[ROW + n] == "C" and "row_starts" in self.rules
        for what in ("parked",) * may_park + self.verdicts(s, n):
            if not (what == "delivered" and denied and "claim_order" in self.rules):
                t = change(s)
                reply = self.row_script(t, n, what)
                yield from self.batch(t, items[1:], plan + items[0] + reply, denied or what == "deny")

    def rare_steps(self, s: State, faults: bool) -> Steps:
        """Probes, cancel, and Redis losing what it had."""
        if self.probe and s[PROBE] != "q" and (s[PROBE] == "" or "probe_again" in self.rules):
            yield "beat sends a probe", 0, change(s, {PROBE: "q"})
        if "waiting_kept" not in self.rules and s[WAITING]:
            yield "the key waiting expires", 0, change(s, {WAITING: 0})
        if not faults:
            return
        if s[PROBE] == "q":
            yield "broker loses the probe", 1, change(s, {PROBE: "lost"})
        if self.cancel and not s[END] and (s[PLACE] or "0" in s[DEFERRED] or s[ROW]):
            t = change(s)
            if s[PLACE] or not self.row_licensed(t, 0):  # a row that is not accepted yet is, in the same step
                self.book(t, 0, "cancelled", row=bool(s[ROW]))
                yield "cancel 0", 1, t
        if s[SNAP] is not None and s[SNAP] != s[REDIS]:
            t = change(s, {SNAP: None, LOSSY: 1})
            t[REDIS] = s[SNAP]
            yield "state Redis loses its tail", 1, t
        if self.flush and not s[LOSSY]:
            t = change(s, {LOSSY: 1})
            t[REDIS] = EMPTY_REDIS
            t[ORPHAN : ORPHAN + 2] = [int(s[ROW + n] not in ("", "p") and not s[END + n]) for n in (0, 1)]
            t[REPLAYERS] = tuple(sorted(r.replace("S", "s") for r in s[REPLAYERS]))
            yield "state Redis loses everything", 1, t

    def invariants(self, s: State) -> None:
        """Raises Violation where one does not hold."""
        for n in (0, 1):
            waits = str(n) in s[DEFERRED]
            if s[ACC + n] and not s[END + n] and not s[LOSSY]:
                if not (s[PLACE + n] == "Q" or waits or s[ROW + n]):
                    raise Violation(f"I2: {n} was accepted and nobody holds it")
                if self.repeats and not (s[PLACE + n] or s[MARK + n] or waits):
                    raise Violation(f"I3: a repeat of id {n} would be accepted while its row waits")
            copies = s[FRESH + n] + s[REDEL + n]
            if s[UNL + n] and not (s[ACC + n] or s[ROW + n] or copies or str(n) in "".join(s[WORKERS])):
                raise Violation(f"I2: {n}, sent without the ledger, was dropped")

    def good(self, s: State) -> bool:
        """Quiet, everything ended once, nothing left behind."""
        quiet = not (s[WAITING] or s[DEFERRED] or any(s[WORKERS]) or any(s[REPLAYERS]))
        for n in (0, 1):
            parked = s[END + n] == "p"  # lost is excused only if its accept is in what Redis lost
            quiet = (
                quiet
                and s[PROD + n] == 2
                and not (s[FRESH + n] or s[REDEL + n] or s[ORPHAN + n])
                and s[ROW + n] == "p" * parked
                and s[PLACE + n] == "H" * (parked and self.licence)
                and (s[MARK + n] != "n" or parked)
                and bool(s[END + n] or (s[LOSSY] and not s[ACC + n]))
            )
        return quiet
