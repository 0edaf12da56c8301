"""What tests of every kind use: waiting for a condition, free ports, what is left running."""

from __future__ import annotations

import base64
import ctypes
import json
import sys
import time
from collections.abc import Callable
from typing import Any, TypeVar

import psutil
from redis import Redis

from notifier.embedded.process import free_port
from notifier.embedded.valkey import Valkey

__all__ = ["adopt_orphans", "command_line", "descendants", "eventually", "free_port", "published"]

T = TypeVar("T")
_PR_SET_CHILD_SUBREAPER = 36


def eventually(predicate: Callable[[], T], *, timeout_s: float = 20.0, interval_s: float = 0.02) -> T:
    """Poll until `predicate()` is true, and return what it returned. An AssertionError in it counts as false.

    Fails after `timeout_s` with the last value, or with the last AssertionError.
    """
    deadline_s = time.monotonic() + timeout_s
    while True:
        failure: AssertionError | None = None
        value: T | None = None
        try:
            value = predicate()
        except AssertionError as error:
            failure = error
        if value:
            return value
        if time.monotonic() > deadline_s:
            raise failure or AssertionError(f"not true within {timeout_s} s; the last value was {value!r}")
        time.sleep(interval_s)


def queued(server: Valkey, queue: str = "normal") -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Headers and kwargs of every message in a queue of a test's broker, oldest first."""
    with Redis.from_url(server.url(1)) as client:
        raw: Any = client.lrange(f"notifier.{queue}", 0, -1)
    messages = [json.loads(text) for text in reversed(raw)]
    return [(message["headers"], json.loads(base64.b64decode(message["body"]))[1]) for message in messages]


def queued_kwargs(server: Valkey, queue: str = "normal") -> list[dict[str, Any]]:
    """The kwargs alone."""
    return [kwargs for _, kwargs in queued(server, queue)]


def batches(kwargs: dict[str, Any]) -> list[dict[str, Any]]:
    """What a message of several batches holds, and one of one."""
    found: list[dict[str, Any]] = kwargs.get("batches", [kwargs])
    return found


def published(server: Valkey) -> list[str]:
    """The notification ids in the normal queue of a test's broker, oldest first."""
    return [batch["notification_id"] for kwargs in queued_kwargs(server) for batch in batches(kwargs)]


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent dies, so that `descendants` misses none (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def descendants(pid: int | None = None) -> list[psutil.Process]:
    """Every process below `pid` (this one) that still runs, but multiprocessing's own helpers, which live as long."""
    return [child for child in psutil.Process(pid).children(recursive=True) if _counts(child)]


def command_line(process: psutil.Process) -> str:
    """Its command line; empty if it has ended."""
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""


def _counts(process: psutil.Process) -> bool:
    return "multiprocessing" not in (line := command_line(process)) and line != ""
