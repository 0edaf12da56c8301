"""Limits changed while processes run: by the editor and by the command."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from click.testing import CliRunner, Result
from redis import Redis

from notifier import Limit, Limiter, Settings
from notifier.cli import main
from notifier.redis.client import connect
from tests.support import eventually

LIMITS = {"user_limit": "1/day burst 3", "local_bucket": "off"}


@pytest.fixture
def make(limiter_valkey: Any) -> Iterator[Callable[..., Limiter]]:
    with contextlib.ExitStack() as stack:

        def limiter(**settings: Any) -> Limiter:
            made = Limiter.from_settings(
                Settings(limiter_redis_url=limiter_valkey.url(), limiter_timeout=2.0, **(LIMITS | settings))
            )
            stack.callback(made.close)
            return made

        yield limiter


@pytest.fixture
def redis(limiter_valkey: Any) -> Iterator[Redis]:
    with contextlib.closing(connect(limiter_valkey.url(), 1.0)) as client:
        yield client


@pytest.fixture
def cli(limiter_valkey: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    monkeypatch.setenv("NOTIFIER_LIMITER_REDIS_URL", limiter_valkey.url())
    monkeypatch.setenv("NOTIFIER_USER_LIMIT", LIMITS["user_limit"])
    return lambda *arguments: CliRunner().invoke(main, ["limits", *arguments])


def passes(limiter: Limiter, user_id: str, **options: str) -> int:
    return sum(limiter.acquire(user_id, **options).granted for _ in range(20))


def test_a_users_limit_is_raised_in_use_and_used_tokens_stay_used(
    make: Callable[..., Limiter], cli: Callable[..., Result]
) -> None:
    limiters = [make(), make()]
    assert passes(limiters[0], "vip") == 3
    assert passes(limiters[1], "vip") == 0  # remembered as denied for a day
    assert cli("set", "vip", "1/day burst 8").exit_code == 0
    eventually(lambda: limiters[1].acquire("vip").granted, timeout_s=5)
    assert sum(passes(limiter, "vip") for limiter in limiters) == 4
    assert passes(limiters[0], "another") == 3


def test_a_users_limit_is_lowered_in_use_and_given_back(
    make: Callable[..., Limiter], cli: Callable[..., Result]
) -> None:
    limiter = make()
    assert limiter.acquire("a").granted
    assert cli("set", "a", "0/s").exit_code == 0
    assert not limiter.acquire("a").granted
    assert "the settings' " in cli("unset", "a").output
    eventually(lambda: limiter.acquire("a").granted, timeout_s=5)


def test_a_category_with_a_limit_has_buckets_of_its_own(
    make: Callable[..., Limiter], cli: Callable[..., Result]
) -> None:
    limiter = make()
    assert passes(limiter, "a") == 3
    assert not limiter.acquire("a", category="security").granted
    assert cli("set", "--category", "security", "1/day burst 5").exit_code == 0
    eventually(lambda: limiter.acquire("a", category="security").granted, timeout_s=5)
    assert passes(limiter, "a", category="security") == 4
    assert passes(limiter, "a", category="like") == 0
    assert "it shares each user's limit" in cli("unset", "--category", "security").output
    fresh = (f"user-{n}" for n in itertools.count())
    eventually(lambda: passes(limiter, next(fresh), category="security") == 3)


def test_without_any_limit_an_override_is_obeyed(make: Callable[..., Limiter], cli: Callable[..., Result]) -> None:
    limiter = make(user_limit="off")
    assert limiter.acquire("a").granted
    assert cli("set", "a", "1/day burst 2").exit_code == 0
    eventually(lambda: not limiter.acquire("a").granted, timeout_s=5)
    assert passes(limiter, "b") == 20


def test_no_limit_for_one_user(make: Callable[..., Limiter], cli: Callable[..., Result]) -> None:
    assert cli("set", "free", "off").exit_code == 0
    limiter = make()
    assert passes(limiter, "free") == 20
    assert passes(limiter, "a") == 3


def test_what_is_set_is_shown(cli: Callable[..., Result], redis: Redis) -> None:
    cli("set", "vip", "10/s burst 50")
    cli("set", "--category", "a:b", "30/min")
    assert json.loads(cli("get", "vip", "--json").stdout) == {
        "limit": "10/s burst 50",
        "overridden": True,
        "channel": "websocket",
    }
    assert cli("get", "nobody").stdout.startswith("1/day burst 3")
    assert json.loads(cli("get", "--json").stdout)["categories"] == {"a:b": "30/min burst 30"}
    assert "a:b" in cli("get").stdout
    assert {name for name in redis.keys("*") if redis.pttl(name) < 1} == set()


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("set", "a", "often"), "often"),
        (("set", "a", "2/s", "burst", "10"), "quote"),
        (("set", "2/s"), "USER LIMIT"),
        (("unset",), "USER"),
        (("get", "a", "--category", "b"), "either"),
        (("set", "--category", "x" * 65, "2/s"), "64"),
    ],
)
def test_bad_input_is_refused_with_the_way_out(
    cli: Callable[..., Result], arguments: tuple[str, ...], word: str
) -> None:
    result = cli(*arguments)
    assert result.exit_code != 0
    assert word in result.output


def test_without_redis_the_command_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFIER_LIMITER_REDIS_URL", "redis://:secret@127.0.0.1:1/0")
    result = CliRunner().invoke(main, ["limits", "get", "a"])
    assert result.exit_code == 1
    assert "NOTIFIER_LIMITER_REDIS_URL" in result.output
    assert "secret" not in result.output


def test_the_notation_survives_the_store(cli: Callable[..., Result]) -> None:
    for text in ("2/s burst 10", "1/day burst 3", "25000/s burst 1", "off", "0/s"):
        cli("set", "a", text)
        assert Limit.parse(json.loads(cli("get", "a", "--json").stdout)["limit"]) == Limit.parse(text)
