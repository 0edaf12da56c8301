"""The arguments of one call of the protocol's scripts, see lua/ledger.lua: what several items share is said once."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from notifier.notification import Notification
from notifier.redis.keys import prefix_of
from notifier.redis.scripts import Argument


class Items:
    """`keys` are the items' shard prefixes, in order. A class is what items have in common, a number from 1 on."""

    def __init__(self) -> None:
        self.keys: list[str] = []
        self._classes: list[Argument] = []
        self._items: list[Argument] = []
        self._numbers: dict[Hashable, int] = {}

    def known(self, alike: Hashable) -> int:
        """The class that was learned for `alike`; 0 if none was."""
        return self._numbers.get(alike, 0)

    def learn(self, alike: Hashable, shared: Sequence[Argument]) -> int:
        """A new class. All classes of a call have as many fields."""
        self._classes += shared
        number = self._numbers[alike] = len(self._numbers) + 1
        return number

    def add(self, n: Notification, number: int, accepted_us: int, epoch: str, extra: Sequence[Argument]) -> None:
        """One item of a class, with what the script wants beside."""
        self.keys.append(prefix_of(n.user_id))
        channel = f"{len(n.channel)}:{n.channel}:"  # identity_part and user_part of notifier.redis.keys, in one go
        part = f"{channel}{len(n.user_id)}:{n.user_id}:{n.notification_id}"
        self._items += (part, channel + n.user_id, number, accepted_us, epoch, *extra)

    def arguments(self, head: Sequence[Argument]) -> list[Argument]:
        """All of them, `head` between classes and items."""
        count = len(self._numbers)
        return [count, len(self._classes) // max(1, count), *self._classes, *head, *self._items]
