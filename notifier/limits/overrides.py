"""Limits changed at run time: of a category (in one hash, read by every process) and of a user (in the bucket)."""

from __future__ import annotations

from dataclasses import dataclass, field

from notifier.limit import Limit
from notifier.redis import keys
from notifier.redis.client import Connections

CONFIG_KEY = f"{keys.PREFIX}limits"
VERSION = b"version"
USERS = b"users"  # some user's limit was ever overridden


@dataclass(frozen=True, slots=True)
class Overrides:
    """What holds now. `version` grows with every change, also of a user's limit. `categories`: (channel, category)."""

    version: int = 0
    users: bool = False
    categories: dict[tuple[str, str], Limit] = field(default_factory=dict)


def load(connections: Connections) -> Overrides:
    """Read all but the users' own. One round trip. Raises redis-py's errors."""
    (reply,) = connections.call([("HGETALL", CONFIG_KEY)])
    if isinstance(reply, Exception):
        raise reply
    found = dict(zip(reply[::2], reply[1::2], strict=True)) if isinstance(reply, list) else reply
    categories = {}
    for name, value in found.items():
        if name.startswith(b"category:"):
            length, _, rest = name.removeprefix(b"category:").decode().partition(":")
            emission_us, burst = (int(number) for number in value.split())
            categories[rest[: int(length)], rest[int(length) + 1 :]] = Limit(emission_us, burst)
    return Overrides(int(found.get(VERSION, 0)), USERS in found, categories)
