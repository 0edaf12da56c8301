"""Fixtures of the integration tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from notifier.settings import Settings
from tests.deadletters import Bench


@pytest.fixture
def make_bench(settings: Settings) -> Iterator[Callable[..., Bench]]:
    """A factory of benches for dead letters, each with settings of its own: `make_bench(user_limit="off")`."""
    made: list[Bench] = []

    def factory(**changes: Any) -> Bench:
        made.append(Bench(Settings(**(settings.model_dump(exclude_unset=True) | changes))))
        return made[-1]

    yield factory
    for bench in made:
        bench.close()
