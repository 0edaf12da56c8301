"""Speaks to lua/token_bucket.lua: many decisions and charges in one round trip."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from redis.exceptions import NoScriptError

from notifier.limits.policy import ChannelPolicy, Policy
from notifier.redis.client import Command
from notifier.redis.keys import PREFIX
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


class Server(Protocol):
    """One Redis, or what passes for one."""

    def call(self, commands: Sequence[Command]) -> list[Any]:
        """One round trip; an error reply stands in its place in the list."""


class SharedBuckets:
    """The buckets on one Redis. `process` names the one who charges: a charge repeated by it counts once."""

    def __init__(self, server: Server, script: Script, process: str, debt: int) -> None:
        self._server = server
        self._script = script
        self._process = process
        self._debt = debt

    def decide(self, entries: Sequence[Entry], charges: int = 0, seq: int = 0) -> Answer:
        """Run all entries, in order; the first `charges` of them are loans, numbered from `seq` on, a number a chunk.

        Raises what the call raises, and the server's error reply where there is one.
        """
        if len(entries) == 1 and not seq and entries[0][0].channel is None:  # the most frequent question
            (reply,) = self.run((self.command(entries, (), PREFIX, 0),))
            return Answer(reply[0], reply[1:], [])
        commands: list[Command] = []
        channels: list[ChannelPolicy] = []
        sizes = []
        for start in range(0, max(1, len(entries)), CHUNK):
            chunk = entries[start : start + CHUNK]
            limited = list(dict.fromkeys(policy.channel for policy, _, _ in chunk if policy.channel is not None))
            commands.append(self.command(chunk, limited, PREFIX, seq if start < charges else 0))
            seq += 1
            channels += limited
            sizes.append(len(limited))
        numbers: list[int] = []
        full: list[int] = []
        now_us = 0
        for reply, size in zip(self.run(commands), sizes, strict=True):
            now_us = reply[0]
            full += reply[1 : 1 + size]
            numbers += reply[1 + size :]
        return Answer(now_us, numbers, list(zip(channels, full, strict=True)))

    def run(self, commands: Sequence[Command]) -> list[list[int]]:
        """The replies. A script that the server has forgotten is sent again; any other error reply is raised."""
        replies = self._server.call(commands)
        if len(replies) == 1 and replies[0].__class__ is list:
            return replies
        again = [n for n, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
        if again:
            texts = self._server.call([("EVAL", self._script.text, *commands[n][2:]) for n in again])
            for n, reply in zip(again, texts, strict=True):
                replies[n] = reply
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply
        return replies

    def command(self, entries: Sequence[Entry], limited: Sequence[ChannelPolicy], prefix: str, seq: int) -> Command:
        """One run of the script. `limited` are the channels whose buckets it decides on, `prefix` begins its key."""
        classes: dict[Policy, int] = {}
        keys: list[Argument] = [channel.key for channel in limited]
        if seq:
            keys.insert(0, f"{prefix}charged:{self._process}")
        codes: list[Argument] = []
        limits: list[Argument] = [number for channel in limited for number in channel.arguments]
        for policy, user_id, code in entries:
            at = classes.get(policy)
            if at is None:
                at = classes[policy] = len(classes) * 8
                limits += policy.arguments
                limits.append(limited.index(policy.channel) + 1 if policy.channel in limited else 0)
            keys.append(policy.key(user_id))
            if policy.arguments[2]:
                keys.append(policy.quota_key(user_id))
            codes.append(code + at)
        numbers = (seq, self._debt, len(limited), len(classes))
        return ("EVALSHA", self._script.digest, len(keys), *keys, *numbers, *limits, *codes)
