"""Looks into the stores of a run: where a notification is, what waits, who granted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redis import Redis

from notifier.deadletters.store import Store
from notifier.notification import Identity
from notifier.redis import keys

BATCH = 500
PLACES = {"Q": "in_flight", "D": "waiting", "H": "waiting"}


def whereabouts(client: Redis, store: Store, identities: Sequence[Identity]) -> dict[Identity, str]:
    """What became of each: in_flight, waiting, parked, an end's name, or "" where nobody knows of it.

    Delivered ones are left out: only a socket can say that.
    """
    found: dict[Identity, str] = {}
    for start in range(0, len(identities), BATCH):
        batch = identities[start : start + BATCH]
        pipe = client.pipeline(transaction=False)
        for identity in batch:
            pipe.hget(f"{keys.prefix_of(identity.user_id)}ledger", keys.identity_part(identity))
            pipe.get(keys.done_key(identity))
        replies: list[Any] = pipe.execute()
        in_rows = []
        for identity, entry, mark in zip(batch, replies[0::2], replies[1::2], strict=True):
            place, parked = (entry or b"- 0").decode().split()[:2]
            if entry:
                found[identity] = "parked" if parked == "1" else PLACES[place]
            elif mark:
                end = mark.decode().split()[0]
                found[identity] = "" if end == "delivered" else end
            if place == "H":
                in_rows.append(identity)
        for identity in store.missing(in_rows):
            found[identity] = ""
    return found


def waiting_now(client: Redis, user_ids: Sequence[str]) -> tuple[dict[str, list[int]], int]:
    """The seqs that wait for each user's feed, and the time of the server just after (us)."""
    pipe = client.pipeline(transaction=False)
    for user_id in user_ids:
        pipe.zrange(keys.user_key("waiting", user_id, "websocket"), 0, -1)
    pipe.time()
    *members, (seconds, micros) = pipe.execute()
    seqs = {user_id: [int(seq) for seq in found] for user_id, found in zip(user_ids, members, strict=True)}
    return seqs, seconds * 1_000_000 + micros


def shard_count(client: Redis, user_id: str, name: str) -> int:
    """One of the counts of a user's shard."""
    value: Any = client.hget(f"{keys.prefix_of(user_id)}counts", name)
    return int(value or 0)
