"""What a line of the log looks like."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from notifier import logs, metrics
from notifier.notification import Identity

EVIL = Identity('4"2\n2026-01-01 ERROR all is lost', "websocket", "n\u20281")
log = logging.getLogger("tests.logs")


@pytest.fixture
def written(request: pytest.FixtureRequest) -> Iterator[io.StringIO]:
    """What a logger of the test's own has written, in the format of the parameter."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logs.JsonFormatter() if request.param == "json" else logs.TextFormatter())
    for logger in (log, metrics.log):
        logger.addHandler(handler)
    log.setLevel(logging.INFO)
    yield stream
    for logger in (log, metrics.log):
        logger.removeHandler(handler)


def fails(what: str) -> None:
    try:
        raise KeyError(what)
    except KeyError as error:
        raise ValueError(what) from error


def only(written: io.StringIO) -> dict[str, Any]:
    (line,) = written.getvalue().splitlines()
    parsed: dict[str, Any] = json.loads(line)
    return parsed


@pytest.mark.parametrize("written", ["text"], indirect=True)
def test_no_id_can_pretend_to_be_another_line(written: io.StringIO) -> None:
    logs.say(log, logging.INFO, "parked", logs.of(EVIL))
    (line,) = written.getvalue().splitlines()
    assert line.endswith(
        r'parked [user_id="4\"2\n2026-01-01 ERROR all is lost" channel="websocket" notification_id="n\u20281"]'
    )


@pytest.mark.parametrize("written", ["json"], indirect=True)
def test_fields_stand_beside_the_event(written: io.StringIO) -> None:
    logs.say(log, logging.WARNING, "100 % parked", logs.of(EVIL), what="poison")
    line = only(written)
    assert line.pop("time").endswith("+00:00")
    assert isinstance(line.pop("process"), int)
    assert line == {
        "level": "warning",
        "logger": "tests.logs",
        "event": "100 % parked",
        "what": "poison",
        "user_id": EVIL.user_id,
        "channel": "websocket",
        "notification_id": EVIL.notification_id,
    }


@pytest.mark.parametrize("written", ["text", "json"], indirect=True)
def test_an_errors_own_text_and_a_password_stay_out(written: io.StringIO) -> None:
    try:
        fails("".join(("hunter", "2")))
    except ValueError:
        log.exception("redis://app:hunter2@host:6379/0 cannot be used, nor can amqp://app:hunter2@host//")
    said = written.getvalue()
    assert "hunter2" not in said
    for part in ("ValueError", "KeyError", "in fails", "redis://app:***@host:6379/0", "amqp://app:***@host//"):
        assert part in said


@pytest.mark.parametrize("written", ["json"], indirect=True)
def test_a_fallback_says_what_and_about_whom(written: io.StringIO) -> None:
    metrics.degraded("tests_of_logs", "KeyError", about=logs.of(Identity("42", "sms", "n1")))
    metrics.degraded("tests_of_logs", "KeyError", about=logs.of(Identity("43", "sms", "n2")))  # within ten seconds
    line = only(written)
    assert (line["event"], line["what"]) == ("degraded: tests_of_logs: KeyError", "tests_of_logs")
    assert (line["user_id"], line["notification_id"]) == ("42", "n1")


@pytest.mark.parametrize("written", ["json"], indirect=True)
def test_what_a_stranger_claims_to_be_an_id_is_cut(written: io.StringIO) -> None:
    logs.say(log, logging.INFO, "unreadable", {"notification_id": "x" * 100_000})
    assert len(written.getvalue()) < 2 * logs.LONGEST
