"""The statements of the store, see sql.py for what they are made of."""

# ruff: noqa: S608 - they are composed of constants only; every value is a bound parameter

from __future__ import annotations

from sqlalchemy import text
from sqlalchemy.sql.elements import TextClause
from sqlalchemy.sql.selectable import TextualSelect

from notifier.deadletters.digest import MAX_MEMBERS
from notifier.deadletters.schema import dead_letters
from notifier.deadletters.sql import (
    CLAIMED,
    FREE,
    GATHERED_REASONS,
    IN_LINE,
    NOW,
    ROW,
    STILL_DUE,
    TIME,
    UNEXPIRED,
    WAITS,
    keyed,
    returning_rows,
)

WINDOW = 5_000  # due rows looked at in the order of retry_at; with more due than that, users are walked instead
MOVED = 2_000  # rows that one statement gives another time: well within its timeout on a busy server

# ---- spill

_INSERTED = {
    "user_id": "text", "channel": "text", "notification_id": "text", "seq": "bigint", "epoch": "text",
    "starts": "integer", "category": "text", "body": "text", "priority": "text", "collapse_key": "text",
    "reason": "text", "state": "text", "attempts": "integer", "last_error": "text",
    "retry_at": "bigint", "expires_at": "bigint", "accepted_at": "bigint",
}  # fmt: skip

# One array a column: three times as fast as a VALUES list of 500 rows.
_INSERT = f"""
    INSERT INTO dead_letters ({", ".join(_INSERTED)})
    SELECT {", ".join(f"k.{name}" for name, kind in _INSERTED.items() if not name.endswith("_at"))},
        {TIME.format("k.retry_at")}, {TIME.format("nullif(k.expires_at, 0)")}, {TIME.format("k.accepted_at")}
    FROM unnest({", ".join(f"cast(:{name} AS {kind}[])" for name, kind in _INSERTED.items())})
        AS k ({", ".join(_INSERTED)})
    """
INSERT_NEW: TextClause = text(f"{_INSERT} ON CONFLICT DO NOTHING")

# A row without an epoch was written before its acceptance (outbox.py): what the ledger says of it counts from now on.
_TOLD = ("seq", "epoch", "starts", "reason", "state", "attempts", "last_error", "retry_at", "expires_at", "accepted_at")
INSERT: TextClause = text(
    f"""
    {_INSERT} ON CONFLICT (user_id, channel, notification_id) DO UPDATE
    SET {", ".join(f"{name} = excluded.{name}" for name in _TOLD)}, updated_at = now(),
        claimed_until = CASE excluded.state WHEN 'waiting' THEN dead_letters.claimed_until END
    WHERE dead_letters.epoch = '' AND dead_letters.state = 'waiting'
    """
)

# ---- which rows to claim

# The turn of a row among the due rows of its user; all first turns go before all second ones.
PICK: TextClause = text(
    f"""
    WITH due AS (
        SELECT user_id, channel, notification_id, seq, retry_at, {IN_LINE} AS in_line FROM dead_letters AS d
        WHERE state = 'waiting' AND claimed_until IS NULL AND retry_at <= {NOW}
        ORDER BY retry_at LIMIT :window
    )
    SELECT user_id, channel, notification_id, in_line, (SELECT count(*) FROM due) AS due
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
    SELECT d.user_id, d.channel, d.notification_id, d.in_line
    FROM unnest(cast(:users AS text[]), cast(:channels AS text[])) AS k (user_id, channel) CROSS JOIN LATERAL (
        SELECT *, row_number() OVER (ORDER BY seq) AS turn FROM (
            SELECT user_id, channel, notification_id, seq, retry_at, {IN_LINE} AS in_line FROM dead_letters AS d
            WHERE d.state = 'waiting' AND (d.user_id, d.channel) = (k.user_id, k.channel)
              AND {FREE} AND {STILL_DUE}
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
        WHERE d.state = 'waiting' AND (d.user_id, d.channel) = (k.user_id, k.channel) AND {FREE} AND {IN_LINE}
        ORDER BY d.seq LIMIT k.number
    ) AS m
    """
).columns(*(dead_letters.c[name] for name in ("user_id", "channel", "notification_id", "retry_at")))

# ---- claim

# Lock what is still free and has not been given a later time, pass over what others lock, set the end of the claim.
CLAIM = returning_rows(
    f"""
    UPDATE dead_letters AS d SET {CLAIMED}
    FROM {
        keyed(
            f"{WAITS} AND {FREE} AND d.retry_at <= {TIME.format('k.until')}",
            skip_locked=True,
            until=("untils", "bigint"),
        )
    }
    WHERE d.ctid = k.tid
    RETURNING {ROW}, false
    """
)

