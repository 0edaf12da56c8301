"""`notifier torture` as a person runs it, for a short while; .ci/run runs it longer, with a fresh seed too."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from notifier.embedded import rabbitmq

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
@pytest.mark.parametrize("broker", ["redis", "rabbitmq"])
def test_nothing_is_lost_or_doubled_while_everything_is_killed(broker: str) -> None:
    if broker == "rabbitmq" and (problem := rabbitmq.missing()):
        pytest.skip(problem)
    arguments = ["--seconds", "15", "--seed", "11", "--broker", broker, "--json"]
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
    assert f"the same again: notifier torture --seconds 15 --seed 11 --broker {broker}" in timeline
