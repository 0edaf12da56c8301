"""Celery's calling options in our words."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from notifier.errors import InvalidNotification
from tasks.options import translate

SOON = timedelta(seconds=60)


def translated(kwargs: dict[str, Any] | None = None, task_id: str | None = None, **options: Any) -> dict[str, Any]:
    return translate(dict(kwargs or {}), task_id, options)


def test_nothing_given_changes_nothing() -> None:
    assert translated({"ttl": 5}, eta=None, queue=None, link=[], headers={"a": 1}, producer=object()) == {"ttl": 5}


def test_eta_and_countdown_are_not_before() -> None:
    eta = datetime.now(UTC) + SOON
    assert translated(eta=eta)["not_before"] == eta
    before = datetime.now(UTC)
    not_before = translated(countdown=60)["not_before"]
    assert before + SOON <= not_before <= datetime.now(UTC) + SOON


def test_what_the_call_names_itself_wins() -> None:
    named = datetime.now(UTC) + SOON
    found = translated({"not_before": named, "ttl": 3, "notification_id": "mine"}, "t1", countdown=5, expires=9)
    assert found == {"not_before": named, "ttl": 3, "notification_id": "mine"}


def test_the_task_id_is_the_notification_id() -> None:
    assert translated(task_id="t1") == {"notification_id": "t1"}


def test_expires_counts_from_the_call_and_ttl_from_not_before() -> None:
    assert translated(expires=90) == {"ttl": 90}
    assert translated(expires=90, countdown=60)["ttl"] == pytest.approx(30, abs=0.5)
    assert translated(expires=datetime.now(UTC) + SOON)["ttl"] == pytest.approx(60, abs=0.5)
    assert translated({"not_before": datetime.now(UTC) - SOON}, expires=90)["ttl"] == 90


def test_a_priority_in_words_is_ours() -> None:
    assert translated(priority="critical") == {"priority": "critical"}


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("queue", "mine"), ("routing_key", "x"), ("exchange", "x"), ("priority", 3), ("serializer", "pickle"),
        ("compression", "zlib"), ("link", ["a callback"]), ("link_error", ["a callback"]), ("chord", {"a": 1}),
        ("chain", ["what comes after it"]),
        ("eta", datetime(2030, 1, 1)), ("expires", datetime(2030, 1, 1)),
    ],
)  # fmt: skip
def test_an_option_that_would_be_lost_is_refused_by_name(option: str, value: Any) -> None:
    with pytest.raises(InvalidNotification) as refused:
        translated(**{option: value})
    assert refused.value.argument == option