# The rest of the digests that claimed rows belong to, or will: due or not, they go with the first of them.
CLAIM_MEMBERS = returning_rows(
    f"""
    UPDATE dead_letters AS d SET {CLAIMED}
    FROM (
        SELECT m.tid FROM unnest(
            cast(:users AS text[]), cast(:channels AS text[]), cast(:collapse_keys AS text[]), cast(:digests AS text[])
        ) AS k (user_id, channel, collapse_key, digest_id) CROSS JOIN LATERAL (
            SELECT d.ctid AS tid FROM dead_letters AS d
            WHERE d.state = 'waiting' AND (d.user_id, d.channel) = (k.user_id, k.channel)
              AND d.collapse_key = k.collapse_key AND d.digest_id = k.digest_id AND {FREE}
              AND (k.digest_id <> '' OR d.attempts = 0 AND d.reason IN ({GATHERED_REASONS}))
            ORDER BY d.seq LIMIT {MAX_MEMBERS} FOR UPDATE SKIP LOCKED
        ) AS m
    ) AS k
    WHERE d.ctid = k.tid
    RETURNING {ROW}, false
    """
)

SET_DIGEST: TextClause = text(
    f"""
    UPDATE dead_letters AS d SET digest_id = k.digest_id FROM {keyed(digest_id=("digests", "text"))}
    WHERE d.ctid = k.tid
    """
)

# The claims of one digest do not end in the same instant: not before all have, for its rows go together.
CLAIM_RAN_OUT = returning_rows(
    f"""
    UPDATE dead_letters AS d SET starts = d.starts + 1, {CLAIMED}
    FROM (
        SELECT d.ctid AS tid FROM dead_letters AS d WHERE {WAITS} AND d.claimed_until <= now() - interval '1 s'
        ORDER BY d.claimed_until LIMIT 1 FOR UPDATE SKIP LOCKED
    ) AS k
    WHERE d.ctid = k.tid
    RETURNING {ROW}, true
    """
)

CLAIM_RAN_OUT_DIGEST = returning_rows(
    f"""
    UPDATE dead_letters AS d SET starts = d.starts + 1, {CLAIMED}
    FROM (
        SELECT d.ctid AS tid FROM dead_letters AS d
        WHERE d.state = 'waiting' AND (d.user_id, d.channel) = (:user, :channel) AND d.digest_id = :digest
          AND d.claimed_until <= now()
        FOR UPDATE SKIP LOCKED
    ) AS k
    WHERE d.ctid = k.tid
    RETURNING {ROW}, true
    """
)

HOLD: TextClause = text(
    f"UPDATE dead_letters AS d SET {CLAIMED} FROM {keyed('d.claimed_until IS NOT NULL')} WHERE d.ctid = k.tid"
)

# ---- let go

DELETE: TextClause = text(f"DELETE FROM dead_letters AS d USING {keyed()} WHERE d.ctid = k.tid")

RELEASE: TextClause = text(
    f"UPDATE dead_letters AS d SET claimed_until = NULL FROM {keyed(WAITS)} WHERE d.ctid = k.tid"
)

# Due at its expiry at the latest: a notification that expires ends then, not when its turn would have come.
UPDATE: TextClause = text(
    f"""
    UPDATE dead_letters AS d
    SET state = :state, reason = k.reason, attempts = k.attempts, last_error = k.error, claimed_until = NULL,
        retry_at = CASE WHEN k.retry = 0 THEN d.retry_at ELSE LEAST({TIME.format("k.retry")}, d.expires_at) END,
        seq = CASE WHEN k.seq = 0 THEN d.seq ELSE k.seq END, digest_id = k.digest_id, updated_at = now()
    FROM {
        keyed(
            WAITS,
            reason=("reasons", "text"),
            retry=("retries", "bigint"),
            attempts=("attempts", "integer"),
            error=("errors", "text"),
            digest_id=("digests", "text"),
            seq=("seqs", "bigint"),
        )
    }
    WHERE d.ctid = k.tid
    """
)

# ---- places in line

MOVE: TextClause = text(
    f"""
    UPDATE dead_letters AS d SET retry_at = LEAST({TIME.format("k.retry")}, d.expires_at), updated_at = now()
    FROM {keyed(f"{WAITS} AND {FREE}", skip_locked=True, retry=("retries", "bigint"))}
    WHERE d.ctid = k.tid
    """
)

# All rows that stand in line of these users, and what else of theirs is due.
LINE: TextClause = text(
    f"""
    SELECT d.user_id, d.channel, d.notification_id, d.due,
        cast(extract(epoch FROM d.retry_at) * 1000000 AS bigint) AS retry_us
    FROM unnest(cast(:users AS text[]), cast(:channels AS text[])) AS k (user_id, channel) CROSS JOIN LATERAL (
        SELECT d.user_id, d.channel, d.notification_id, d.seq, d.retry_at, {STILL_DUE} AS due
        FROM dead_letters AS d
        WHERE d.state = 'waiting' AND (d.user_id, d.channel) = (k.user_id, k.channel)
          AND {FREE} AND d.priority <> 'critical' AND ({IN_LINE} OR {STILL_DUE} AND {UNEXPIRED})
        ORDER BY d.seq
    ) AS d
    """
)

