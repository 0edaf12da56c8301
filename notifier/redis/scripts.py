"""Loads a script from lua/ and runs it by its digest.

A script that begins with `-- with: ledger` gets lua/ledger.lua put before it; `#!lua` stays its first line.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cache
from typing import Any

from redis import Redis
from redis.exceptions import NoScriptError

from notifier import resources

Argument = str | int | bytes


class Script:
    """One Lua script. `run` sends the digest, and the text only where the server does not know it yet."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.digest = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()

    def run(self, client: Redis, keys: Sequence[str], arguments: Sequence[Argument]) -> Any:
        """One round trip; two after a restart or SCRIPT FLUSH."""
        try:
            return client.evalsha(self.digest, len(keys), *keys, *arguments)
        except NoScriptError:
            return client.eval(self.text, len(keys), *keys, *arguments)


def assemble(text: str) -> str:
    """The text as the server gets it: shebang, shared functions, body."""
    lines = text.splitlines()
    shebang = [lines.pop(0)] if lines[0].startswith("#!") else []
    shared = [
        resources.lua(name.strip())
        for line in lines
        if line.startswith("-- with:")
        for name in line.removeprefix("-- with:").split(",")
    ]
    return "\n".join([*shebang, *shared, *lines, ""])


@cache
def script(name: str) -> Script:
    """The script lua/<name>.lua."""
    return Script(assemble(resources.lua(name)))
