"""The statements of the store. Times go in as int microseconds of state Redis; claims end by PostgreSQL's own clock."""

# ruff: noqa: S608 - they are composed of constants only; every value is a bound parameter

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import Boolean, column, text
from sqlalchemy.sql.elements import TextClause
from sqlalchemy.sql.selectable import TextualSelect

from notifier.deadletters.digest import DENIED, MAX_MEMBERS
from notifier.deadletters.schema import dead_letters

WINDOW = 5_000  # due rows looked at in the order of retry_at; with more due than that, users are walked instead
_MOVED_OF_A_USER = 50_000

_T = "(timestamptz 'epoch' + {} * interval '1 microsecond')"
_NOW = _T.format("cast(:now AS bigint)")
# Conditions on rows that are found by another index. Spelled so that the planner does not see that they match a partial
# index too: with the statistics of an empty table it would take that one, and read all of it for each key.
_WAITS = "(d.state = 'waiting') IS TRUE"
_FREE = "(d.claimed_until IS NULL) IS TRUE"
_STILL_DUE = f"d.retry_at + interval '0' <= {_NOW}"

_DENIED_REASONS = ", ".join(f"'{reason}'" for reason in DENIED)
# Rows that must keep their order, and may take another's place in time.
_UNEXPIRED = f"(d.expires_at > {_NOW} OR d.expires_at IS NULL)"
_IN_TURN = f"(d.reason IN ({_DENIED_REASONS}) AND d.priority <> 'critical' AND {_UNEXPIRED})"
_KEYS = "unnest(cast(:users AS text[]), cast(:channels AS text[]), cast(:ids AS text[]))"
_SAME = "(d.user_id, d.channel, d.notification_id) = (k.user_id, k.channel, k.notification_id)"
COLUMNS = [
    "user_id", "channel", "notification_id", "seq", "epoch", "starts", "category", "body", "priority", "collapse_key",
    "digest_id", "folded", "reason", "state", "attempts", "retry_at", "expires_at", "accepted_at", "last_error",
]  # fmt: skip
_RETURNING = ", ".join(f"d.{name}" for name in COLUMNS)


def _returning_rows(sql: str) -> TextualSelect:
    """The statement, with its columns read as the fields of Row: times as microseconds."""
    return text(sql).columns(*(dead_letters.c[name] for name in COLUMNS), column("claim_ran_out", Boolean))


# A server's defaults are no timeouts at all. Within the transaction, so that a pooler hands nothing on.
# Every statement here looks up a few hundred keys. Right after a flood the planner's statistics are of an empty table
# and it would rather hash all of it (measured: 0.5 s a claim instead of 0.02 s), so these ways are closed.
_TRANSACTION = {
    "statement_timeout": "10s",
    "lock_timeout": "3s",
    "idle_in_transaction_session_timeout": "10s",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
}
_SCAN = {"statement_timeout": "120s", "lock_timeout": "3s", "idle_in_transaction_session_timeout": "10s"}


def _configured(values: Mapping[str, str]) -> TextClause:
    return text("SELECT " + ", ".join(f"set_config('{name}', '{value}', true)" for name, value in values.items()))


LIMITS = _configured(_TRANSACTION)
SCAN_LIMITS = _configured(_SCAN)  # for people's questions, which may read the whole table

_INSERTED = {
    "user_id": "text", "channel": "text", "notification_id": "text", "seq": "bigint", "epoch": "text",
    "starts": "integer", "category": "text", "body": "text", "priority": "text", "collapse_key": "text",
    "reason": "text", "state": "text", "attempts": "integer", "last_error": "text",
    "retry_at": "bigint", "expires_at": "bigint", "accepted_at": "bigint",
}  # fmt: skip

# One array a column: three times as fast as a VALUES list of 500 rows.
INSERT: TextClause = text(
    f"""
    INSERT INTO dead_letters ({", ".join(_INSERTED)})
    SELECT {", ".join(f"k.{name}" for name, kind in _INSERTED.items() if not name.endswith("_at"))},
        {_T.format("k.retry_at")}, {_T.format("nullif(k.expires_at, 0)")}, {_T.format("k.accepted_at")}
    FROM unnest({", ".join(f"cast(:{name} AS {kind}[])" for name, kind in _INSERTED.items())})
        AS k ({", ".join(_INSERTED)})
    ON CONFLICT DO NOTHING
    """
)