# Where the limit of a whole channel denied: one line for all its users, taken in turn.
PACE_CHANNEL: TextClause = text(
    f"""
    UPDATE dead_letters AS d SET retry_at = LEAST({TIME.format("k.retry")}, d.expires_at), updated_at = now()
    FROM (
        SELECT turns.tid,
            cast(:base AS bigint) + cast(:step AS bigint) * (row_number() OVER (ORDER BY turn, retry_at) - 1) AS retry
        FROM (
            SELECT *, row_number() OVER (PARTITION BY user_id ORDER BY seq) AS turn FROM (
                SELECT d.ctid AS tid, d.user_id, d.seq, d.retry_at FROM dead_letters AS d
                WHERE d.state = 'waiting' AND d.claimed_until IS NULL AND d.retry_at <= {NOW}
                  AND d.channel = :channel AND d.priority <> 'critical' AND {UNEXPIRED}
                ORDER BY retry_at LIMIT {MOVED} FOR UPDATE SKIP LOCKED
            ) AS due
        ) AS turns
    ) AS k
    WHERE d.ctid = k.tid
    """
)

# ---- too many

# Whether more denied rows of a user wait than `most`.
CROWDED: TextClause = text(
    f"""
    SELECT k.user_id, k.channel
    FROM unnest(cast(:users AS text[]), cast(:channels AS text[])) AS k (user_id, channel)
    WHERE EXISTS (
        SELECT 1 FROM dead_letters AS d
        WHERE d.state = 'waiting' AND (d.user_id, d.channel) = (k.user_id, k.channel)
          AND d.reason IN ({GATHERED_REASONS})
        ORDER BY d.user_id, d.channel, d.seq OFFSET :most LIMIT 1
    )
    """
)

# The oldest rows of a user that may fold, claimed. Their bodies are not needed.
CLAIM_FOLDABLE = returning_rows(
    f"""
    UPDATE dead_letters AS d SET {CLAIMED}
    FROM (
        SELECT d.ctid AS tid FROM dead_letters AS d
        WHERE d.state = 'waiting' AND (d.user_id, d.channel) = (:user, :channel)
          AND d.collapse_key <> '' AND d.digest_id = '' AND d.attempts = 0 AND {FREE}
          AND d.reason IN ({GATHERED_REASONS})
        ORDER BY d.seq LIMIT :limit FOR UPDATE SKIP LOCKED
    ) AS k
    WHERE d.ctid = k.tid
    RETURNING {ROW.replace("d.body", "''")}, false
    """
)

SET_FOLDED: TextClause = text(
    f"""
    UPDATE dead_letters AS d SET folded = k.folded FROM {keyed(folded=("folded", "text"))} WHERE d.ctid = k.tid
    """
)

# The newest denied rows of a user beyond `most`.
BEYOND: TextClause = text(
    f"""
    SELECT d.user_id, d.channel, d.notification_id FROM dead_letters AS d
    WHERE d.state = 'waiting' AND (d.user_id, d.channel) = (:user, :channel) AND d.reason IN ({GATHERED_REASONS})
    ORDER BY d.user_id, d.channel, d.seq OFFSET :most LIMIT :limit
    """
)

# ---- people

# A person wants these to go now. Claimed ones are on their way already.
SEND_AGAIN: TextClause = text(
    f"""
    UPDATE dead_letters AS d
    SET state = 'waiting', retry_at = {NOW}, starts = 0, attempts = 0, digest_id = '', claimed_until = NULL,
        updated_at = now()
    FROM {keyed(f"(d.state = 'parked' OR {FREE})")}
    WHERE d.ctid = k.tid
    """
)

RETIRED: TextClause = text(
    """
    SELECT user_id, channel, notification_id FROM dead_letters
    WHERE state = 'parked' AND updated_at < now() - make_interval(secs => :seconds)
    ORDER BY updated_at LIMIT :limit
    """
)

EXISTING: TextClause = text(
    """
    SELECT k.user_id, k.channel, k.notification_id
    FROM unnest(cast(:users AS text[]), cast(:channels AS text[]), cast(:ids AS text[]))
        AS k (user_id, channel, notification_id)
    WHERE EXISTS (
        SELECT 1 FROM dead_letters AS d
        WHERE (d.user_id, d.channel, d.notification_id) = (k.user_id, k.channel, k.notification_id) OFFSET 0
    )
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

AGES: TextClause = text(
    """
    SELECT count(*) FILTER (WHERE state = 'waiting'), count(*) FILTER (WHERE state = 'parked'),
        coalesce(cast(extract(epoch FROM now() - min(accepted_at) FILTER (WHERE state = 'waiting')) AS float8), 0),
        coalesce(cast(extract(epoch FROM now() - min(updated_at) FILTER (WHERE state = 'parked')) AS float8), 0),
        cast(greatest(0, extract(epoch FROM
            now() - min(retry_at) FILTER (WHERE state = 'waiting' AND claimed_until IS NULL))) AS float8)
    FROM dead_letters
    """
)
