"""What PostgreSQL's errors mean here. No text of ours holds a value: rows carry payloads, URLs carry passwords."""

from __future__ import annotations

from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from notifier.errors import DatabaseUnavailable

_SCHEMA = {"42P01", "42703", "3F000"}  # no such table, column, schema
_AGAIN = {"40001", "40P01", "55P03"}  # serialization, deadlock, lock not available
_GONE = {"57P01", "57P02", "25P03"}  # the server ended the session: shutdown, crash, idle in a transaction


def code_of(error: DBAPIError) -> str:
    """The SQLSTATE, or "" where the connection failed."""
    return str(getattr(error.orig, "pgcode", None) or "")


def worth_repeating(error: DBAPIError) -> bool:
    """Whether the same transaction may well succeed at once. Its outcome may be unknown: repeating must be safe."""
    return error.connection_invalidated or code_of(error) in _AGAIN | _GONE


def refuses_row(error: DBAPIError) -> bool:
    """Whether a row itself is at fault: class 22 (data), 23 (constraint), 54 (too large for an index)."""
    return code_of(error)[:2] in ("22", "23", "54")


def unavailable(error: DBAPIError | PoolTimeout) -> DatabaseUnavailable:
    """The same as an error of ours, with a way out where there is one."""
    if isinstance(error, PoolTimeout):
        return DatabaseUnavailable("PostgreSQL: all connections of this process are in use")
    code = code_of(error)
    if code in _SCHEMA:
        return DatabaseUnavailable("PostgreSQL has no current table dead_letters: run `notifier migrate`")
    if code:
        name = type(error.orig).__name__
        return DatabaseUnavailable(f"PostgreSQL refused with {code} ({name})")
    lines = str(error.orig).strip().splitlines() or ["no connection"]
    if "translate host name" in lines[0]:  # what was taken for a host name may be the rest of a password with an @
        return DatabaseUnavailable(
            "PostgreSQL cannot be reached: its host name is unknown (special characters in the URL's password must be "
            "percent-encoded)"
        )
    return DatabaseUnavailable(f"PostgreSQL cannot be reached: {lines[0][:200]}")
