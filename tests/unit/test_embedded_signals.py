"""A request to end is never lost, wherever Python is when it comes."""

from __future__ import annotations

import os
import signal
import sys

import pytest

from notifier.cli.signals import ended_by_signals


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_each_signal_interrupts_and_the_handlers_are_put_back(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt), ended_by_signals():
        os.kill(os.getpid(), number)
    assert signal.getsignal(number) is before


def test_one_that_python_throws_away_is_found_at_the_next_look(monkeypatch: pytest.MonkeyPatch) -> None:
    thrown_away: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda raised: thrown_away.append(raised.exc_type))

    class Closing:
        def __del__(self) -> None:
            os.kill(os.getpid(), signal.SIGINT)

    with ended_by_signals() as asked:
        asked.check()
        Closing()
        assert thrown_away == [KeyboardInterrupt]
        with pytest.raises(KeyboardInterrupt):
            asked.check()
