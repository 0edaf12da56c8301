"""The shared buckets on a cluster: everything of a user is in one slot; the channel costs one more round trip.

All or nothing needs a third where a channel denies: what the users' buckets gave is given back.
"""

from __future__ import annotations

from collections.abc import Sequence

from notifier.limits.policy import ChannelPolicy
from notifier.limits.shared import CHUNK, LOAN, NORMAL, ONE, Answer, Entry, SharedBuckets
from notifier.redis.client import Command
from notifier.redis.keys import prefix_of
from notifier.redis.routes import Routes
from notifier.redis.scripts import Script, script


class RoutedBuckets:
    """As SharedBuckets, on whatever the routes lead to."""

    def __init__(self, routes: Routes, text: Script, process: str, debt: int) -> None:
        self._routes = routes
        self._text = text
        self._process = process
        self._debt = debt
        self._buckets = SharedBuckets(routes, text, process, debt)

    def decide(self, entries: Sequence[Entry], charges: int = 0, seq: int = 0) -> Answer:
        """As SharedBuckets.decide."""
        if not self._routes.clustered:
            return self._buckets.decide(entries, charges, seq)
        if not entries:
            return self._touch()
        now_us, numbers = self._users(entries, charges, seq)
        limited = dict.fromkeys(policy.channel for policy, _, _ in entries if policy.channel is not None)
        channels = [(channel, self._channel(channel, entries, charges, seq, numbers)) for channel in limited]
        self._refund(entries, numbers)
        return Answer(max(now_us), [number for triple in numbers for number in triple[:3]], channels)

    def _touch(self) -> Answer:
        """Run the script for nobody, on every node."""
        replies = self._routes.everywhere(("EVAL", self._text.text, 0, 0, self._debt, 0, 0))
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply
        return Answer(max(reply[0] for reply in replies), [], [])

    def _users(self, entries: Sequence[Entry], charges: int, seq: int) -> tuple[list[int], list[list[int]]]:
        """Users and quotas, a script for each shard: the times, and wait, flags, emission, time for each entry."""
        shards: dict[str, list[int]] = {}
        for n, (_, user_id, _) in enumerate(entries):
            shards.setdefault(prefix_of(user_id), []).append(n)
        commands: list[Command] = []
        places: list[list[int]] = []
        for prefix, members in shards.items():
            for number, start in enumerate(range(0, len(members), CHUNK)):
                chunk = members[start : start + CHUNK]
                charging = seq + number if chunk[0] < charges else 0
                commands.append(self._buckets.command([entries[n] for n in chunk], [], prefix, charging))
                places.append(chunk)
        numbers: list[list[int]] = [[] for _ in entries]
        times: list[int] = []
        for chunk, reply in zip(places, self._buckets.run(commands), strict=True):
            times.append(reply[0])
            for at, n in enumerate(chunk):
                numbers[n] = [*reply[1 + 3 * at : 4 + 3 * at], reply[0]]
        return times, numbers

    def _channel(
        self, channel: ChannelPolicy, entries: Sequence[Entry], charges: int, seq: int, numbers: list[list[int]]
    ) -> int:
        """Ask the channel's bucket for those who were granted; note whom it denies. Returns whether it was full."""
        lent = sum(code // ONE for policy, _, code in entries[:charges] if policy.channel is channel)
        asking = [n for n in range(charges, len(entries)) if entries[n][0].channel is channel and not numbers[n][0]]
        codes = ([lent * ONE + LOAN] if lent else []) + [ONE + NORMAL] * len(asking)
        emission_us, burst, debt = channel.arguments
        commands: list[Command] = []
        for start in range(0, max(1, len(codes)), CHUNK):
            chunk = codes[start : start + CHUNK]
            charging = seq if lent and start == 0 else 0
            names = [f"{channel.prefix}charged:{self._process}"] * (charging > 0) + [channel.key] * len(chunk)
            limits = (charging, debt, 0, 1, emission_us, burst, 0, 0, 0)
            commands.append(("EVALSHA", self._text.digest, len(names), *names, *limits, *chunk))
        found = [number for reply in self._buckets.run(commands) for number in reply[1:]]
        first = 3 if lent else 0
        for at, n in enumerate(asking):
            wait_us, flags = found[first + 3 * at], found[first + 3 * at + 1]
            if wait_us:
                numbers[n][0] = wait_us
                numbers[n][1] = 4 + numbers[n][1] % 2 if flags >> 1 else numbers[n][1]
                numbers[n].append(1)  # to be given back
        return found[1] & 1 if found else int(channel.full)

    def _refund(self, entries: Sequence[Entry], numbers: list[list[int]]) -> None:
        """Give back what the users' buckets gave to those whom a channel denied."""
        commands: list[Command] = []
        refund = script("token_refund")
        for (policy, user_id, _), of_entry in zip(entries, numbers, strict=True):
            if len(of_entry) > 4:
                names = [policy.key(user_id)] + [policy.quota_key(user_id)] * (policy.arguments[2] > 0)
                arguments = (of_entry[3], policy.arguments[0], policy.arguments[2])
                commands.append(("EVAL", refund.text, len(names), *names, *arguments))
        if commands:
            self._routes.call(commands)
