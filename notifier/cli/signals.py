"""Commands that start processes end them, whichever signal comes."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType
from typing import NoReturn


class Asked:
    """Whether a signal has asked to end.

    It is raised as KeyboardInterrupt at once; but Python throws that away where it comes up in a __del__ or in a hook
    around a fork, so a loop should look here too.
    """

    def __init__(self) -> None:
        self._asked = False

    def handle(self, number: int, frame: FrameType | None) -> NoReturn:
        """The handler of a signal."""
        self._asked = True
        raise KeyboardInterrupt

    def check(self) -> None:
        """Raises KeyboardInterrupt if a signal came, now or before."""
        if self._asked:
            raise KeyboardInterrupt


@contextlib.contextmanager
def ended_by_signals() -> Iterator[Asked]:
    """TERM and HUP end it just as Ctrl-C does."""
    asked = Asked()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    for number in before:
        signal.signal(number, asked.handle)
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """A second Ctrl-C must not leave half of it running; what runs here ends within seconds anyway."""
    before = {
        number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def ignore_signals() -> None:
    """From now on, within ended_by_signals(): a second Ctrl-C must not leave half of it running."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
