"""Processes that end with us, however we end."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest

from notifier.embedded import installation
from notifier.embedded.process import end, free_port, signal_tree, spawn
from tests.support import eventually

STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('here', flush=True); time.sleep(600)"
)


def started(command: str, log: Path) -> subprocess.Popen[bytes]:
    """A Python process that has said something."""
    process = spawn([sys.executable, "-c", command], log=log, env={})
    eventually(lambda: log.exists() and log.read_text())
    return process


@pytest.mark.skipif(sys.platform != "linux", reason="a promise on Linux only")
def test_a_child_ends_when_its_parent_is_killed_hard(tmp_path: Path) -> None:
    log = tmp_path / "log"
    parent = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys, time, pathlib\n"
            "from notifier.embedded.process import spawn\n"
            f"log = pathlib.Path({str(log)!r})\n"
            "command = [sys.executable, '-c', 'import os, time; print(os.getpid(), flush=True); time.sleep(600)']\n"
            "spawn(command, log=log, env={})\n"
            "time.sleep(600)\n",
        ]
    )
    child = psutil.Process(int(eventually(lambda: log.exists() and log.read_text().strip())))
    assert child.is_running()
    parent.kill()
    parent.wait()
    eventually(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)


def test_what_does_not_hear_term_is_killed(tmp_path: Path) -> None:
    process = started(STUBBORN, tmp_path / "log")
    assert end(process, signal.SIGTERM, 0.2) == -signal.SIGKILL


def test_what_is_frozen_is_thawed_to_end_in_good_order(tmp_path: Path) -> None:
    process = started("import time; print('here', flush=True); time.sleep(600)", tmp_path / "log")
    signal_tree(process.pid, signal.SIGSTOP)
    eventually(lambda: psutil.Process(process.pid).status() == psutil.STATUS_STOPPED)
    assert end(process, signal.SIGTERM, 20.0) == -signal.SIGTERM


def test_secrets_go_in_by_stdin_and_nothing_of_our_environment_goes_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFIER_SECRET", "not for the child")
    log = tmp_path / "log"
    command = "import os, sys; print(sys.stdin.read(), os.environ.get('NOTIFIER_SECRET'), flush=True)"
    process = spawn([sys.executable, "-c", command], log=log, env={}, stdin=b"the secret")
    process.wait()
    assert log.read_text() == "the secret None\n"


@pytest.mark.skipif(not Path("/proc/sys/net/ipv4/ip_local_port_range").exists(), reason="Linux says its port range")
def test_ports_are_outside_of_the_range_of_outgoing_connections() -> None:
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    if first > 11_000:
        assert all(1_024 < free_port() < first for _ in range(50))


def test_what_many_want_at_once_is_made_once_and_never_seen_half(tmp_path: Path) -> None:
    made: list[Path] = []
    seen: list[list[str]] = []

    def fill(draft: Path) -> None:
        made.append(draft)
        for number in range(200):
            (draft / f"{number:03}").touch()

    def want() -> None:
        place = installation._made_once(tmp_path / "thing", fill)
        seen.append(sorted(entry.name for entry in place.iterdir()))

    threads = [threading.Thread(target=want) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1
    assert seen == [[f"{number:03}" for number in range(200)]] * 8