# The turn of a row among the due rows of its user; all first turns go before all second ones.
PICK: TextClause = text(
    f"""
    WITH due AS (
        SELECT user_id, channel, notification_id, seq, retry_at, {_IN_TURN} AS in_turn FROM dead_letters AS d
        WHERE state = 'waiting' AND claimed_until IS NULL AND retry_at <= {_NOW}
        ORDER BY retry_at LIMIT :window
    )
    SELECT user_id, channel, notification_id, in_turn, (SELECT count(*) FROM due) AS due
    FROM (SELECT *, row_number() OVER (PARTITION BY user_id, channel ORDER BY seq) AS turn FROM due) AS turns
    ORDER BY turn, retry_at LIMIT :limit
    """
)

# With a large backlog the oldest due rows may all be one user's. So walk from user to user through the index and take
# some rows of each: what is read depends on the number of users, not of rows.
WALK: TextClause = text(
    """
    WITH RECURSIVE walk AS (
        (SELECT user_id, channel, 1 AS place FROM dead_letters
         WHERE state = 'waiting' AND (user_id, channel) > (:user, :channel)
         ORDER BY user_id, channel, seq LIMIT 1)
        UNION ALL
        SELECT next.user_id, next.channel, walk.place + 1 FROM walk CROSS JOIN LATERAL (
            SELECT d.user_id, d.channel FROM dead_letters AS d
            WHERE d.state = 'waiting' AND (d.user_id, d.channel) > (walk.user_id, walk.channel)
            ORDER BY d.user_id, d.channel, d.seq LIMIT 1
        ) AS next WHERE walk.place < :limit
    )
    SELECT user_id, channel FROM walk ORDER BY place
    """
)

PICK_OF_USERS: TextClause = text(
    f"""
    SELECT d.user_id, d.channel, d.notification_id, d.in_turn
    FROM unnest(cast(:users AS text[]), cast(:channels AS text[])) AS k (user_id, channel) CROSS JOIN LATERAL (
        SELECT *, row_number() OVER (ORDER BY seq) AS turn FROM (
            SELECT user_id, channel, notification_id, seq, retry_at, {_IN_TURN} AS in_turn FROM dead_letters AS d
            WHERE d.state = 'waiting' AND (d.user_id, d.channel) = (k.user_id, k.channel)
              AND {_FREE} AND {_STILL_DUE}
            ORDER BY d.seq LIMIT :each
        ) AS first
    ) AS d
    ORDER BY d.turn, d.retry_at LIMIT :limit
    """
)


# Due rows say how many of a user may go now; which ones, seq says: denials are booked in any order, so a later one may
# be due first, and would take a token only to be told that an earlier one waits.
LOWEST: TextualSelect = text(
    f"""
    SELECT m.* FROM unnest(cast(:users AS text[]), cast(:channels AS text[]), cast(:numbers AS bigint[]))
        AS k (user_id, channel, number)
    CROSS JOIN LATERAL (
        SELECT d.user_id, d.channel, d.notification_id, d.retry_at FROM dead_letters AS d
        WHERE d.state = 'waiting' AND (d.user_id, d.channel) = (k.user_id, k.channel) AND {_FREE} AND {_IN_TURN}
        ORDER BY d.seq LIMIT k.number
    ) AS m
    """
).columns(*(dead_letters.c[name] for name in ("user_id", "channel", "notification_id", "retry_at")))

MOVE: TextClause = text(
    f"""
    UPDATE dead_letters AS d SET retry_at = LEAST({_T.format("k.retry")}, d.expires_at), updated_at = now()
    FROM (
        SELECT d.user_id, d.channel, d.notification_id, k.retry
        FROM unnest(cast(:users AS text[]), cast(:channels AS text[]), cast(:ids AS text[]), cast(:retries AS bigint[]))
            AS k (user_id, channel, notification_id, retry) JOIN dead_letters AS d ON {_SAME}
        WHERE {_WAITS} AND {_FREE}
        FOR UPDATE OF d SKIP LOCKED
    ) AS k
    WHERE {_SAME}
    """
)


# Lock what is still free and has not been given a later time, pass over what others lock, set the end of the claim.
CLAIM = _returning_rows(
    f"""
    UPDATE dead_letters AS d
    SET claimed_until = clock_timestamp() + make_interval(secs => :seconds), updated_at = now()
    FROM (
        SELECT d.user_id, d.channel, d.notification_id
        FROM unnest(cast(:users AS text[]), cast(:channels AS text[]), cast(:ids AS text[]), cast(:untils AS bigint[]))
            AS k (user_id, channel, notification_id, until) JOIN dead_letters AS d ON {_SAME}
        WHERE {_WAITS} AND {_FREE} AND d.retry_at <= {_T.format("k.until")}
        FOR UPDATE OF d SKIP LOCKED
    ) AS k
    WHERE {_SAME}
    RETURNING {_RETURNING}, false
    """
)

