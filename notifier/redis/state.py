"""The client of state Redis: bounded waiting, no retries, and honest about whether a call may have run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from typing import Any, TypeVar

from redis import ConnectionPool, Redis
from redis.exceptions import (
    AskError,
    AuthenticationError,
    BusyLoadingError,
    ClusterCrossSlotError,
    ConnectionError,
    NoScriptError,
    RedisError,
    TimeoutError,
)

from notifier.errors import SettingsError, StateUnavailable
from notifier.redis.client import Connections, connect, place
from notifier.redis.scripts import Argument, Script

T = TypeVar("T")

LOOK_S = 1.0
CLUSTERED = (
    "NOTIFIER_REDIS_URL names a node of a Redis Cluster, which cannot hold the state: the ledger's scripts take "
    "batches over all users. Name a single server (with replicas, if you like); where one is too small, run several "
    "installations, each with a share of the users. NOTIFIER_LIMITER_REDIS_URL may name a cluster"
)


class _NotSent(ConnectionError):
    """No connection was made, so the command has not run. Its text says where to."""

    def __init__(self, options: Mapping[str, Any], error: Exception) -> None:
        super().__init__(f"{place(options)} cannot be reached ({type(error).__name__})")


class _Pool(ConnectionPool):
    def get_connection(self, *_: Any, **__: Any) -> Any:
        try:
            return super().get_connection()
        except (BusyLoadingError, AuthenticationError):
            raise
        except (ConnectionError, TimeoutError) as error:
            raise _NotSent(self.connection_kwargs, error) from error


class Calls(Connections):
    """Bare connections to state Redis, for scripts. Every one is looked at before it is used: a call that went into a
    connection the server had closed would be called ambiguous."""

    quiet_s = 0.0

    def _connection(self) -> Any:
        connection = super()._connection()
        try:
            connection.connect()
        except (BusyLoadingError, AuthenticationError):
            raise
        except (ConnectionError, TimeoutError) as error:
            raise _NotSent(self._options, error) from error
        return connection

    def run(self, script: Script, keys: Sequence[str], arguments: Sequence[Argument]) -> Any:
        """Run a script: one round trip, two where the server does not know it yet. Raises redis-py's errors."""
        try:
            return self.ask("EVALSHA", script.digest, len(keys), *keys, *arguments)
        except NoScriptError:
            return self.ask("EVAL", script.text, len(keys), *keys, *arguments)

    def ask(self, *command: Argument) -> Any:
        """One command. Raises redis-py's errors."""
        (reply,) = self.call([command])
        if isinstance(reply, Exception):
            raise reply
        return reply


def connect_state(url: str, timeout_s: float) -> Redis:
    """As `connect`, but of a call that failed `call` knows whether it may have run."""
    return connect(url, timeout_s, _Pool)


def call(run: Callable[[], T]) -> T:
    """Run one call. Raises StateUnavailable, whose `ambiguous` says whether the call may have run all the same.

    A refusal by the server (LOADING, OOM, READONLY, NOAUTH, MISCONF) and a connection never made are not ambiguous.
    SettingsError where it is a cluster.
    """
    try:
        return run()
    except _NotSent as error:
        raise StateUnavailable(f"state Redis at {error}") from error
    except (BusyLoadingError, AuthenticationError) as error:
        raise StateUnavailable(f"state Redis: {type(error).__name__}") from error
    except (ConnectionError, TimeoutError) as error:
        raise StateUnavailable(f"state Redis: {type(error).__name__}", ambiguous=True) from error
    except (AskError, ClusterCrossSlotError) as error:  # MOVED is one, too
        raise SettingsError(CLUSTERED) from error
    except RedisError as error:
        raise StateUnavailable(f"state Redis refuses: {type(error).__name__}") from error


def refuse_cluster(url: str) -> None:
    """Raises SettingsError where this is a node of a cluster. One that is away, or may not be asked, may be none."""
    with closing(connect_state(url, LOOK_S)) as client, suppress(RedisError):
        if client.info("cluster").get("cluster_enabled"):
            raise SettingsError(CLUSTERED)


def risks(client: Redis) -> dict[str, str]:
    """What a server is set to that breaks the promise that nothing is lost, and the way out. Raises RedisError."""
    found = {}
    policy = _text(client.info("memory").get("maxmemory_policy", "noeviction"))
    if policy != "noeviction":
        found["state_redis_evicts"] = (
            f"state Redis may throw keys away (maxmemory-policy {policy}): set it to noeviction"
        )
    if not client.info("persistence").get("aof_enabled", 1):
        found["state_redis_forgets"] = "state Redis forgets everything at a restart: set appendonly to yes"
    return found


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
