"""Speaks to lua/token_bucket.lua: many decisions and charges in one round trip."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from redis.exceptions import NoScriptError

from notifier.limits.policy import ChannelPolicy, Policy
from notifier.redis.client import Command, Connections
from notifier.redis.scripts import Argument, Script

NORMAL, CRITICAL, BULK, LOAN = range(4)
ONE = 4096  # an entry's code is cost * ONE + kind
CHUNK = 100  # entries a script runs over, so that none takes 5 ms

Entry = tuple[Policy, str, int]  # policy, user id, code


class Answer(NamedTuple):
    """`numbers` holds wait_us, level * 2 + full, emission_us for each entry, in order."""

    now_us: int
    numbers: list[int]
    channels: list[tuple[ChannelPolicy, int]]  # full or not, before the call


class SharedBuckets:
    """The buckets on one Redis. `process` names the one who charges: a charge repeated by it counts once."""

    def __init__(self, connections: Connections, script: Script, process: str, debt: int) -> None:
        self._connections = connections
        self._script = script
        self._process_key = f"notifier:v1:charged:{process}"
        self._debt = debt

    def decide(self, entries: Sequence[Entry], charges: int = 0, seq: int = 0) -> Answer:
        """Run all entries, in order; the first `charges` of them are loans, numbered from `seq` on, a number a chunk.

        Raises what Connections.call raises, and the server's error reply where there is one.
        """
        commands: list[Command] = []
        channels: list[ChannelPolicy] = []
        sizes = []
        for start in range(0, max(1, len(entries)), CHUNK):
            arguments, of_chunk = self._arguments(entries[start : start + CHUNK], seq if start < charges else 0)
            seq += 1
            commands.append(("EVALSHA", self._script.digest, *arguments))
            channels += of_chunk
            sizes.append(len(of_chunk))
        replies = self._connections.call(commands)
        if any(isinstance(reply, NoScriptError) for reply in replies):
            again = [n for n, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
            texts = self._connections.call([("EVAL", self._script.text, *commands[n][2:]) for n in again])
            for n, reply in zip(again, texts, strict=True):
                replies[n] = reply
        numbers: list[int] = []
        full: list[int] = []
        for reply, size in zip(replies, sizes, strict=True):
            if isinstance(reply, Exception):
                raise reply
            full += reply[1 : 1 + size]
            numbers += reply[1 + size :]
        return Answer(replies[-1][0], numbers, list(zip(channels, full, strict=True)))

    def _arguments(self, entries: Sequence[Entry], seq: int) -> tuple[list[Argument], list[ChannelPolicy]]:
        classes: dict[Policy, int] = {}
        channels: dict[ChannelPolicy, int] = {}
        keys: list[Argument] = []
        codes: list[Argument] = []
        limits: list[Argument] = []
        for policy, user_id, code in entries:
            at = classes.get(policy)
            if at is None:
                at = classes[policy] = len(classes) * 8
                channel = policy.channel
                limits += policy.arguments
                limits.append(0 if channel is None else channels.setdefault(channel, len(channels) + 1))
            keys.append(policy.key(user_id))
            if policy.arguments[2]:
                keys.append(policy.quota_key(user_id))
            codes.append(code + at)
        head: list[Argument] = [channel.key for channel in channels]
        if seq:
            head.insert(0, self._process_key)
        arguments: list[Argument] = [len(head) + len(keys), *head, *keys, seq, self._debt, len(channels), len(classes)]
        for channel in channels:
            arguments += channel.arguments
        arguments += limits
        arguments += codes
        return arguments, list(channels)
