"""Wires the parts once per process. Nothing is connected before its first use; a forked child makes its own."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property, wraps
from typing import TypeVar

from redis import Redis

from notifier.deadletters.outbox import Outbox
from notifier.deadletters.replay import Replay
from notifier.deadletters.store import Store
from notifier.ledger import Ledger
from notifier.limits.limiter import Limiter
from notifier.pipeline import Pipeline
from notifier.redis.state import connect_state
from notifier.settings import Settings
from notifier.sweep import Sweep

WORKER_STATE_TIMEOUT_S = 2.0  # a worker may wait longer than a web request
T = TypeVar("T")


def _part(make: Callable[[Runtime], T]) -> cached_property[T]:
    """Made once, also when several threads ask at the same moment: Python 3.12 took that from cached_property."""
    name = make.__name__

    @wraps(make)
    def once(runtime: Runtime) -> T:
        with runtime._making:
            if name not in runtime.__dict__:
                runtime.__dict__[name] = make(runtime)
            part: T = runtime.__dict__[name]
            return part

    return cached_property(once)


class Runtime:
    """All parts of one process, made when first asked for."""

    stands_in = False  # for the real one, in a test

    def __init__(self, settings: Settings, *, worker: bool = False) -> None:
        self.settings = settings
        self._worker = worker
        self._making = threading.RLock()  # a part may be made of others

    @_part
    def client(self) -> Redis:
        """State Redis."""
        timeout_s = (
            max(self.settings.state_timeout, WORKER_STATE_TIMEOUT_S) if self._worker else self.settings.state_timeout
        )
        return connect_state(self.settings.redis_url, timeout_s)

    @_part
    def ledger(self) -> Ledger:
        """The ledger."""
        return Ledger(self.client, self.settings)

    @_part
    def limiter(self) -> Limiter:
        """The limiter."""
        return Limiter.from_settings(self.settings)

    @_part
    def store(self) -> Store:
        """Dead letters in PostgreSQL."""
        return Store(self.settings.database_url)

    @_part
    def outbox(self) -> Outbox:
        """Rows in an application's own transaction."""
        return Outbox(self.ledger, self.settings.default_ttl)

    @_part
    def pipeline(self) -> Pipeline:
        """The worker's side."""
        return Pipeline(self.ledger, self.limiter, self.store, self.settings, lambda ids: self.replay.run_ids(ids))

    @_part
    def replay(self) -> Replay:
        """Spill and replay."""
        return Replay(self.store, self.ledger, self.limiter, self.settings)

    @_part
    def sweep(self) -> Sweep:
        """Probes and republishing."""
        return Sweep(self.ledger, self.store)

    def close(self) -> None:
        """Charge open loans, let go of connections."""
        made = self.__dict__
        if "limiter" in made:
            self.limiter.flush()
            self.limiter.close()
        if "store" in made:
            self.store.close()
        if "ledger" in made:
            self.ledger.close()
        if "client" in made:
            self.client.close()


_lock = threading.Lock()
_current: Runtime | None = None
_pid = 0
_worker = False


def get(settings: Settings | None = None) -> Runtime:
    """The runtime of this process. `settings` counts only at the first call; later ones get what there is."""
    global _current, _pid
    if _current is None or _pid != os.getpid():
        with _lock:
            if _current is None or _pid != os.getpid():
                _current = Runtime(settings or Settings(), worker=_worker)
                _pid = os.getpid()
    return _current


def act_as_worker() -> None:
    """Called where Celery starts a worker: state Redis may take longer there than in a web request."""
    global _worker
    _worker = True
    close()


def close() -> None:
    """Close what this process made; the next get() makes it anew."""
    global _current
    with _lock:
        if _current is not None and _current.stands_in:
            return
        if _current is not None and _pid == os.getpid():
            _current.close()
        _current = None


@contextmanager
def standing_in(stand_in: Runtime) -> Iterator[None]:
    """Within, `get()` returns this one, in every thread of this process, also after a close()."""
    global _current, _pid
    pid = os.getpid()
    with _lock:
        before, _current, _pid = _current, stand_in, pid
    try:
        yield
    finally:
        with _lock:
            _current = before if os.getpid() == pid else None  # a child must not use its parent's connections


def _after_fork() -> None:
    global _lock, _current, _pid
    _lock = threading.Lock()
    if _current is not None and _current.stands_in:
        _pid = os.getpid()  # a test's child must send nothing, either
    else:
        _current = None


os.register_at_fork(after_in_child=_after_fork)
