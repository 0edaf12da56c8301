"""The parts of a process, wired once."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from notifier.limits.limiter import Limiter
from notifier.runtime import Runtime
from notifier.settings import Settings

THREADS = 8


def test_threads_that_ask_at_once_get_the_same_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two limiters in a process would lend twice: the bound on a user's grants counts processes."""
    at_once = threading.Barrier(THREADS)

    def slowly(settings: Settings) -> Limiter:
        time.sleep(0.1)
        return Limiter(settings)

    monkeypatch.setattr(Limiter, "from_settings", slowly)

    def ask(parts: Runtime) -> int:
        at_once.wait()
        return id(parts.limiter)

    with closing(Runtime(Settings())) as parts, ThreadPoolExecutor(THREADS) as pool:
        assert set(pool.map(ask, [parts] * THREADS)) == {id(parts.limiter)}
