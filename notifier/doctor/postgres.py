"""PostgreSQL: reachable, writable, migrated."""

from __future__ import annotations

import time
from collections.abc import Iterator

from sqlalchemy import Connection, text

from notifier.deadletters import migrate
from notifier.doctor.finding import Finding, ok, problem, warning, words
from notifier.errors import DatabaseUnavailable
from notifier.survey import AWAY

TIMEOUT_S = 2
OLDEST = 15
_AWAY = AWAY["database"]
_RIGHTS = "SELECT", "INSERT", "UPDATE", "DELETE"
_ASK = (
    "SELECT current_setting('server_version_num')::int, current_setting('server_version'), pg_is_in_recovery(),"
    " current_setting('transaction_read_only'), current_setting('fsync'), to_regclass('dead_letters') IS NOT NULL"
)
_MAY = "SELECT " + ", ".join(f"has_table_privilege('dead_letters', '{right}')" for right in _RIGHTS)


def server(url: str) -> Iterator[Finding]:
    """All about it."""
    began_s = time.monotonic()
    try:
        with migrate.connected(url, TIMEOUT_S) as connection:
            connection.execute(text("SET LOCAL statement_timeout = '3s'"))
            yield from _facts(connection, began_s)
    except DatabaseUnavailable as error:
        mend = "start the server, or set NOTIFIER_DATABASE_URL (create the database if it is missing)"
        yield problem("database.reachable", words(error), _AWAY, mend)
        return
    yield from schema(url)


def _facts(connection: Connection, began_s: float) -> Iterator[Finding]:
    number, version, standby, read_only, fsync, there = connection.execute(text(_ASK)).one()
    took_ms = (time.monotonic() - began_s) * 1000
    yield ok("database.reachable", f"PostgreSQL {version} answers in {took_ms:.0f} ms")
    if number // 10_000 < OLDEST:
        why = "its planner and its statements are not what we measured and tested with"
        yield warning(
            "database.version", f"PostgreSQL {version} is older than what was tested", why, f"{OLDEST} or newer"
        )
    if standby or read_only == "on":
        what = "this is a standby: it refuses writes" if standby else "transactions are read-only"
        yield problem(
            "database.writable", what, _AWAY, "let NOTIFIER_DATABASE_URL name the primary, and a user that may write"
        )
    if fsync == "off":
        why = "a power cut can destroy the database, and the dead letters in it"
        yield warning("database.fsync", "fsync is off", why, "fsync = on in postgresql.conf")
    if there:
        may = connection.execute(text(_MAY)).one()
        if lacking := [right for right, granted in zip(_RIGHTS, may, strict=True) if not granted]:
            mend = f"GRANT {', '.join(_RIGHTS)} ON dead_letters TO the user of NOTIFIER_DATABASE_URL"
            yield problem("database.rights", f"the user lacks {', '.join(lacking)} on dead_letters", _AWAY, mend)


def schema(url: str) -> Iterator[Finding]:
    """At the head of the migrations."""
    current, head = migrate.current(url), migrate.head()
    if current == head:
        yield ok("database.migrations", f"the schema is at {head}")
        return
    what = f"the schema is at {current}" if current else "there is no schema"
    yield problem("database.migrations", f"{what}, this version needs {head}", _AWAY, "notifier migrate")
