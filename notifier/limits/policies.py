"""All policies of a process: from the settings and from what was overridden at run time."""

from __future__ import annotations

from notifier.limit import Limit
from notifier.limits.overrides import Overrides
from notifier.limits.policy import ChannelPolicy, Policy
from notifier.notification import MAX_NAME, clean_text
from notifier.settings import Settings

MAX_ALIASES = 4_096  # categories are the callers' to invent
MAX_CHANNELS = 256


class Policies:
    """Finds the policy of a channel and category. Not safe between threads while it installs."""

    def __init__(self, settings: Settings) -> None:
        self.loaded = False  # the overrides were read at least once
        self.aliases: dict[tuple[str, str], Policy] = {}  # a cache: many categories, few policies
        self._settings = settings
        self._overrides = Overrides()
        self._channels: dict[str, ChannelPolicy | None] = {}
        self._policies: dict[tuple[str, str | None], Policy] = {}

    def find(self, channel: str, category: str) -> Policy:
        """Raises InvalidNotification for a channel or category that is no name."""
        channel = clean_text("channel", channel, MAX_NAME)
        category = clean_text("category", category, MAX_NAME)
        limit = self._overrides.categories.get((channel, category))
        bucket = (channel, None if limit is None else category)
        policy = self._policies.get(bucket)
        if policy is None:
            policy = self._policies.setdefault(bucket, self._make(channel, bucket[1], limit))
        if len(self.aliases) >= MAX_ALIASES:
            self.aliases.clear()
        self.aliases[channel, category] = policy
        return policy

    def _make(self, channel: str, category: str | None, limit: Limit | None) -> Policy:
        settings = self._settings
        if channel not in self._channels:
            if len(self._channels) >= MAX_CHANNELS:
                raise ValueError(f"channel {channel!r} is one more than the {MAX_CHANNELS} that can be limited")
            self._channels[channel] = self._channel(channel)
        policy = Policy(
            channel,
            category,
            settings.user_limit_of(channel) if limit is None else limit,
            settings.user_quota_of(channel),
            self._channels[channel],
            not settings.local_bucket.off,
        )
        policy.free = self._is_free(policy)
        return policy

    def _channel(self, channel: str) -> ChannelPolicy | None:
        limit = self._settings.channel_limit_of(channel)
        if limit.off:
            return None
        bucket = self._settings.local_bucket
        lent = 0 if bucket.off else bucket.burst + int(bucket.rate) + 1  # by one process before it learns
        return ChannelPolicy(channel, limit, self._settings.max_processes * lent)

    def _is_free(self, policy: Policy) -> bool:
        limited = not (policy.user.off and policy.quota.off and policy.channel is None)
        return self.loaded and not limited and not self._overrides.users

    def all(self) -> list[Policy]:
        """Every policy, also one whose override is gone: its loans are still to be charged."""
        return list(self._policies.values())

    def install(self, found: Overrides) -> None:
        """Take over what was read. A change empties every deny cache; what is known of debts stays."""
        if self.loaded and found.version == self._overrides.version:
            return
        self.loaded = True
        self._overrides = found
        self.aliases.clear()
        for (channel, category), policy in self._policies.items():
            if category is not None and (limit := found.categories.get((channel, category))) is not None:
                policy.change(limit)
            policy.free = self._is_free(policy)
            policy.known = {
                user_id: (0.0, known[1], known[2], known[3], known[4], 0.0) for user_id, known in policy.known.items()
            }
            if policy.channel is not None:
                policy.channel.until = 0.0
