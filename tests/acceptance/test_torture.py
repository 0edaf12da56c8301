"""`notifier torture` as a person runs it, for a short while; .ci/run runs it longer, with a fresh seed too."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

KEYS = [
    "seed",
    "faults",
    "accepted",
    "delivered",
    "waiting",
    "parked",
    "lost",
    "duplicates",
    "disorder",
    "limit_excess",
]


@pytest.mark.slow
def test_nothing_is_lost_or_doubled_while_everything_is_killed() -> None:
    arguments = ["--seconds", "15", "--seed", "11", "--json"]
    done = subprocess.run(
        [sys.executable, "-P", "-m", "notifier", "torture", *arguments],
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    *timeline, last = done.stdout.splitlines()
    result = json.loads(last)
    assert list(result) == KEYS
    assert result["seed"] == 11
    assert result["faults"] > 3
    assert result["accepted"] == result["delivered"] + result["waiting"] + result["parked"] > 50
    assert "the same again: notifier torture --seconds 15 --seed 11 --broker redis" in timeline
