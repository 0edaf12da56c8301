"""The commands around the gateway, each as its own process."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from notifier.embedded.valkey import Valkey
from notifier.gateway.presence import online
from notifier.redis.client import connect
from tests.gateway import Writer
from tests.support import eventually, free_port

SECRET = "a secret of the tests, 32 characters"


@pytest.fixture
def environment(valkey: Valkey, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    ours = {"REDIS_URL": valkey.url(), "SECRET": SECRET, "GATEWAY_PORT": str(free_port())}
    return os.environ | {f"NOTIFIER_{name}": value for name, value in ours.items()}


def run(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "notifier", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=30, check=False)


@pytest.fixture
def gateway(environment: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "notifier", "gateway"]
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    yield process
    if process.poll() is None:
        process.kill()
        process.communicate()


@pytest.mark.slow
def test_listen_prints_what_arrives_and_feed_what_arrived(
    environment: dict[str, str], gateway: subprocess.Popen[str], valkey: Valkey
) -> None:
    writer = Writer(valkey.url())
    ids = [writer.send("ann") for _ in range(3)]
    listened = run(environment, "listen", "ann", "--json", "--count", "2", "--last-id", ids[0])
    assert listened.returncode == 0, listened.stderr
    frames = [json.loads(line) for line in listened.stdout.splitlines()]
    assert [frame["id"] for frame in frames] == ids[1:]
    feed = run(environment, "feed", "ann", "--json")
    assert [json.loads(line) for line in feed.stdout.splitlines()][1:] == frames
    assert "like" in run(environment, "feed", "ann").stdout


@pytest.mark.slow
def test_gateway_ends_calmly_at_term_with_clients_connected(
    environment: dict[str, str], gateway: subprocess.Popen[str], valkey: Valkey
) -> None:
    listener = subprocess.Popen(
        [sys.executable, "-m", "notifier", "listen", "ann"], env=environment, stderr=subprocess.PIPE, text=True
    )
    try:
        with contextlib.closing(connect(valkey.url(), 2.0)) as client:
            eventually(lambda: online(client, ["ann"]), timeout_s=60)
        gateway.send_signal(signal.SIGTERM)
        assert gateway.wait(20) == 0
    finally:
        listener.kill()
        listener.communicate()
    _, errors = gateway.communicate()
    assert "Traceback" not in errors


@pytest.mark.slow
def test_token_lets_in_and_no_secret_is_refused_by_name(environment: dict[str, str]) -> None:
    token = run(environment, "token", "ann", "--ttl", "60", "--json")
    assert json.loads(token.stdout)["token"].count(".") == 2
    for arguments in (["token", "ann"], ["listen", "ann"], ["gateway"]):
        refused = run({k: v for k, v in environment.items() if k != "NOTIFIER_SECRET"}, *arguments)
        assert refused.returncode == 1
        assert "NOTIFIER_SECRET" in refused.stderr
        assert "Traceback" not in refused.stderr