# The rest of the digests that claimed rows belong to, or will: due or not, they go with the first of them.
CLAIM_MEMBERS = _returning_rows(
    f"""
    UPDATE dead_letters AS d
    SET claimed_until = clock_timestamp() + make_interval(secs => :seconds), updated_at = now()
    FROM (
        SELECT m.* FROM unnest(
            cast(:users AS text[]), cast(:channels AS text[]), cast(:collapse_keys AS text[]), cast(:digests AS text[])
        ) AS k (user_id, channel, collapse_key, digest_id) CROSS JOIN LATERAL (
            SELECT d.user_id, d.channel, d.notification_id FROM dead_letters AS d
            WHERE d.state = 'waiting' AND (d.user_id, d.channel) = (k.user_id, k.channel)
              AND d.collapse_key = k.collapse_key AND d.digest_id = k.digest_id AND {_FREE}
              AND (k.digest_id <> '' OR d.reason IN ({_DENIED_REASONS}))
            ORDER BY d.seq LIMIT {MAX_MEMBERS} FOR UPDATE SKIP LOCKED
        ) AS m
    ) AS k
    WHERE {_SAME}
    RETURNING {_RETURNING}, false
    """
)

SET_DIGEST: TextClause = text(
    f"""
    UPDATE dead_letters AS d SET digest_id = k.digest_id
    FROM unnest(cast(:users AS text[]), cast(:channels AS text[]), cast(:ids AS text[]), cast(:digests AS text[]))
        AS k (user_id, channel, notification_id, digest_id)
    WHERE {_SAME}
    """
)

CLAIM_RAN_OUT_DIGEST = _returning_rows(
    f"""
    UPDATE dead_letters AS d
    SET claimed_until = clock_timestamp() + make_interval(secs => :seconds), starts = d.starts + 1, updated_at = now()
    FROM (
        SELECT d.user_id, d.channel, d.notification_id FROM dead_letters AS d
        WHERE d.state = 'waiting' AND (d.user_id, d.channel) = (:user, :channel) AND d.digest_id = :digest
          AND d.claimed_until <= now()
        FOR UPDATE SKIP LOCKED
    ) AS k
    WHERE {_SAME}
    RETURNING {_RETURNING}, true
    """
)

CLAIM_RAN_OUT = _returning_rows(
    f"""
    UPDATE dead_letters AS d
    SET claimed_until = clock_timestamp() + make_interval(secs => :seconds), starts = d.starts + 1, updated_at = now()
    FROM (
        SELECT d.user_id, d.channel, d.notification_id FROM dead_letters AS d
        WHERE {_WAITS} AND d.claimed_until <= now()
        ORDER BY d.claimed_until LIMIT 1 FOR UPDATE SKIP LOCKED
    ) AS k
    WHERE {_SAME}
    RETURNING {_RETURNING}, true
    """
)

DELETE: TextClause = text(
    f"DELETE FROM dead_letters AS d USING {_KEYS} AS k (user_id, channel, notification_id) WHERE {_SAME}"
)

RELEASE: TextClause = text(
    f"""
    UPDATE dead_letters AS d SET claimed_until = NULL
    FROM {_KEYS} AS k (user_id, channel, notification_id) WHERE {_SAME} AND {_WAITS}
    """
)

EXISTING: TextClause = text(
    f"""
    SELECT d.user_id, d.channel, d.notification_id
    FROM {_KEYS} AS k (user_id, channel, notification_id) JOIN dead_letters AS d ON {_SAME}
    """
)

# Due at its expiry at the latest: a notification that expires ends then, not when its turn would have come.
UPDATE: TextClause = text(
    f"""
    UPDATE dead_letters AS d
    SET state = :state, reason = k.reason, attempts = k.attempts, last_error = k.error, claimed_until = NULL,
        retry_at = CASE WHEN k.retry = 0 THEN d.retry_at ELSE LEAST({_T.format("k.retry")}, d.expires_at) END,
        digest_id = k.digest_id, updated_at = now()
    FROM unnest(
        cast(:users AS text[]), cast(:channels AS text[]), cast(:ids AS text[]), cast(:reasons AS text[]),
        cast(:retries AS bigint[]), cast(:attempts AS integer[]), cast(:errors AS text[]), cast(:digests AS text[])
    ) AS k (user_id, channel, notification_id, reason, retry, attempts, error, digest_id)
    WHERE {_SAME} AND {_WAITS}
    """
)

