"""Messages that no worker can use: their notifications are not gone with them."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import pytest
from redis import Redis

from tasks import send_notification
from tests.acceptance.conftest import Site

pytestmark = pytest.mark.slow

QUEUE = "notifier.normal"


def _renamed(message: dict[str, Any]) -> None:
    message["headers"]["task"] = "notifier.of_a_newer_version"


def _without_user(message: dict[str, Any]) -> None:
    args, kwargs, embed = json.loads(base64.b64decode(message["body"]))
    del kwargs["user_id"]
    message["body"] = base64.b64encode(json.dumps([args, kwargs, embed]).encode()).decode()


def _undecodable(message: dict[str, Any]) -> None:
    message["body"] = base64.b64encode(b"\xff\xfe not json").decode()


def _foreign(message: dict[str, Any]) -> None:
    message["content-type"] = "application/x-python-serialize"


def _with_body(message: dict[str, Any], body: str) -> None:
    message["body"] = base64.b64encode(body.encode()).decode()


def _deep(message: dict[str, Any]) -> None:
    args, kwargs, embed = json.loads(base64.b64decode(message["body"]))
    _with_body(message, json.dumps([args, {**kwargs, "deep": "@"}, embed]).replace('"@"', "[" * 900 + "]" * 900))


def _impatient(message: dict[str, Any]) -> None:
    message["headers"]["timelimit"] = "soon"


def _anonymous(message: dict[str, Any]) -> None:
    del message["headers"]["id"]


SPOILT: dict[str, Callable[[dict[str, Any]], None]] = {
    "renamed": _renamed, "without": _without_user, "undecodable": _undecodable, "foreign": _foreign,
    "empty": lambda message: _with_body(message, "[]"), "number": lambda message: _with_body(message, "5"),
    "keys": lambda message: _with_body(message, '{"a": 1, "b": 2, "c": 3}'),
    "numbers": lambda message: _with_body(message, "[5, 6, 7]"),
    "old": lambda message: _with_body(message, '{"args": 5}'),
    "older": lambda message: _with_body(message, '{"args": [], "kwargs": 5}'),
    "texts": lambda message: _with_body(message, '["ab", "cd", "ef"]'),
    "deep": _deep, "impatient": _impatient, "anonymous": _anonymous,
}  # fmt: skip


def test_what_workers_discard_is_published_again(site: Site, broker: Redis) -> None:
    """celery/celery#6485: unknown, unreadable and undecodable messages are acknowledged and thrown away.

    Celery's own worker ends by one whose envelope is broken.
    """
    for user, spoil in SPOILT.items():
        send_notification.delay(user, {"to": user})
        message = json.loads(broker.lpop(QUEUE))  # type: ignore[arg-type]
        spoil(message)
        broker.lpush(QUEUE + ".spoilt", json.dumps(message))
    broker.rename(QUEUE + ".spoilt", QUEUE)
    site.beat()
    worker = site.worker()
    site.settled(len(SPOILT), timeout_s=40)
    assert [site.payloads(user) for user in SPOILT] == [[{"to": user}] for user in SPOILT]
    assert site.counts.republished >= len(SPOILT)
    assert worker.stop() == 0


def test_arguments_of_a_newer_version_are_passed_over(site: Site, broker: Redis) -> None:
    """SuperCoopBerlin/tapir#485: in a rolling deploy an older worker gets what a newer producer sent."""
    send_notification.delay("anna", 1)
    message = json.loads(broker.lpop(QUEUE))  # type: ignore[arg-type]
    args, kwargs, embed = json.loads(base64.b64decode(message["body"]))
    body = json.dumps([args, {**kwargs, "of_a_newer_version": [1]}, embed])
    message["body"] = base64.b64encode(body.encode()).decode()
    broker.lpush(QUEUE, json.dumps(message))
    site.worker()
    site.settled(1)
    assert site.payloads("anna") == [1]


def test_a_message_restored_an_hour_later_is_dropped(site: Site, broker: Redis) -> None:
    """celery/kombu#337: a restored copy, when its done mark has long expired."""
    send_notification.delay("anna", 1)
    copy = broker.lindex(QUEUE, 0)
    assert isinstance(copy, bytes)
    site.worker()
    site.settled(1)
    state = Redis.from_url(site.settings.redis_url)
    for key in state.scan_iter("*done:*"):
        state.delete(key)
    message = json.loads(copy)
    args, kwargs, embed = json.loads(base64.b64decode(message["body"]))
    kwargs["accepted_us"] -= 3_600_000_000
    message["body"] = base64.b64encode(json.dumps([args, kwargs, embed]).encode()).decode()
    broker.lpush(QUEUE, json.dumps(message))
    send_notification.delay("anna", 2)
    site.settled(2)
    assert site.payloads("anna") == [1, 2]
    state.close()
