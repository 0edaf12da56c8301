"""Real Celery processes on real servers, as a team starts them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Celery, current_app
from redis import Redis

from notifier import runtime
from notifier.embedded.process import end, signal_tree, spawn, tail
from notifier.embedded.valkey import Valkey
from notifier.licence import Counts
from notifier.redis.keys import user_key
from notifier.settings import Settings
from tasks.app import create_app
from tests.support import eventually

LIMIT = "5/s burst 3"
PATIENCE_S = 60.0  # for a busy machine


class Process:
    """One Celery process in a session of its own."""

    def __init__(self, command: list[str], log: Path, env: dict[str, str], cwd: Path) -> None:
        self.log = log
        self._process = spawn(command, log=log, env=env, cwd=cwd)

    @property
    def pid(self) -> int:
        """Of its main process."""
        return self._process.pid

    @property
    def text(self) -> str:
        """All it has logged."""
        return self.log.read_text(errors="replace")

    def says(self, text: str, timeout_s: float = PATIENCE_S) -> Process:
        """Wait until it has logged this."""
        eventually(lambda: text in self.text or self._process.poll() is not None, timeout_s=timeout_s)
        assert text in self.text, tail(self.log, 40)
        return self

    def ended(self, timeout_s: float = 30.0) -> int:
        """Wait for its end. Returns the exit code."""
        return self._process.wait(timeout_s)

    def stop(self, timeout_s: float = 20.0) -> int:
        """TERM, and its exit code."""
        return end(self._process, signal.SIGTERM, timeout_s)

    def kill(self) -> None:
        """kill -9, its children too."""
        signal_tree(self.pid, signal.SIGKILL)
        end(self._process, signal.SIGKILL, 5.0)

    def freeze(self) -> None:
        """SIGSTOP, its children too."""
        signal_tree(self.pid, signal.SIGSTOP)


class Site:
    """Settings, the processes that were started with them, and what their stores say."""

    def __init__(self, settings: Settings, directory: Path) -> None:
        self.settings = settings
        self.directory = directory
        self.processes: list[Process] = []
        self.env = {
            "NOTIFIER_BROKER_URL": settings.broker_url,
            "NOTIFIER_REDIS_URL": settings.redis_url,
            "NOTIFIER_LIMITER_REDIS_URL": settings.limiter_url,
            "NOTIFIER_DATABASE_URL": settings.database_url,
            "NOTIFIER_USER_LIMIT": str(settings.user_limit),
            "NOTIFIER_LOCAL_BUCKET": str(settings.local_bucket),
            "PYTHONUNBUFFERED": "1",
        }

    def celery(self, *arguments: str, app: str = "tasks", **env: str) -> Process:
        """`celery -A <app> <arguments>` in the site's directory."""
        log = self.directory / f"{arguments[0]}-{len(self.processes)}.log"
        command = [sys.executable, "-m", "celery", "-A", app, arguments[0], "--loglevel", "INFO", *arguments[1:]]
        self.processes.append(Process(command, log, {**os.environ, **self.env, **env}, self.directory))
        return self.processes[-1]

    def worker(self, *arguments: str, app: str = "tasks", pool: str = "prefork", **env: str) -> Process:
        """A worker that is ready."""
        name = f"worker-{len(self.processes)}-{os.getpid()}@%h"
        quick = ["--without-gossip", "--without-mingle", "--concurrency", "2"]
        return self.celery("worker", "--hostname", name, "--pool", pool, *quick, *arguments, app=app, **env).says(
            " ready."
        )

    def beat(self, *arguments: str, app: str = "tasks") -> Process:
        """A beat that has started."""
        return self.celery("beat", *arguments, app=app).says("beat: Starting")

    def python(self, code: str) -> str:
        """Run a program in the site's directory; what it prints."""
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=self.directory, env={**os.environ, **self.env}, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def frames(self, user: object) -> list[dict[str, Any]]:
        """A user's feed, oldest first."""
        entries: Any = runtime.get().client.xrange(user_key("feed", str(user), "websocket"))
        return [json.loads(b"{" + fields[b"f"]) for _, fields in entries]

    def payloads(self, user: object) -> list[Any]:
        """The payloads in a user's feed, oldest first."""
        return [frame["payload"] for frame in self.frames(user)]

    @property
    def counts(self) -> Counts:
        """The books."""
        return runtime.get().ledger.counts()

    def settled(self, accepted: int, timeout_s: float = PATIENCE_S) -> Counts:
        """Wait until all that was accepted has ended; the books, which balance."""

        def balanced() -> Counts:
            counts = self.counts
            assert counts.accepted == accepted, counts
            assert counts.waiting == counts.in_flight == 0, counts
            return counts

        counts = eventually(balanced, timeout_s=timeout_s)
        ends = counts.delivered + counts.digested + counts.expired + counts.dropped + counts.duplicate + counts.parked
        assert ends == accepted, counts
        return counts

    def stop(self) -> None:
        """End whatever still runs."""
        for process in self.processes:
            process.kill()


def message(task: str, content_type: str, body: str) -> str:
    """As kombu puts it into a list of Redis."""
    return json.dumps(
        {
            "body": body,
            "content-encoding": "utf-8",
            "content-type": content_type,
            "headers": {"lang": "py", "task": task, "id": f"id-of-{task}", "argsrepr": "()", "kwargsrepr": "{}"},
            "properties": {
                "delivery_mode": 2, "delivery_tag": os.urandom(8).hex(), "body_encoding": "base64",
                "delivery_info": {"exchange": "", "routing_key": "notifier.normal"},
            },
        }
    )  # fmt: skip


@pytest.fixture
def make_site(settings: Settings, tmp_path: Path) -> Iterator[Callable[..., Site]]:
    """A factory: `make_site(user_limit="1/s")`. This process calls tasks through the site's broker meanwhile."""
    sites: list[Site] = []
    before: Celery = current_app._get_current_object()

    def make(**changes: Any) -> Site:
        runtime.close()
        values = settings.model_dump(exclude_unset=True) | {"user_limit": LIMIT} | changes
        changed = Settings(**values)
        runtime.get(changed)
        create_app(changed).set_current()
        directory = tmp_path / "site"
        directory.mkdir(exist_ok=True)
        sites.append(Site(changed, directory))
        return sites[-1]

    yield make
    for site in sites:
        site.stop()
    before.set_current()
    runtime.close()


@pytest.fixture
def site(make_site: Callable[..., Site]) -> Site:
    """The usual one."""
    return make_site()


@pytest.fixture
def broker(valkey: Valkey) -> Iterator[Redis]:
    """A client of the usual site's broker."""
    with Redis.from_url(valkey.url(1)) as client:
        yield client
