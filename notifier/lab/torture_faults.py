"""Does what the plan says, and undoes it."""

from __future__ import annotations

import contextlib
import random
import signal
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

import psutil

from notifier.embedded.server import Server
from notifier.lab.member import Member
from notifier.lab.proxy import Proxy
from notifier.lab.stack import Stack
from notifier.lab.torture_account import Allowance
from notifier.lab.torture_plan import LOSE, REPEAT, Fault
from notifier.lab.torture_repeater import Repeater

TERM_S = 20.0  # what a worker gets to end in good order
SEEN_S = 1.5  # after a server is back, and before that, until every process has noticed


class Guarded(NamedTuple):
    """A server and the way to it."""

    server: Server
    proxy: Proxy


Undo = Callable[[], None]


class Faults:
    """Call everything from the thread that started the servers and the stack.

    `down` names what is down on purpose. `new_processes` are times (us) at which worker processes were replaced;
    `outages` are spans in which the limiter could not be reached.
    """

    def __init__(
        self, servers: Mapping[str, Guarded], stack: Stack, repeater: Repeater, concurrency: int, seed: int
    ) -> None:
        self.down: set[str] = set()
        self.new_processes: list[float] = []
        self.outages: list[tuple[float, float]] = []
        self._servers, self._stack, self._repeater, self._concurrency = servers, stack, repeater, concurrency
        self._rng = random.Random(seed)  # noqa: S311

    def do(self, fault: Fault) -> Undo | None:
        """Do it. Returns how to undo it, if it lasts."""
        if fault.target in self._servers:
            return self._to_server(fault.target, fault.action)
        return self._to_process(self._stack.members[fault.target], fault.action)

    def allowances(self, limiter_tokens_a_s: float, grace_s: float) -> list[Allowance]:
        """What the promise states beyond the bound: a new process lends anew; grace while Redis is away."""
        replaced = [Allowance(at_us, at_us, 1) for at_us in self.new_processes]
        return replaced + [
            Allowance(from_us, to_us, limiter_tokens_a_s * min(grace_s, (to_us - from_us) / 1e6))
            for from_us, to_us in self.outages
        ]

    # ---- servers

    def _to_server(self, name: str, action: str) -> Undo | None:
        if action == REPEAT.action:
            caught = self._repeater.catch()
            return lambda: self._repeater.repeat(caught)
        if action == LOSE.action:
            self._repeater.lose()
            return None
        server, proxy = self._servers[name]
        from_s = time.time()
        if action == "cut the connections of":
            proxy.cut()
            self._noticed(name, from_s)
            return None
        if action == "restart":
            proxy.refuse()
            server.restart()
            proxy.release()
            self._noticed(name, from_s)
            return None
        self.down.add(name)
        if action == "kill":
            proxy.refuse()
            server.kill()
        elif action == "freeze":
            server.freeze()
        else:
            proxy.hold(replies_only="replies" in action)

        def undo() -> None:
            if action == "kill":
                server.restart()
            elif action == "freeze":
                server.thaw()
            if "replies" in action:
                proxy.cut()  # what was held back is lost
            proxy.release()
            self.down.discard(name)
            self._noticed(name, from_s)

        return undo

    def _noticed(self, name: str, from_s: float) -> None:
        if name == "limiter":
            self.outages.append(((from_s - SEEN_S) * 1e6, (time.time() + SEEN_S) * 1e6))

    # ---- processes

    def _to_process(self, member: Member, action: str) -> Undo | None:
        if "child" in action:
            return self._to_child(member, action)
        if action == "freeze":
            member.freeze()
            return member.thaw
        self._replaced(member, self._concurrency)
        if action == "freeze, then kill":
            member.freeze()

            def kill() -> None:
                member.kill()
                member.start()

            return kill
        if action == "restart":
            member.terminate()
            member.wait(TERM_S)
            member.start()
            return None
        self.down.add(member.name)
        member.kill()

        def undo() -> None:
            member.start()
            self.down.discard(member.name)

        return undo

    def _to_child(self, member: Member, action: str) -> Undo | None:
        children = []
        with contextlib.suppress(psutil.NoSuchProcess):
            children = psutil.Process(member.pid).children()
        if not children:
            return None
        child = self._rng.choice(sorted(children, key=lambda process: process.pid))
        with contextlib.suppress(psutil.NoSuchProcess):
            if action.startswith("kill"):
                self._replaced(member, 1)
                child.kill()
                return None
            child.send_signal(signal.SIGSTOP)

        def undo() -> None:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.send_signal(signal.SIGCONT)

        return undo

    def _replaced(self, member: Member, processes: int) -> None:
        if member.name.startswith("worker"):
            self.new_processes += [time.time() * 1e6] * processes
