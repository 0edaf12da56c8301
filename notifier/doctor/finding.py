"""What a check says: what is so, and where that is not well, why it matters and how to mend it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import NamedTuple

from notifier.errors import NotifierError
from notifier.settings import mask_url

LONGEST = 300  # characters of somebody else's error text


class Level(StrEnum):
    """A warning is a risk, or could not be looked at; a problem will lose, stop or break something."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


class Finding(NamedTuple):
    """`check` names it for scripts and in docs/doctor.md. `why` and `mend` are empty where all is well."""

    check: str
    level: Level
    what: str
    why: str = ""
    mend: str = ""


Check = Callable[[], Iterator[Finding]]


def ok(check: str, what: str) -> Finding:
    """All is well."""
    return Finding(check, Level.OK, what)


def warning(check: str, what: str, why: str, mend: str) -> Finding:
    """A risk."""
    return Finding(check, Level.WARNING, what, why, mend)


def problem(check: str, what: str, why: str, mend: str) -> Finding:
    """It does not work, or not for long."""
    return Finding(check, Level.PROBLEM, what, why, mend)


def words(error: BaseException) -> str:
    """An error for people: one line, no password."""
    if isinstance(error, NotifierError):
        return str(error)
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {mask_url(lines[0])[:LONGEST]}" if lines else type(error).__name__
