"""Commands that start processes end them, whichever signal comes."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def _handled(handler: Callable[[int, FrameType | None], Any]) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number in _ENDING}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


@contextlib.contextmanager
def ended_by_signals() -> Iterator[None]:
    """TERM and HUP raise KeyboardInterrupt just as Ctrl-C does."""
    with _handled(signal.default_int_handler):
        yield


class Asked:
    """Whether a signal has asked to end."""

    def __init__(self) -> None:
        self._asked = False

    def check(self) -> None:
        """Raises KeyboardInterrupt if one has."""
        if self._asked:
            raise KeyboardInterrupt

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.check()
        self._asked = True


@contextlib.contextmanager
def asked_by_signals() -> Iterator[Asked]:
    """For what starts processes: the first signal is only noted, the second raises KeyboardInterrupt where it comes.

    Python throws a KeyboardInterrupt away, with a traceback, where it comes up in a hook around a fork or in a
    __del__: right there such a command spends its time.
    """
    asked = Asked()
    with _handled(asked._handle):
        yield asked


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """A second Ctrl-C must not leave half of it running; what runs here ends within seconds anyway."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in _ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def ignore_signals() -> None:
    """From now on, within the two above: a second Ctrl-C must not leave half of it running."""
    for number in _ENDING:
        signal.signal(number, signal.SIG_IGN)
