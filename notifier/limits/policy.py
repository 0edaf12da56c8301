"""Which limits hold for a channel and category, and the names and numbers that stand for them in the script."""

from __future__ import annotations

import math

from notifier.limit import Limit
from notifier.redis import keys

SUB_WINDOWS = 60


class ChannelPolicy:
    """The limit of a whole channel, and what this process knows about its bucket."""

    __slots__ = ("arguments", "full", "key", "limit", "name", "not_full_at", "prefix", "until")

    def __init__(self, name: str, limit: Limit, debt: int) -> None:
        self.name = name
        self.limit = limit
        self.prefix = f"{keys.PREFIX}{{channel:{name}}}:"
        self.key = f"{self.prefix}bucket"
        self.arguments = (limit.emission_us, limit.burst, debt)
        self.until = 0.0  # nobody on this channel is granted before
        self.full = False  # the last reply said so
        self.not_full_at = 0


class Policy:
    """The limits of a user on one channel: of all categories together, or of one that has an override.

    `known`, `open` and `sent` are the limiter's, kept here because they are looked up together: what is held against a
    user, loans not yet on their way to the shared bucket, and loans on their way.
    """

    __slots__ = (
        "_key", "_quota_key", "arguments", "blind_until", "channel", "free", "known", "lends", "local", "open", "quick",
        "quota", "sent", "user",
    )  # fmt: skip

    def __init__(
        self,
        channel: str,
        category: str | None,
        user: Limit,
        quota: Limit,
        channel_policy: ChannelPolicy | None,
        local: bool,
    ) -> None:
        self.quota = quota
        self.channel = channel_policy
        self.local = local
        part = f"{len(channel)}:{channel}:"
        self._key = f"bucket:{part}" if category is None else f"category:{len(category)}:{category}:{part}"
        self._quota_key = f"quota:{part}"
        self.known: dict[str, Known] = {}
        self.open: dict[str, int] = {}
        self.sent: dict[str, int] = {}
        self.blind_until = 0.0  # somebody in debt was forgotten: lend to no unknown user before
        self.free = False  # nothing limits anybody here
        self.change(user)

    def change(self, user: Limit) -> None:
        """Give the users another limit."""
        self.user = user
        self.lends = self.local and self.quota.off and not user.blocks
        self.quick = self.lends and self.channel is None
        window_us = 0 if self.quota.off else -(-self.quota.tolerance_us // SUB_WINDOWS) or self.quota.emission_us
        self.arguments = (user.emission_us, user.burst, window_us, self.quota.burst if window_us else 0)

    def key(self, user_id: str) -> str:
        """The user's bucket."""
        return f"{keys.prefix_of(user_id)}{self._key}{user_id}"

    def quota_key(self, user_id: str) -> str:
        """The user's quota, of all categories together."""
        return f"{keys.prefix_of(user_id)}{self._quota_key}{user_id}"

    def interval_s(self, level: int, emission_us: int) -> float:
        """The time one token takes at a level (1 user, 2 channel, 3 quota), inf where none pass.

        `emission_us` is the user's, as overridden, 0 where none pass.
        """
        if level == 1:
            return emission_us / 1e6 or math.inf
        limit = self.channel.limit if level == 2 and self.channel is not None else self.quota
        return math.inf if limit.blocks else limit.emission_us / 1e6

    def remember(self, user_id: str, known: Known, now: float, most: int) -> None:
        """Hold something against a user. The longest held makes room, and until it is void no stranger is lent to."""
        table = self.known
        table.pop(user_id, None)
        if len(table) >= most:
            oldest = next(iter(table))
            self.blind_until = max(self.blind_until, table.pop(oldest)[3])
            while table and table[oldest := next(iter(table))][3] <= now:
                del table[oldest]
        table[user_id] = known


# until, level, interval_s: denied until then; expires: void from then on, see docs/limits.md; the number of the call it
# was learned from; bulk_until: bulk is denied until then
Known = tuple[float, str, float, float, int, float]
