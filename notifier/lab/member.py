"""One process of an installation, over all its lives: started, watched, frozen, killed, started again."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from notifier.embedded.process import end, signal_tree, spawn
from notifier.errors import Unavailable

_FIRST_BACKOFF_S, _LAST_BACKOFF_S = 0.5, 10.0
_STEADY_S = 30.0  # one that lived so long has started well


class Member:
    """One process of the stack, over all its lives."""

    def __init__(self, name: str, arguments: list[str], log: Path, env: Mapping[str, str], cwd: Path) -> None:
        self.name = name
        self.log = log
        self.starts = 0
        self._arguments = arguments
        self._env = env
        self._cwd = cwd
        self._process: subprocess.Popen[bytes] | None = None
        self._log_offset = 0
        self._started_s = 0.0
        self._backoff_s = 0.0
        self._due_s = 0.0

    @property
    def pid(self) -> int:
        """Of its main process now. Raises Unavailable before the first start."""
        if self._process is None:
            raise Unavailable(f"{self.name} is not running")
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process is there (a frozen one is)."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start it. -P: a `notifier` or `tasks` in the working directory does not get in the way."""
        self._log_offset = self.log.stat().st_size if self.log.exists() else 0
        self._started_s = time.monotonic()
        self.starts += 1
        self._process = spawn(
            [sys.executable, "-P", "-m", "notifier", *self._arguments],
            log=self.log,
            env={"PYTHONUNBUFFERED": "1", **self._env},
            cwd=self._cwd,
        )

    def logged(self, text: str) -> bool:
        """Whether this life of it has logged `text`."""
        try:
            with self.log.open("rb") as log:
                log.seek(self._log_offset)
                return text.encode() in log.read()
        except OSError:
            return False

    def tend(self, say: Callable[[str], None]) -> None:
        """Start it again if it died: soon, and ever later if it keeps dying."""
        if self.running:
            return
        now_s = time.monotonic()
        if not self._due_s:
            steady = now_s - self._started_s > _STEADY_S
            self._backoff_s = (
                _FIRST_BACKOFF_S if steady else min(_LAST_BACKOFF_S, self._backoff_s * 2 or _FIRST_BACKOFF_S)
            )
            self._due_s = now_s + self._backoff_s
            say(f"{self.name} has ended and is started again in {self._backoff_s:g} s; see {self.log}")
        elif now_s >= self._due_s:
            self._due_s = 0.0
            self.kill()
            self.start()

    def terminate(self) -> None:
        """TERM, once: a second one would ask Celery to hurry. A frozen process is thawed to hear it."""
        if self._process and self.running:
            signal_tree(self.pid, signal.SIGCONT)
            self._process.terminate()

    def wait(self, timeout_s: float) -> None:
        """Wait for its end, and kill it after `timeout_s`."""
        if self._process:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout_s)
            self.kill()

    def kill(self) -> None:
        """kill -9, the children too, also those that outlived it."""
        if self._process:
            signal_tree(self.pid, signal.SIGKILL)
            end(self._process, signal.SIGKILL, 0.0)

    def freeze(self) -> None:
        """SIGSTOP, the children too."""
        signal_tree(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT, the children too."""
        signal_tree(self.pid, signal.SIGCONT)