# After a denial all that is due of the user gets its place in time, so that it is not claimed to be denied too.
PACE: TextClause = text(
    f"""
    UPDATE dead_letters AS d SET retry_at = LEAST({_T.format("k.retry")}, d.expires_at), updated_at = now()
    FROM (
        SELECT rest.user_id, rest.channel, rest.notification_id,
            p.base + p.step * (row_number() OVER (PARTITION BY p.user_id, p.channel ORDER BY rest.seq) - 1) AS retry
        FROM unnest(
            cast(:user_id AS text[]), cast(:channel AS text[]),
            cast(:base_us AS bigint[]), cast(:interval_us AS bigint[])
        ) AS p (user_id, channel, base, step) CROSS JOIN LATERAL (
            SELECT d.user_id, d.channel, d.notification_id, d.seq FROM dead_letters AS d
            WHERE d.state = 'waiting' AND (d.user_id, d.channel) = (p.user_id, p.channel)
              AND {_FREE} AND {_STILL_DUE} AND d.priority <> 'critical'
            ORDER BY d.seq LIMIT {_MOVED_OF_A_USER} FOR UPDATE SKIP LOCKED
        ) AS rest
    ) AS k
    WHERE {_SAME}
    """
)

# Whether more denied rows of a user wait than `most`.
CROWDED: TextClause = text(
    f"""
    SELECT k.user_id, k.channel
    FROM unnest(cast(:users AS text[]), cast(:channels AS text[])) AS k (user_id, channel)
    WHERE EXISTS (
        SELECT 1 FROM dead_letters AS d
        WHERE d.state = 'waiting' AND (d.user_id, d.channel) = (k.user_id, k.channel)
          AND d.reason IN ({_DENIED_REASONS})
        ORDER BY d.user_id, d.channel, d.seq OFFSET :most LIMIT 1
    )
    """
)

# The oldest rows of a user that may fold, claimed. Their bodies are not needed.
CLAIM_FOLDABLE = _returning_rows(
    f"""
    UPDATE dead_letters AS d
    SET claimed_until = clock_timestamp() + make_interval(secs => :seconds), updated_at = now()
    FROM (
        SELECT d.user_id, d.channel, d.notification_id FROM dead_letters AS d
        WHERE d.state = 'waiting' AND (d.user_id, d.channel) = (:user, :channel)
          AND d.collapse_key <> '' AND d.digest_id = '' AND {_FREE} AND d.reason IN ({_DENIED_REASONS})
        ORDER BY d.seq LIMIT :limit FOR UPDATE SKIP LOCKED
    ) AS k
    WHERE {_SAME}
    RETURNING {_RETURNING.replace("d.body", "''")}, false
    """
)

SET_FOLDED: TextClause = text(
    f"""
    UPDATE dead_letters AS d SET folded = k.folded
    FROM unnest(cast(:users AS text[]), cast(:channels AS text[]), cast(:ids AS text[]), cast(:folded AS text[]))
        AS k (user_id, channel, notification_id, folded)
    WHERE {_SAME}
    """
)

# The newest denied rows of a user beyond `most`.
BEYOND: TextClause = text(
    f"""
    SELECT d.user_id, d.channel, d.notification_id FROM dead_letters AS d
    WHERE d.state = 'waiting' AND (d.user_id, d.channel) = (:user, :channel) AND d.reason IN ({_DENIED_REASONS})
    ORDER BY d.user_id, d.channel, d.seq OFFSET :most LIMIT :limit
    """
)

# A person wants these to go now. Claimed ones are on their way already.
SEND_AGAIN: TextClause = text(
    f"""
    UPDATE dead_letters AS d
    SET state = 'waiting', retry_at = {_NOW}, starts = 0, attempts = 0, digest_id = '', claimed_until = NULL,
        updated_at = now()
    FROM {_KEYS} AS k (user_id, channel, notification_id)
    WHERE {_SAME} AND (d.state = 'parked' OR {_FREE})
    """
)

RETIRED: TextClause = text(
    """
    SELECT user_id, channel, notification_id FROM dead_letters
    WHERE state = 'parked' AND updated_at < now() - make_interval(secs => :seconds)
    ORDER BY updated_at LIMIT :limit
    """
)

# Which database this is: of another one, or of one made anew, the missing rows say nothing.
FINGERPRINT: TextClause = text(
    """
    SELECT concat_ws(':', (SELECT system_identifier FROM pg_control_system()),
        (SELECT oid FROM pg_database WHERE datname = current_database()), 'dead_letters'::regclass::oid)
    """
)

COUNTS: TextClause = text(
    "SELECT count(*) FILTER (WHERE state = 'waiting'), count(*) FILTER (WHERE state = 'parked') FROM dead_letters"
)
