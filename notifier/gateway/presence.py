"""Who is online. Redis itself knows: whoever has a page open is subscribed to by some gateway, and nobody else is."""

from __future__ import annotations

from collections.abc import Sequence

from redis import Redis
from redis.exceptions import RedisError

from notifier.errors import StateUnavailable
from notifier.redis import keys


def online(client: Redis, user_ids: Sequence[str]) -> set[str]:
    """Those of the users who are connected to any gateway now; one round trip. Raises StateUnavailable.

    A page that vanished without a word counts for up to 40 seconds, until its heartbeat is missed.
    """
    if not user_ids:
        return set()
    channels = [keys.user_key("feed", user_id, "websocket") for user_id in user_ids]
    try:
        found = client.pubsub_numsub(*channels)
    except RedisError as error:
        raise StateUnavailable(f"state Redis: {type(error).__name__}") from None
    return {user_id for user_id, (_, subscribers) in zip(user_ids, found, strict=True) if subscribers}
