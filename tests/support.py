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


def published(server: Valkey) -> list[str]:
    """The notification ids in the normal queue of a test's broker, oldest first."""
    with Redis.from_url(server.url(1)) as client:
        messages: Any = client.lrange("notifier.normal", 0, -1)
    kwargs = [json.loads(base64.b64decode(json.loads(raw)["body"]))[1] for raw in reversed(messages)]
    return [batch["notification_id"] for message in kwargs for batch in message.get("batches", [message])]


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
