"""Tells kinds of outages apart, and remembers whether a server may be asked now."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from redis.exceptions import AuthenticationError, NoPermissionError, RedisError, ResponseError, TimeoutError

logger = logging.getLogger(__name__)

# What an error reply begins with, and what it means for who wanted an answer.
_REPLIES = {
    "LOADING": "loading",  # reads its data from disk; will be back
    "MASTERDOWN": "masterdown",  # a replica without its primary
    "READONLY": "readonly",  # a failover went past us: connect anew
    "BUSY": "busy",  # somebody's script runs for too long
    "OOM": "out of memory",  # full, and its policy refuses writes
    "MISCONF": "cannot save",  # its disk is full; refuses writes
    "CLUSTERDOWN": "cluster down",
    "TRYAGAIN": "cluster down",
    "NOREPLICAS": "no replicas",
    "NOAUTH": "authentication",
    "WRONGPASS": "authentication",
    "NOPERM": "authentication",
    "DENIED": "authentication",
}
MISCONFIGURED = frozenset({"authentication", "error"})  # no waiting cures these


def kind_of(error: Exception) -> str:
    """A word for why the server could not answer. Never the error's own text: it may hold parts of a URL."""
    if isinstance(error, AuthenticationError | NoPermissionError):
        return "authentication"
    if isinstance(error, TimeoutError):
        return "timeout"
    words = str(error).split(maxsplit=1)
    known = _REPLIES.get(words[0]) if words else None
    if known or not isinstance(error, RedisError | OSError):
        return known or "error"
    # redis-py strips the first word from the error replies that have a class of their own
    by_class = {
        "MovedError": "slots move",
        "AskError": "slots move",
        "BusyLoadingError": "loading",
        "MasterDownError": "masterdown",
        "ReadOnlyError": "readonly",
        "OutOfMemoryError": "out of memory",
        "ClusterDownError": "cluster down",
        "TryAgainError": "cluster down",
    }
    return by_class.get(type(error).__name__) or ("error" if isinstance(error, ResponseError) else "unreachable")


def _detail(error: Exception) -> str:
    """What lies under "unreachable": refused, reset, closed by the server."""
    return type(error.__cause__ or error.__context__ or error).__name__


class Breaker:
    """Closed while the server answers. Once open, callers do not ask; whoever probes tells it how that went.

    `down` is a plain attribute, because it is read at every decision. Warns when it opens, at most every ten seconds.
    """

    def __init__(self, what: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.down = False
        self.kind: str | None = None
        self.since = 0.0
        self.outages = 0
        self._what = what
        self._clock = clock
        self._warned: tuple[str, float] | None = None

    def fail(self, error: Exception) -> None:
        """The server did not answer as it should."""
        kind, now = kind_of(error), self._clock()
        if not self.down:
            self.since = now
            self.outages += 1
        self.kind = kind
        self.down = True
        if self._warned is None or self._warned[0] != kind or now - self._warned[1] >= 10:
            self._warned = (kind, now)
            level = logging.ERROR if kind in MISCONFIGURED else logging.WARNING
            cure = " (check user and password in its URL; this will not pass by itself)" if level > 30 else ""
            logger.log(level, "%s is unavailable: %s (%s)%s", self._what, kind, _detail(error), cure)

    def succeed(self) -> None:
        """The server answered."""
        if self.down:
            logger.warning("%s is back after %.1f s", self._what, self._clock() - self.since)
            self.down = False
            self.kind = None
