"""Runs the checks side by side, each with a time of its own: a server that does not answer hides no other's finding."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from notifier.doctor.finding import Check, Finding, problem, words

LOOK_EVERY_S = 0.02


class Named(NamedTuple):
    """A check, the name it has where it says nothing itself, and how long it may take."""

    name: str
    run: Check
    timeout_s: float = 6.0


def examine(checks: Sequence[Named], tick: Callable[[], None] = lambda: None) -> list[Finding]:
    """All findings, in the order of the checks, after the longest timeout of them at most. Raises what `tick` raises.

    `tick` is called many times a second while it waits.
    """
    running = [_Running(check) for check in checks]
    began_s = time.monotonic()
    while True:
        late_s = time.monotonic() - began_s
        if not any(each.thread.is_alive() and late_s < each.check.timeout_s for each in running):
            return [finding for each in running for finding in each.result()]
        tick()
        time.sleep(LOOK_EVERY_S)


class _Running:
    """A check in a thread, which is left behind where a server never answers: it is a daemon."""

    def __init__(self, check: Named) -> None:
        self.check = check
        self._found: list[Finding] = []
        self.thread = threading.Thread(target=self._run, name=f"doctor-{check.name}", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            for finding in self.check.run():
                self._found.append(finding)
        except Exception as error:  # whatever a client raises: the others are still looked at
            self._found.append(
                problem(self.check.name, f"cannot be looked at: {words(error)}", "it may be broken", "see the error")
            )

    def result(self) -> list[Finding]:
        """What it has found so far."""
        found = list(self._found)
        if self.thread.is_alive():
            found.append(
                problem(
                    self.check.name,
                    f"no answer within {self.check.timeout_s:g} s",
                    "whoever needs it waits as long, or goes on without it",
                    "is the server overloaded, frozen, or behind a firewall that drops packets?",
                )
            )
        return found
