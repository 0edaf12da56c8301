"""The client of state Redis: bounded waiting, no retries, and honest about whether a call may have run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from redis import ConnectionPool, Redis
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, BusyLoadingError, ConnectionError, RedisError, TimeoutError
from redis.retry import Retry

from notifier.errors import StateUnavailable

T = TypeVar("T")


class _NotSent(ConnectionError):
    """No connection was made, so the command has not run."""


class _Pool(ConnectionPool):
    def get_connection(self, *_: Any, **__: Any) -> Any:
        try:
            return super().get_connection()
        except (BusyLoadingError, AuthenticationError):
            raise
        except (ConnectionError, TimeoutError) as error:
            raise _NotSent(type(error).__name__) from error


def connect_state(url: str, timeout_s: float) -> Redis:
    """A client whose every call ends within about `timeout_s` seconds. Replies are bytes."""
    pool = _Pool.from_url(
        url,
        socket_timeout=timeout_s,
        socket_connect_timeout=timeout_s,
        retry=Retry(NoBackoff(), 0),
        health_check_interval=0,
        protocol=2,
    )
    return Redis.from_pool(pool)


def call(run: Callable[[], T]) -> T:
    """Run one call. Raises StateUnavailable, whose `ambiguous` says whether the call may have run all the same.

    A refusal by the server (LOADING, OOM, READONLY, NOAUTH, MISCONF) and a connection never made are not ambiguous.
    """
    try:
        return run()
    except _NotSent as error:
        raise StateUnavailable(f"state Redis cannot be reached ({error})") from error
    except (BusyLoadingError, AuthenticationError) as error:
        raise StateUnavailable(f"state Redis: {type(error).__name__}") from error
    except (ConnectionError, TimeoutError) as error:
        raise StateUnavailable(f"state Redis: {type(error).__name__}", ambiguous=True) from error
    except RedisError as error:
        raise StateUnavailable(f"state Redis refuses: {type(error).__name__}") from error
