"""Claims, within one transaction of the store."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection

from notifier.deadletters import queries
from notifier.deadletters.digest import assign, joins
from notifier.deadletters.schema import Row
from notifier.notification import Identity

CLAIM_S = 15  # longer than a task may take (12 s), so that what a killed replayer held is back within 20 s


def claim(connection: Connection, untils: Mapping[Identity, int]) -> list[Row]:
    """Claim each that is free and due until its time (us)."""
    if not untils:
        return []
    values = {**keys_of(untils), "untils": list(untils.values()), "seconds": CLAIM_S}
    return rows_of(connection.execute(queries.CLAIM, values))


def claim_in_line(connection: Connection, picked: Sequence[Any], now_us: int) -> list[Row]:
    """Claim as many rows of each user as are due, those of the lowest seq; they swap times with the due ones."""
    due = [Identity(*row[:3]) for row in picked if row.in_line]
    by_time = {Identity(*row[:3]): now_us for row in picked if not row.in_line}
    numbers = Counter((identity.user_id, identity.channel) for identity in due)
    if not numbers:
        return claim(connection, by_time)
    users, channels = (list(column) for column in zip(*numbers, strict=True))
    values = {"users": users, "channels": channels, "numbers": list(numbers.values()), "now": now_us}
    lowest = {Identity(*row[:3]): row.retry_at for row in connection.execute(queries.LOWEST, values)}
    rows = claim(connection, {**by_time, **lowest})
    free_times: dict[tuple[str, str], list[int]] = defaultdict(list)
    for row in rows:
        if lowest.get(row.identity, 0) > now_us:
            free_times[row.user_id, row.channel].append(row.retry_at_us)
    passed_over = [identity for identity in due if identity not in lowest]
    moved = [
        (identity, times.pop())
        for identity in passed_over
        if (times := free_times.get((identity.user_id, identity.channel)))
    ]
    move(connection, moved)
    return rows


def move(connection: Connection, moves: Sequence[tuple[Identity, int]]) -> None:
    """Give free rows another time (us)."""
    if moves:
        values = {**keys_of(identity for identity, _ in moves), "retries": [retry_us for _, retry_us in moves]}
        connection.execute(queries.MOVE, values)


def with_members(connection: Connection, rows: list[Row]) -> list[Row]:
    """Claim what belongs to the same digests, and write down which rows are one digest."""
    digests = {
        (row.user_id, row.channel, row.collapse_key, row.digest_id)
        for row in rows
        if row.collapse_key and (row.digest_id or joins(row))
    }
    if not digests:
        return rows
    users, channels, collapse_keys, ids = (list(column) for column in zip(*sorted(digests), strict=True))
    values = {"users": users, "channels": channels, "collapse_keys": collapse_keys, "digests": ids, "seconds": CLAIM_S}
    rows = [*rows, *rows_of(connection.execute(queries.CLAIM_MEMBERS, values))]
    digest_ids = assign(rows)
    if digest_ids:
        values = {**keys_of(row.identity for row in digest_ids), "digests": list(digest_ids.values())}
        connection.execute(queries.SET_DIGEST, values)
    return sorted((row._replace(digest_id=digest_ids.get(row, row.digest_id)) for row in rows), key=_order)


def keys_of(identities: Iterable[Identity]) -> dict[str, list[str]]:
    """The arrays that the statements take; at least one identity."""
    users, channels, ids = zip(*identities, strict=True)
    return {"users": list(users), "channels": list(channels), "ids": list(ids)}


def identities_of(result: Any) -> list[Identity]:
    """Of a statement that returns keys."""
    return [Identity(*row) for row in result]


def rows_of(result: Any) -> list[Row]:
    """Of a statement that returns rows; by user, then seq."""
    return sorted((Row(*row) for row in result), key=_order)


def _order(row: Row) -> tuple[str, str, int]:
    return row.user_id, row.channel, row.seq
