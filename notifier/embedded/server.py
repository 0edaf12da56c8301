"""What Valkey and PostgreSQL have in common: one life cycle and the verbs of fault tests."""

from __future__ import annotations

import signal
import subprocess
from abc import ABC, abstractmethod
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

from notifier.embedded.process import end, free_port, signal_tree, tail, wait_until
from notifier.errors import Unavailable

START_TIMEOUT_S = 60.0  # a server that recovers a large log is slow, not broken
STOP_TIMEOUT_S = 10.0
_TRIES = 5


class Server(ABC):
    """A server on 127.0.0.1. It keeps its port, directory and password over `restart`."""

    name: ClassVar[str]
    stop_signal: ClassVar[signal.Signals]

    def __init__(self, home: Path, port: int, password: str) -> None:
        self.home = home
        self.port = port
        self.password = password
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        """Its log file."""
        return self.home / "log"

    @property
    def pid(self) -> int:
        """Of the main process. Raises Unavailable if it was never started."""
        if self._process is None:
            raise Unavailable(f"{self.name} is not running")
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process is there (a frozen one is)."""
        return self._process is not None and self._process.poll() is None

    def stop(self) -> None:
        """End it in good order, by force after 10 seconds. Fine if it has ended."""
        if self._process is not None:
            end(self._process, self.stop_signal, STOP_TIMEOUT_S)
            self._process = None

    def kill(self) -> None:
        """kill -9, the children too: what a crash of the machine leaves, except for the page cache."""
        signal_tree(self.pid, signal.SIGKILL)
        if self._process is not None:
            self._process.wait()

    def freeze(self) -> None:
        """SIGSTOP: it keeps its connections and answers nothing."""
        signal_tree(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT."""
        signal_tree(self.pid, signal.SIGCONT)

    def restart(self) -> None:
        """Stop it unless it is dead, and start it on the same port and data."""
        self.stop()
        self._launch()

    def _start(self) -> Self:
        """Start on `port`, or on a free one if it is 0. Raises Unavailable with the end of the log."""
        fixed = self.port
        for attempt in range(1, _TRIES + 1):
            self.port = fixed or free_port()
            try:
                self._launch()
            except Unavailable:
                # Between choosing a port and listening on it somebody else may have taken it.
                if fixed or attempt == _TRIES or "in use" not in tail(self.log, 20):
                    raise
            else:
                break
        return self

    def _launch(self) -> None:
        process = self._process = self._spawn()
        if not wait_until(lambda: self._answers() or process.poll() is not None, timeout_s=START_TIMEOUT_S):
            self.stop()
        if not self.running:
            self._process = None
            raise Unavailable(f"{self.name} did not start; the end of {self.log}:\n{tail(self.log)}")

    @staticmethod
    def _home(data_dir: Path) -> Path:
        """The directory, made if missing. Raises Unavailable."""
        home = data_dir.absolute()
        try:
            home.mkdir(mode=0o700, parents=True, exist_ok=True)
            (home / "log").open("ab").close()
        except OSError as error:
            problem = f"{error.filename} cannot be used ({error.strerror})"
            raise Unavailable(f"{problem}: name another directory in NOTIFIER_DATA_DIR") from None
        return home

    @abstractmethod
    def _spawn(self) -> subprocess.Popen[bytes]:
        """Start the process."""

    @abstractmethod
    def _answers(self) -> bool:
        """Whether it answers now."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
