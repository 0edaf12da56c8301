"""The odd values of the unit tests, where servers are there: they may come as far as a script or a statement."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from click.testing import CliRunner

from notifier import runtime
from notifier.cli import main
from notifier.settings import Settings
from tests.unit.test_cli_odd_values import COMMANDS, LASTING, command_of, odd_calls

LEFT_OUT = {"doctor", "migrate"}  # it waits for workers; it would move the schema of everybody's database
ESCAPED = re.compile(r"\b(Traceback|UnicodeEncodeError|ValueError|OverflowError|TypeError)\b")


@pytest.fixture
def servers(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    runtime.close()
    for name in ("broker_url", "redis_url", "limiter_redis_url", "database_url", "secret"):
        value = getattr(settings, name)
        monkeypatch.setenv(f"NOTIFIER_{name.upper()}", getattr(value, "get_secret_value", lambda v=value: str(v))())
    yield
    runtime.close()


@pytest.mark.parametrize("path", [path for path in COMMANDS if path[0] not in LASTING | LEFT_OUT], ids=" ".join)
def test_odd_values_are_refused_or_taken(path: tuple[str, ...], servers: None) -> None:
    for call in odd_calls(command_of(path)):
        told = [argument[:40] for argument in call]
        result = CliRunner().invoke(main, [*path, *call], input="")
        assert result.exception is None or isinstance(result.exception, SystemExit), (told, result.exception)
        assert not ESCAPED.search(result.output), told
        assert "unreachable" not in result.output and "cannot be reached" not in result.output, told
