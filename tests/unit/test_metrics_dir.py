"""What dead processes counted still counts, without their files; what they measured is gone."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from notifier import metrics_dir

COUNT = """
import sys
from notifier import metrics, tally
metrics.GRANTS.labels("local").inc(3)
metrics.LOANS.set(2)
metrics.LATENCY.labels("websocket", "message").observe(0.03)
print("counted", flush=True)
sys.stdin.read()
"""


class Counting:
    """A process that has counted, and lives until it is told to end."""

    def __init__(self, place: Path) -> None:
        environment = {**os.environ, metrics_dir.VARIABLE: str(place)}
        self.process = subprocess.Popen(
            [sys.executable, "-c", COUNT], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def counted(self) -> Counting:
        """Wait until it has."""
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "counted\n"
        return self

    def kill(self) -> None:
        """kill -9: nothing of it can tidy up."""
        self.process.send_signal(signal.SIGKILL)
        self.process.communicate()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[int], list[Counting]]]:
    """A factory of processes that share the directory `tmp_path / "metrics"`, which is not there yet."""
    started: list[Counting] = []

    def some(how_many: int) -> list[Counting]:
        started.extend(Counting(tmp_path / "metrics") for _ in range(how_many))
        return [counting.counted() for counting in started]

    yield some
    for counting in started:
        counting.kill()


def values(place: Path) -> dict[str, float]:
    """The samples that COUNT is about."""
    wanted = {"notifier_grants_total", "notifier_loans_open", "notifier_delivery_seconds_count"}
    return {s.name: s.value for metric in metrics_dir.collect(place) for s in metric.samples if s.name in wanted}


def test_the_counts_of_killed_processes_stay_and_their_files_go(
    start: Callable[[int], list[Counting]], tmp_path: Path
) -> None:
    place = tmp_path / "metrics"
    first, second, living = start(3)
    everything = {"notifier_grants_total": 9, "notifier_loans_open": 6, "notifier_delivery_seconds_count": 3}
    assert values(place) == everything
    first.kill()
    second.kill()
    assert values(place) == everything | {"notifier_loans_open": 2}
    pids = {file.stem.rpartition("_")[2] for file in place.glob("*.db")}
    assert pids == {"0", str(living.process.pid)}
    living.kill()
    assert values(place) == {name: count for name, count in everything.items() if name != "notifier_loans_open"}
    assert metrics_dir.grants(place) == {"local": 9, "shared": 0, "grace": 0}


def test_a_file_that_a_killed_process_has_not_finished_harms_nothing(
    start: Callable[[int], list[Counting]], tmp_path: Path
) -> None:
    place = tmp_path / "metrics"
    start(1)[0].kill()
    (place / "counter_4194305.db").touch()  # beyond the greatest pid
    assert values(place)["notifier_grants_total"] == 3
    assert not (place / "counter_4194305.db").exists()


WORKER = """
import os, sys
import fcntl
from notifier.cli.worker import _share_metrics
if "unlockable" in sys.argv:
    fcntl.flock = lambda *_: os.listdir("/dev/null")
_share_metrics()
if "fork" in sys.argv and os.fork():
    os.kill(os.getpid(), 9)
print(os.environ["PROMETHEUS_MULTIPROC_DIR"], flush=True)
sys.stdin.read()
"""


def test_what_a_killed_worker_has_left_goes_when_the_next_one_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFIER_METRICS_PORT", "9100")
    monkeypatch.delenv(metrics_dir.VARIABLE, raising=False)

    def worker(*arguments: str) -> tuple[subprocess.Popen[str], Path]:
        command = [sys.executable, "-c", WORKER, *arguments]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        return process, Path(process.stdout.readline().strip())

    living, its_child_lives, unlockable = worker(), worker("fork"), worker("unlockable")
    killed, detached, killed_just_now = worker(), worker(), worker()
    for process, _ in (killed, detached, killed_just_now):
        process.kill()
        process.communicate()
    (killed[1] / "counter_4194305.db").touch()  # beyond the greatest pid
    (detached[1] / f"counter_{os.getpid()}.db").touch()  # as a worker that lives and holds no lock
    for _, place in (living, its_child_lives, killed, detached):
        os.utime(place, (0, 0))
    starting = worker()
    kept = (living, its_child_lives, unlockable, detached, killed_just_now, starting)
    assert ([place.is_dir() for _, place in kept], killed[1].exists()) == ([True] * 6, False)
    shutil.rmtree(detached[1])
    shutil.rmtree(killed_just_now[1])
    for process, place in (living, its_child_lives, unlockable, starting):
        process.communicate()  # it reads, and ends
        assert not place.exists()


HOLD = """
import fcntl, sys
lock = open(sys.argv[1], "w")
fcntl.lockf(lock, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


def test_a_reader_that_is_frozen_holds_up_the_others_for_a_moment_only(
    start: Callable[[int], list[Counting]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics_dir, "PATIENCE_S", 0.2)
    start(1)
    place = tmp_path / "metrics"
    command = [sys.executable, "-c", HOLD, str(place / "lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as frozen:
        assert frozen.stdout is not None and frozen.stdout.readline() == "held\n"
        try:
            for _ in range(2):  # it lets go of what it took itself
                with pytest.raises(TimeoutError):
                    metrics_dir.collect(place)
        finally:
            frozen.kill()
    assert values(place)["notifier_grants_total"] == 3
