"""What the statements on `dead_letters` are made of, so that their plans do not depend on the planner's statistics.

A table that fills and drains in minutes has the statistics of some other moment: of an empty table in a flood, or of
a handful of rows in pages that are now full. Believing them, the planner reads the whole table for each key, or
hashes all of it (seen: 10 s for a claim that takes 0.02 s). So the ways it might go wrong are closed: no hash or
merge join, no sequential or bitmap scan; keys are looked up one by one, whatever they seem to cost; and what was
found is changed by its place (ctid), found and locked in the same statement.
"""

# ruff: noqa: S608 - they are composed of constants only; every value is a bound parameter

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import Boolean, column, text
from sqlalchemy.sql.elements import TextClause
from sqlalchemy.sql.selectable import TextualSelect

from notifier.deadletters.digest import DENIED, GATHERED
from notifier.deadletters.schema import dead_letters

# Microseconds of state Redis's clock go in. Claims end by PostgreSQL's own clock.
TIME = "(timestamptz 'epoch' + {} * interval '1 microsecond')"
NOW = TIME.format("cast(:now AS bigint)")

# Conditions on rows that are found by another index. Spelled so that the planner does not see that they match a partial
# index too: it might take that one, and read all of it.
WAITS = "(d.state = 'waiting') IS TRUE"
FREE = "(d.claimed_until IS NULL) IS TRUE"
STILL_DUE = f"d.retry_at + interval '0' <= {NOW}"

# Rows that stand in line: they keep their order, and may take another's place in time.
_DENIED_REASONS = ", ".join(f"'{reason}'" for reason in DENIED)
UNEXPIRED = f"(d.expires_at > {NOW} OR d.expires_at IS NULL)"
IN_LINE = f"(d.reason IN ({_DENIED_REASONS}) AND d.priority <> 'critical' AND {UNEXPIRED})"
GATHERED_REASONS = ", ".join(f"'{reason}'" for reason in GATHERED)

SAME = "(d.user_id, d.channel, d.notification_id) = (k.user_id, k.channel, k.notification_id)"
CLAIMED = "claimed_until = clock_timestamp() + make_interval(secs => :seconds), updated_at = now()"

COLUMNS = [
    "user_id", "channel", "notification_id", "seq", "epoch", "starts", "category", "body", "priority", "collapse_key",
    "digest_id", "folded", "reason", "state", "attempts", "retry_at", "expires_at", "accepted_at", "last_error",
]  # fmt: skip
ROW = ", ".join(f"d.{name}" for name in COLUMNS)

_KEY = {"user_id": ("users", "text"), "channel": ("channels", "text"), "notification_id": ("ids", "text")}


def keyed(condition: str = "true", *, skip_locked: bool = False, **more: tuple[str, str]) -> str:
    """Rows `k` found by the arrays :users, :channels, :ids and locked: their place `tid`, and `more` of each.

    `more` is name=(array parameter, type). `condition` is on the row d, and may use k.
    """
    columns = _KEY | more
    arrays = ", ".join(f"cast(:{parameter} AS {kind}[])" for parameter, kind in columns.values())
    return f"""(
        SELECT d.tid, k.* FROM unnest({arrays}) AS k ({", ".join(columns)}) CROSS JOIN LATERAL (
            SELECT d.ctid AS tid FROM dead_letters AS d WHERE {SAME} AND {condition}
            LIMIT 1 FOR UPDATE{" SKIP LOCKED" if skip_locked else ""}
        ) AS d
    ) AS k"""


def returning_rows(sql: str) -> TextualSelect:
    """The statement, with its columns read as the fields of Row: times as microseconds."""
    return text(sql).columns(*(dead_letters.c[name] for name in COLUMNS), column("claim_ran_out", Boolean))


# A server's defaults are no timeouts at all. Within the transaction, so that a pooler hands nothing on.
_TIMEOUTS = {"lock_timeout": "3s", "idle_in_transaction_session_timeout": "10s"}
_CLOSED = ("hashjoin", "mergejoin", "seqscan", "bitmapscan", "sort", "incremental_sort")
_BY_KEYS = {f"enable_{way}": "off" for way in _CLOSED}


def _configured(values: Mapping[str, str]) -> TextClause:
    return text("SELECT " + ", ".join(f"set_config('{name}', '{value}', true)" for name, value in values.items()))


LIMITS = _configured({"statement_timeout": "10s", **_TIMEOUTS, **_BY_KEYS})
SCAN_LIMITS = _configured({"statement_timeout": "120s", **_TIMEOUTS})  # for people's questions: may read all of it
