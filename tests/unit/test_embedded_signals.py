"""A request to end is never lost, wherever Python is when it comes."""

from __future__ import annotations

import os
import signal
import sys

import pytest

from notifier.cli.signals import asked_by_signals, ended_by_signals


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_each_signal_interrupts_and_the_handlers_are_put_back(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt), ended_by_signals():
        os.kill(os.getpid(), number)
    assert signal.getsignal(number) is before


def test_one_that_comes_where_python_would_throw_it_away_is_found_at_the_next_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    thrown_away: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", thrown_away.append)

    class Closing:
        def __del__(self) -> None:
            os.kill(os.getpid(), signal.SIGINT)

    with asked_by_signals() as asked:
        asked.check()
        Closing()
        assert not thrown_away
        with pytest.raises(KeyboardInterrupt):
            asked.check()


def test_who_asks_twice_is_heard_at_once() -> None:
    with pytest.raises(KeyboardInterrupt), asked_by_signals():
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
