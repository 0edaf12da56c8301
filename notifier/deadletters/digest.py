"""Digests: waiting rows of one user and collapse key go out as one notification for one token.

Which rows are one digest is written into them when they are claimed (`digest_id`), so that after a crash the same rows
go out as the same digest. Beyond `NOTIFIER_MAX_WAITING` rows are folded into their newest: they end at once, and what a
digest has to say of them is kept in its `folded`. Pure: no I/O here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from itertools import groupby
from json.encoder import encode_basestring_ascii as json_string
from typing import NamedTuple

from notifier.deadletters.schema import Row
from notifier.licence import Reason

MAX_MEMBERS = 100
MAX_IDS = 100  # in one digest object; the newest ones
# These stand in line: they hold newer ones of their user back.
DENIED = (
    Reason.RATE_LIMITED,
    Reason.QUOTA,
    Reason.ORDER,
    Reason.LIMITER_UNAVAILABLE,
    Reason.PREFERENCES_UNAVAILABLE,
)
GATHERED = (*DENIED, Reason.QUIET_HOURS)  # go together as a digest, and are counted together where too many wait
TOGETHER, FOLDING = "d:", "f:"  # how a digest_id begins: to be sent as one; being folded into one


class Folded(NamedTuple):
    """What was folded into a row: how many, when the first of them was accepted, the newest of their ids."""

    size: int = 0
    first_us: int = 0
    ids: tuple[str, ...] = ()

    @classmethod
    def of(cls, row: Row) -> Folded:
        """As the row has it."""
        if not row.folded:
            return cls()
        size, first_us, ids = json.loads(row.folded)
        return cls(size, first_us, tuple(ids))

    def text(self) -> str:
        """As it is kept in the row."""
        return json.dumps([self.size, self.first_us, self.ids]) if self.size else ""

    def argument(self) -> str:
        """As deliver.lua takes it."""
        return "\n".join([str(self.size), str(self.first_us), *map(json_string, self.ids)]) if self.size else ""


def fold(rows: Sequence[Row]) -> Folded:
    """What the last of `rows` (in seq order) has to say of the others, and of all that was folded into any."""
    parts = [Folded.of(row) for row in rows]
    ids: list[str] = []
    for row, part in zip(rows, parts, strict=True):
        ids += [*part.ids, row.notification_id]
    starts = [row.accepted_us for row in rows[:-1]] + [part.first_us for part in parts if part.size]
    return Folded(
        size=sum(part.size for part in parts) + len(rows) - 1,
        first_us=min(starts, default=0),
        ids=tuple(ids[:-1][-MAX_IDS:]),
    )


def object_of(rows: Sequence[Row]) -> str:
    """The `digest` object of these rows as JSON, "" where a single row stands for itself alone."""
    folded = fold(rows)
    if not folded.size:
        return ""
    last = rows[-1]
    first_us = min(folded.first_us, last.accepted_us)
    ids = [*folded.ids, last.notification_id][-MAX_IDS:]
    return (
        f'{{"count":{folded.size + 1},"first_at":{first_us / 1e6:.6f},"last_at":{last.accepted_us / 1e6:.6f},'
        f'"ids":[{",".join(map(json_string, ids))}]}}'
    )


def together(rows: Iterable[Row]) -> list[list[Row]]:
    """Claimed rows as what goes out for one token each: digests, and single rows. In seq order, within and without."""

    def key(row: Row) -> tuple[str, str, str]:
        return row.user_id, row.channel, row.digest_id or f"i:{row.notification_id}"

    groups = [sorted(group, key=_seq) for _, group in groupby(sorted(rows, key=key), key=key)]
    return sorted(groups, key=lambda group: (group[0].user_id, group[0].channel, group[0].seq))


def assign(rows: Iterable[Row]) -> dict[Row, str]:
    """digest_ids for claimed rows that have none: the newest member's id, a hundred members at most.

    None of them was tried before: the other side, which may have it, would take a digest of the same id for it.
    """

    def key(row: Row) -> tuple[str, str, str]:
        return row.user_id, row.channel, row.collapse_key

    fresh = [row for row in rows if joins(row)]
    ids: dict[Row, str] = {}
    for _, group in groupby(sorted(fresh, key=lambda row: (key(row), row.seq)), key=key):
        members = list(group)
        for start in range(0, len(members), MAX_MEMBERS):
            part = members[start : start + MAX_MEMBERS]
            if len(part) > 1:
                ids |= dict.fromkeys(part, TOGETHER + part[-1].notification_id)
    return ids


def joins(row: Row) -> bool:
    """Whether it may become a member of a new digest."""
    return bool(row.collapse_key and not row.digest_id and not row.attempts and row.reason in GATHERED)


def _seq(row: Row) -> int:
    return row.seq


def foldable(rows: Iterable[Row]) -> list[list[Row]]:
    """Rows of one user, grouped by collapse key in seq order, where there are two or more to fold into one."""
    ordered = sorted((row for row in rows if row.collapse_key), key=lambda row: (row.collapse_key, row.seq))
    groups = [list(group) for _, group in groupby(ordered, key=lambda row: row.collapse_key)]
    return [group for group in groups if len(group) > 1]
