"""`notifier up`, as a person uses it: in a directory of one's own, from another terminal, ended with Ctrl-C."""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from notifier.embedded.process import signal_tree
from notifier.settings import Settings
from tests.support import command_line, descendants, eventually, free_port

WAIT_S = 60.0  # whole processes start meanwhile, on a machine that may be busy
NOTIFIER = [sys.executable, "-P", "-m", "notifier"]


class Up:
    """One `notifier up` in a directory."""

    def __init__(self, directory: Path, options: Sequence[str] = (), **environment: str) -> None:
        self.directory = directory
        self.log = directory / "up.txt"
        self._before = set(descendants())  # the session's servers
        self._environment = os.environ | environment
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                [*NOTIFIER, "up", *options],
                cwd=directory,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self._environment,
            )

    def ready(self) -> Up:
        """Wait until it says so."""
        self.says("ready after")
        assert self.process.poll() is None, self.log.read_text()
        return self

    def says(self, text: str) -> None:
        """Wait until it has printed this."""
        eventually(lambda: text in self.log.read_text() or self.process.poll() is not None, timeout_s=WAIT_S)

    def run(self, *arguments: str) -> str:
        """What another command in the same directory prints."""
        done = subprocess.run(
            [*NOTIFIER, *arguments], cwd=self.directory, capture_output=True, text=True, timeout=WAIT_S, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def feed(self, user: str) -> list[Any]:
        """The payloads in a user's feed."""
        return [json.loads(line)["payload"] for line in self.run("feed", user, "--json").splitlines()]

    def page(self) -> str:
        """The live page."""
        address = next(line.split()[-1] for line in self.log.read_text().splitlines() if "live page" in line)
        with urllib.request.urlopen(address, timeout=5) as reply:
            return str(reply.read().decode())

    def named(self, name: str) -> list[psutil.Process]:
        """Its processes whose command line has `name` in it."""
        return [child for child in descendants(self.process.pid) if name in command_line(child)]

    def left(self) -> set[psutil.Process]:
        """What still runs of all that was started since this one was."""
        return set(descendants()) - self._before

    def end(self, how: signal.Signals = signal.SIGINT) -> int:
        """End it and wait; the exit code."""
        self.process.send_signal(how)
        return self.process.wait(WAIT_S)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Up]]:
    """Starts `notifier up` in the test's directory and waits until it is ready. Environment as keywords."""
    started: list[Up] = []

    def start(**environment: str) -> Up:
        started.append(Up(tmp_path, **environment))
        return started[-1].ready()

    yield start
    for up in started:
        if up.process.poll() is None:
            up.end()
    remove_data(tmp_path)


def remove_data(directory: Path) -> None:
    """As root, PostgreSQL's data is not below the directory of the test."""
    link = directory / ".notifier" / "postgres" / "data"
    if link.is_symlink():
        shutil.rmtree(link.resolve())


@pytest.mark.slow
def test_one_sends_and_sees_it_a_second_up_is_refused_and_ctrl_c_leaves_nothing_but_the_data(
    tmp_path: Path, start: Callable[..., Up]
) -> None:
    parents = {place: place.stat().st_mode for place in (tmp_path, *tmp_path.parents)}
    up = start()
    run_env = tmp_path / ".notifier" / "run.env"
    assert stat.S_IMODE(run_env.stat().st_mode) == 0o600
    up.run("send", "42", '{"text": "hello"}')
    assert eventually(lambda: up.feed("42"), timeout_s=WAIT_S) == [{"text": "hello"}]
    assert "<html" in up.page()

    second = subprocess.run(
        [*NOTIFIER, "up"], cwd=tmp_path, capture_output=True, text=True, timeout=WAIT_S, check=False
    )
    assert second.returncode == 1
    assert f"already runs in {tmp_path} (process {up.process.pid})" in second.stderr
    assert "Traceback" not in second.stderr
    assert up.feed("42") == [{"text": "hello"}]

    assert up.end() == 0, up.log.read_text()
    assert "nothing is left running" in up.log.read_text()
    assert not up.left()
    assert not run_env.exists()
    assert {place: place.stat().st_mode for place in parents} == parents

    again = start()
    assert again.feed("42") == [{"text": "hello"}]
    assert again.end(signal.SIGTERM) == 0


