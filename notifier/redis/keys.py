"""Names of keys, v1. Everything of a user lies in one slot: the hash tag is the user's shard."""

from __future__ import annotations

from functools import lru_cache
from zlib import crc32

from notifier.notification import Identity

SHARDS = 1024
PREFIX = "notifier:v1:"
DATABASE = f"{PREFIX}database"  # fingerprint of the database that beat replays from
REPLAYED = f"{PREFIX}replayed"  # when a replay last ran (us of state Redis)
REPLAY_SENDER = f"{PREFIX}replay-sender"  # a worker stands in for beat


def shard_of(user_id: str) -> int:
    """0 to 1023."""
    return crc32(user_id.encode()) % SHARDS


def shard_prefix(shard: int) -> str:
    """`notifier:v1:{0417}:`, with which every key of the shard begins."""
    return f"{PREFIX}{{{shard:04d}}}:"


@lru_cache(maxsize=16_384)
def prefix_of(user_id: str) -> str:
    """The shard prefix of a user."""
    return shard_prefix(shard_of(user_id))


ALL_PREFIXES = tuple(shard_prefix(shard) for shard in range(SHARDS))


def user_part(user_id: str, channel: str) -> str:
    """The tail of a key that belongs to a user and channel. The lengths keep `a:b`+`c` and `a`+`b:c` apart."""
    return f"{len(channel)}:{channel}:{user_id}"


def identity_part(identity: Identity) -> str:
    """The tail of a key, and the field in ledger and bodies, that belongs to one notification."""
    user_id, channel, notification_id = identity
    return f"{len(channel)}:{channel}:{len(user_id)}:{user_id}:{notification_id}"


def parse_identity(part: str) -> Identity:
    """The inverse of identity_part."""
    channel, rest = _take(part)
    user_id, notification_id = _take(rest)
    return Identity(user_id, channel, notification_id)


def _take(text: str) -> tuple[str, str]:
    length, _, rest = text.partition(":")
    end = int(length)
    return rest[:end], rest[end + 1 :]


def user_key(kind: str, user_id: str, channel: str) -> str:
    """`bucket`, `meter`, `waiting`, `seq`, `feed` of a user and channel."""
    return f"{prefix_of(user_id)}{kind}:{user_part(user_id, channel)}"


def done_key(identity: Identity) -> str:
    """The done mark of one notification."""
    return f"{prefix_of(identity.user_id)}done:{identity_part(identity)}"
