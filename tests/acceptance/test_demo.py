"""`notifier demo`, as a stranger runs it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import descendants, eventually

DEMO = [sys.executable, "-P", "-m", "notifier", "demo"]
FIELDS = {
    "accepted", "delivered", "digested", "expired", "dropped", "duplicate", "parked", "waiting", "in_flight", "lost",
    "duplicates", "disorder", "limit_excess", "quiet_p50_ms", "quiet_p99_ms", "noisy_delivered", "noisy_deferred",
    "replayed", "grants",
}  # fmt: skip


def demo(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*DEMO, *arguments], env={**os.environ, **environment}, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.slow
def test_it_counts_everything_and_leaves_nothing() -> None:
    done = demo("--seconds", "4", "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert set(result) == FIELDS
    assert [result[name] for name in ("lost", "duplicates", "disorder", "limit_excess")] == [0, 0, 0, 0]
    assert result["noisy_deferred"] > 0
    assert result["replayed"] > 0
    ends = ("delivered", "digested", "expired", "dropped", "duplicate", "parked", "waiting", "in_flight")
    assert result["accepted"] == sum(result[name] for name in ends)
    assert set(result["grants"]) == {"local", "shared", "grace"}
    assert sum(result["grants"].values()) >= result["delivered"]
    assert "PASSED" in done.stderr
    assert descendants() == []
    assert list(Path.cwd().iterdir()) == []


@pytest.mark.slow
def test_it_tells_what_goes_wrong() -> None:
    """The oracles are wired in: with a limit in the books that is stricter than the workers', it is exceeded."""
    code = """
import sys
from notifier.lab import demo
from notifier.limit import Limit
from notifier.cli import main
start = demo.Demo.start
def strict(self):
    start(self)
    self._limit = Limit.parse("1/min burst 1")
demo.Demo.start = strict
sys.argv = ["notifier", "demo", "--seconds", "3", "--json"]
main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["limit_excess"] > 0
    assert "FAILED: over limit" in done.stderr


@pytest.mark.slow
def test_ctrl_c_ends_it_and_all_it_started(tmp_path: Path) -> None:
    log = tmp_path / "demo.txt"
    with log.open("wb") as output:
        process = subprocess.Popen([*DEMO, "--keep", "--seconds", "1"], stdout=output, stderr=output)
    eventually(lambda: "goes on running" in log.read_text() or process.poll() is not None, timeout_s=90)
    assert process.poll() is None, log.read_text()
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 0, log.read_text()
    eventually(lambda: descendants() == [], timeout_s=60)
    assert "Traceback" not in log.read_text()
