"""A whole installation to measure on: real servers, real worker processes, notifier's tasks and the peers in both."""

from __future__ import annotations

import contextlib
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import psycopg2
from redis import Redis

from benchmarks.peers import SCHEMA
from notifier import runtime
from notifier.deadletters.migrate import upgrade
from notifier.lab.servers import Servers
from notifier.lab.stack import Stack
from notifier.settings import Settings
from notifier.wire import QUEUE_OF
from tasks.app import create_app

ROOT = Path(__file__).resolve().parent.parent
QUEUES = tuple(QUEUE_OF.values())
LOOK_S = 0.005
LOOKS = 6
START_S = 20.0


class Stage:
    """What is running: `app` publishes to it, `settings` name it. Made by `on_stage`."""

    def __init__(self, settings: Settings, servers: Servers, stack: Stack) -> None:
        self.settings, self.servers, self.stack = settings, servers, stack
        self.app = create_app(settings)
        self.app.set_current()
        self.broker = Redis.from_url(settings.broker_url)
        self.state = Redis.from_url(settings.redis_url)
        self.workers = [psutil.Process(member.pid) for member in stack.workers]
        self.redis = psutil.Process(servers.started["state"].pid)

    def left(self) -> int:
        """Messages that are queued or being worked on."""
        pipe = self.broker.pipeline(transaction=False)
        for queue in QUEUES:
            pipe.llen(queue)
        pipe.hlen("unacked")
        return int(sum(pipe.execute()))

    def drained(self, timeout_s: float = 120.0) -> float:
        """Wait until nothing is left; when that was (time.perf_counter). Raises TimeoutError."""
        until_s = time.perf_counter() + timeout_s
        empty_s, looks = 0.0, 0  # between queue and unacked a message is nowhere for a moment, so look again
        while time.perf_counter() < until_s:
            if self.left() == 0:
                empty_s = empty_s if looks else time.perf_counter()
                looks += 1
                if looks == LOOKS:
                    return empty_s
            else:
                looks = 0
            time.sleep(LOOK_S)
        raise TimeoutError(f"{self.left()} messages are left after {timeout_s:g} s")

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """The workers take nothing from the queues meanwhile."""
        for queue in QUEUES:
            self.app.control.cancel_consumer(queue, reply=True, timeout=2.0, limit=len(self.workers))
        yield
        for queue in QUEUES:
            self.app.control.add_consumer(queue)

    def drain(self, fill: Callable[[], int]) -> float:
        """Tasks a second: `fill` queues some while the workers are held, and says how many. Then they are let go.

        The clock starts when the first is gone: a worker that was held needs half a second to hear that it may go on.
        """
        with self.held():
            count = fill()
        until_s = time.perf_counter() + START_S
        while (left := self.left()) >= count:
            if time.perf_counter() > until_s:
                raise TimeoutError(f"the workers did not start within {START_S:g} s")
        begun_s = time.perf_counter()
        return left / (self.drained() - begun_s)

    def cpu_s(self) -> dict[str, float]:
        """CPU seconds used so far: by worker parents, their children, state Redis, and this process."""
        children = [child for worker in self.workers for child in worker.children(recursive=True)]
        own = time.process_time()
        return {"parents": _cpu(self.workers), "children": _cpu(children), "redis": _cpu([self.redis]), "sender": own}


def _cpu(processes: list[psutil.Process]) -> float:
    return sum(sum(process.cpu_times()[:2]) for process in processes)


@contextlib.contextmanager
def on_stage(
    *,
    workers: int = 1,
    concurrency: int = 2,
    pool: str = "prefork",
    beat: bool = True,
    gateway: bool = False,
    variables: Mapping[str, str] | None = None,
) -> Iterator[Stage]:
    """Start everything, with `variables` as further settings; at the end nothing is left of it."""
    home = Path(tempfile.mkdtemp(prefix="notifier-bench-"))
    servers = Servers()
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, home, ignore_errors=True)
        stack.callback(servers.remove)
        servers.start(Settings.model_construct(data_dir=home), say=_quietly)
        named = {**servers.urls, "NOTIFIER_SECRET": secrets.token_urlsafe(48), **(variables or {})}
        settings = Settings(**_fields(named))
        upgrade(settings.database_url)
        with contextlib.closing(psycopg2.connect(named["NOTIFIER_DATABASE_URL"])) as database, database:
            for statement in SCHEMA:
                database.cursor().execute(statement)
        runtime.close()
        runtime.get(settings)
        stack.callback(runtime.close)
        processes = Stack(
            {**named, "PYTHONPATH": str(ROOT)},
            home / "log",
            workers=workers,
            concurrency=concurrency,
            pool=pool,
            beat=beat,
            gateway=gateway,
            worker_options=("--include", "benchmarks.peers"),
            cwd=home,
        )
        stack.callback(processes.stop)
        processes.start()
        yield Stage(settings, servers, processes)


def _fields(variables: Mapping[str, str]) -> dict[str, Any]:
    return {name.removeprefix("NOTIFIER_").lower(): value for name, value in variables.items()}


def _quietly(_: str) -> None:
    """Servers start without a word here."""
