"""A RabbitMQ on the loopback address, from the machine's own package: there is no wheel of it."""

from __future__ import annotations

import secrets
import shutil
import signal
import subprocess
from pathlib import Path
from typing import ClassVar, Self

from notifier.embedded.process import end, free_port, spawn
from notifier.embedded.server import Server
from notifier.errors import Unavailable

_SERVER = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
_USER = "notifier"


def missing() -> str:
    """Why it cannot be started here; empty if it can."""
    if not _SERVER.exists() or not shutil.which("epmd"):
        return "needs RabbitMQ: apt-get install rabbitmq-server"
    return ""


class RabbitMQ(Server):
    """`RabbitMQ.start(directory)` returns it running; `url()` says where. With a password, and plugins off.

    It is a node of its own, with its own port mapper (epmd): it shares nothing with a RabbitMQ that runs as a service.
    """

    name: ClassVar[str] = "RabbitMQ"
    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM

    def __init__(self, home: Path, port: int, password: str) -> None:
        super().__init__(home, port, password)
        self._mapper: subprocess.Popen[bytes] | None = None
        self._mapper_port = free_port()
        self._distribution_port = free_port()

    @classmethod
    def start(cls, data_dir: Path, port: int = 0) -> Self:
        """Start one on the data in `data_dir` (made if missing). Port 0: a free one. Takes some seconds.

        Raises Unavailable where it is not installed or does not start.
        """
        if problem := missing():
            raise Unavailable(problem)
        home = cls._home(data_dir)
        secret = home / "password"
        if not secret.exists():  # the first start makes the user with it
            secret.touch(mode=0o600)
            secret.write_text(secrets.token_urlsafe(24))
        return cls(home, port, secret.read_text())._start()

    def url(self) -> str:
        """amqp:// with the password."""
        return f"amqp://{_USER}:{self.password}@127.0.0.1:{self.port}//"

    def stop(self) -> None:
        """End it in good order, and its port mapper."""
        super().stop()
        if self._mapper:
            end(self._mapper, signal.SIGTERM, 1.0)
            self._mapper = None

    def _environment(self) -> dict[str, str]:
        home = str(self.home)
        return {
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            "LC_ALL": "C.UTF-8",
            "TZ": "UTC",
            "HOME": home,  # for the Erlang cookie
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": str(self._mapper_port),
            "RUNNING_UNDER_SYSTEMD": "true",  # the server itself is our child, without a shell between
            "RABBITMQ_NODENAME": "notifier@localhost",
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            "RABBITMQ_CONFIG_FILE": f"{home}/rabbitmq.conf",
            "RABBITMQ_ADVANCED_CONFIG_FILE": f"{home}/advanced.config",
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{home}/enabled_plugins",
            "RABBITMQ_MNESIA_BASE": f"{home}/data",
            "RABBITMQ_LOG_BASE": home,
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_PID_FILE": f"{home}/pid",
            "RABBITMQ_DIST_PORT": str(self._distribution_port),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
        }

    def _spawn(self) -> subprocess.Popen[bytes]:
        config = self.home / "rabbitmq.conf"
        config.touch(mode=0o600)
        config.write_text(
            f"listeners.tcp.default = 127.0.0.1:{self.port}\n"
            f"default_user = {_USER}\n"
            f"default_pass = {self.password}\n"
            "log.console = true\n"
            "log.console.level = warning\n"
            "vm_memory_high_watermark.absolute = 1GB\n"
            "disk_free_limit.absolute = 50MB\n"
        )
        (self.home / "enabled_plugins").write_text("[].\n")
        env = self._environment()
        if self._mapper is None or self._mapper.poll() is not None:
            # RabbitMQ would start one as a daemon that outlives everything.
            self._mapper = spawn(["/usr/bin/epmd", "-port", str(self._mapper_port)], log=self.log, env=env)
        return spawn([_SERVER], log=self.log, env=env, cwd=self.home)

    def _answers(self) -> bool:
        from amqp import Connection
        from amqp.exceptions import AMQPError

        connection = Connection(f"127.0.0.1:{self.port}", _USER, self.password, connect_timeout=2, read_timeout=2)
        try:
            connection.connect()
            connection.close()
        except (OSError, AMQPError):
            return False
        return True