@pytest.mark.slow
def test_a_server_that_is_named_and_away_is_said_at_once_with_the_way_out(tmp_path: Path) -> None:
    """A shell that still holds the run.env of a run that has ended."""
    nobody = f"127.0.0.1:{free_port()}"
    for name, url in (("REDIS", f"redis://:hunter2@{nobody}/0"), ("DATABASE", f"postgresql://u:hunter2@{nobody}/x")):
        up = Up(tmp_path, **{f"NOTIFIER_{name}_URL": url})
        assert up.process.wait(WAIT_S) == 1
        assert f"NOTIFIER_{name}_URL names it: unset it" in up.log.read_text()
        assert "hunter2" not in up.log.read_text()


@pytest.mark.slow
def test_fresh_forgets_what_earlier_runs_stored_wherever_it_lies(tmp_path: Path, start: Callable[..., Up]) -> None:
    up = start()
    up.run("send", "42", "1")
    eventually(lambda: up.feed("42") == [1], timeout_s=WAIT_S)
    data = (tmp_path / ".notifier" / "postgres" / "data").resolve()
    assert f"{data}" in up.log.read_text() or data.is_relative_to(tmp_path)
    assert up.end() == 0
    (tmp_path / ".notifier" / "mine").mkdir()
    (data / "of-before").touch()
    fresh = Up(tmp_path, options=["--fresh"]).ready()
    assert fresh.feed("42") == []
    assert fresh.end() == 0
    assert not (data / "of-before").exists()
    assert (tmp_path / ".notifier" / "mine").exists()


@pytest.mark.slow
def test_what_dies_is_started_again(tmp_path: Path, start: Callable[..., Up]) -> None:
    up = start()
    up.run("send", "42", "1")
    eventually(lambda: up.feed("42") == [1], timeout_s=WAIT_S)
    worker = up.named("notifier worker")[0]
    signal_tree(worker.pid, signal.SIGKILL)
    for server in (*up.named("valkey-server"), *up.named("bin/postgres")):
        server.kill()
    eventually(lambda: up.run("send", "42", "2"), timeout_s=WAIT_S)
    assert eventually(lambda: up.feed("42")[1:], timeout_s=WAIT_S)
    assert up.end() == 0
    assert not up.left()


@pytest.mark.slow
def test_killed_hard_it_takes_everything_with_it_and_the_next_one_starts(
    tmp_path: Path, start: Callable[..., Up]
) -> None:
    up = start()
    up.run("send", "42", "1")
    eventually(lambda: up.feed("42") == [1], timeout_s=WAIT_S)
    assert up.end(signal.SIGKILL) == -signal.SIGKILL
    eventually(lambda: not up.left(), timeout_s=WAIT_S)
    again = start()
    assert again.feed("42") == [1]
    assert again.end() == 0


@pytest.mark.slow
def test_servers_that_are_named_are_used_and_not_started(
    tmp_path: Path, start: Callable[..., Up], settings: Settings
) -> None:
    up = start(
        NOTIFIER_BROKER_URL=settings.broker_url,
        NOTIFIER_REDIS_URL=settings.redis_url,
        NOTIFIER_LIMITER_REDIS_URL=settings.limiter_url,
        NOTIFIER_DATABASE_URL=settings.database_url,
    )
    assert not up.named("valkey-server")
    assert not up.named("postgres")
    up.run("send", "42", "1")
    assert eventually(lambda: up.feed("42"), timeout_s=WAIT_S) == [1]
    assert up.end() == 0
    assert not (tmp_path / ".notifier" / "state").exists()


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["limiter: Valkey", "dead letters: PostgreSQL", "migrations", "worker-1"])
def test_ctrl_c_while_it_starts_leaves_nothing(tmp_path: Path, moment: str) -> None:
    up = Up(tmp_path)
    up.says(moment)
    assert up.end() == 0, up.log.read_text()
    eventually(lambda: not up.left())
    assert "Traceback" not in up.log.read_text()
    assert not (tmp_path / ".notifier" / "run.env").exists()
    remove_data(tmp_path)
