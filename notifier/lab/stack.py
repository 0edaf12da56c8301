"""The processes of a whole installation: workers, beat and gateway, started, watched and ended here."""

from __future__ import annotations

import os
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from notifier.embedded.process import free_port, tail, wait_until
from notifier.errors import Unavailable
from notifier.lab.member import Member
from notifier.settings import PREFIX

READY_TIMEOUT_S = 60.0


def environment(settings: Mapping[str, str]) -> dict[str, str]:
    """The environment of a process with exactly these NOTIFIER_ settings; the rest is ours."""
    return {name: value for name, value in os.environ.items() if not name.upper().startswith(PREFIX)} | dict(settings)


class Stack:
    """Workers, beat and a gateway with the same settings.

    `settings` are NOTIFIER_ variables, all of them: nothing else of that prefix reaches the processes. Start and tend
    it from one thread: the processes end with it.
    """

    def __init__(
        self,
        settings: Mapping[str, str],
        log_dir: Path,
        *,
        workers: int = 1,
        concurrency: int = 2,
        pool: str = "prefork",
        beat: bool = True,
        gateway_port: int = 0,
        gateway: bool = True,
        worker_options: Sequence[str] = (),
        cwd: Path | None = None,
    ) -> None:
        self._log_dir = log_dir.absolute()
        self._env = environment(settings)
        self._cwd = cwd or Path.cwd()
        self.gateway_port = gateway_port or free_port()
        self.members: dict[str, Member] = {}
        for number in range(1, workers + 1):
            # Without gossip and mingle: they cost a second at the start, and serve other things than these tasks.
            options = ["--concurrency", str(concurrency), "--pool", pool, "--without-gossip", "--without-mingle"]
            options += ["--hostname", f"worker-{number}-{os.getpid()}@%h", *worker_options]
            self._add(f"worker-{number}", "worker", *options)
        if beat:
            self._add("beat", "beat")
        if gateway:
            self._add("gateway", "gateway", "--host", "127.0.0.1", "--port", str(self.gateway_port))

    def _add(self, name: str, *arguments: str) -> None:
        self.members[name] = Member(name, list(arguments), self._log_dir / f"{name}.log", self._env, self._cwd)

    @property
    def workers(self) -> list[Member]:
        """The workers alone."""
        return [member for name, member in self.members.items() if name.startswith("worker")]

    @property
    def gateway_url(self) -> str:
        """http://127.0.0.1:port, without a slash at the end."""
        return f"http://127.0.0.1:{self.gateway_port}"

    def start(self, timeout_s: float = READY_TIMEOUT_S, while_waiting: Callable[[], None] = lambda: None) -> None:
        """Start all and wait until they work. Raises Unavailable with the end of the log of one that does not.

        `while_waiting` is called many times a second, and may raise to give up.
        """
        self._log_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        for member in self.members.values():
            if member.log.exists():
                member.log.replace(member.log.with_suffix(".log.1"))
            member.start()
        for member in self.members.values():
            self.wait_ready(member, timeout_s, while_waiting)

    def wait_ready(
        self, member: Member, timeout_s: float = READY_TIMEOUT_S, while_waiting: Callable[[], None] = lambda: None
    ) -> None:
        """Wait until one works. Raises Unavailable."""

        def over() -> bool:
            while_waiting()
            return self.ready(member) or not member.running

        if not wait_until(over, timeout_s=timeout_s, interval_s=0.03):
            problem = f"is not ready after {timeout_s:g} s"
        elif not member.running:
            problem = "has ended"
        else:
            return
        raise Unavailable(f"{member.name} {problem}; the end of {member.log}:\n{tail(member.log)}")

    def ready(self, member: Member) -> bool:
        """Whether it works now."""
        if member.name == "gateway":
            return self._gateway_answers()
        return member.logged("beat: Starting" if member.name == "beat" else " ready.")

    def _gateway_answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.gateway_url}/healthz", timeout=1.0) as reply:  # noqa: S310
                return bool(reply.status == 200)
        except OSError:
            return False

    def tend(self, say: Callable[[str], None] = print) -> None:
        """Start again what died. Call it a few times a second."""
        for member in self.members.values():
            member.tend(say)

    def stop(self, timeout_s: float = 10.0) -> None:
        """TERM to all at once, KILL to what is left after `timeout_s`."""
        deadline_s = time.monotonic() + timeout_s
        for member in self.members.values():
            member.terminate()
        for member in self.members.values():
            member.wait(max(0.0, deadline_s - time.monotonic()))
