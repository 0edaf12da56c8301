"""Workers, beat and gateway as one thing: started until they work, started again, ended without a rest."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from notifier.errors import Unavailable
from notifier.lab.stack import Stack
from notifier.settings import Settings
from tests.support import descendants, eventually


@pytest.fixture
def environment(settings: Settings) -> dict[str, str]:
    """The settings as variables."""
    assert settings.secret
    return {
        "NOTIFIER_BROKER_URL": settings.broker_url,
        "NOTIFIER_REDIS_URL": settings.redis_url,
        "NOTIFIER_LIMITER_REDIS_URL": settings.limiter_url,
        "NOTIFIER_DATABASE_URL": settings.database_url,
        "NOTIFIER_SECRET": settings.secret.get_secret_value(),
    }


@pytest.fixture
def stack(environment: dict[str, str], tmp_path: Path) -> Iterator[Stack]:
    """One of each."""
    stack = Stack(environment, tmp_path / "log", concurrency=1)
    yield stack
    stack.stop()


@pytest.mark.slow
def test_what_is_killed_is_started_again_and_nothing_is_left_at_the_end(stack: Stack) -> None:
    before = {process.pid for process in descendants()}
    stack.start()
    assert all(stack.ready(member) for member in stack.members.values())
    said: list[str] = []
    for member in stack.members.values():
        pid = member.pid
        member.kill()
        assert not member.running

        def started_again(pid: int = pid) -> bool:
            stack.tend(said.append)
            return member.running and member.pid != pid  # noqa: B023  (called within this round)

        assert eventually(started_again)
        stack.wait_ready(member)
        assert member.starts == 2
        assert any(member.name in line for line in said)
    stack.members["gateway"].freeze()
    stack.stop()
    assert {process.pid for process in descendants()} <= before


@pytest.mark.slow
def test_one_that_keeps_dying_is_started_ever_later(environment: dict[str, str], tmp_path: Path) -> None:
    stack = Stack(environment | {"NOTIFIER_USER_LIMIT": "nonsense"}, tmp_path / "log", workers=0, beat=False)
    (tmp_path / "log").mkdir()
    gateway = stack.members["gateway"]
    gateway.start()
    said: list[str] = []

    def tended_three_times() -> bool:
        stack.tend(said.append)
        return len(said) == 3

    eventually(tended_three_times, timeout_s=60)
    assert [line.split(" in ")[1].split(" s;")[0] for line in said] == ["0.5", "1", "2"]
    stack.stop()


def test_one_that_cannot_start_says_why(environment: dict[str, str], tmp_path: Path) -> None:
    stack = Stack(environment | {"NOTIFIER_USER_LIMIT": "nonsense"}, tmp_path / "log", workers=0, beat=False)
    with pytest.raises(Unavailable, match=r"gateway has ended(?s:.)*NOTIFIER_USER_LIMIT"):
        stack.start()
    stack.stop()
