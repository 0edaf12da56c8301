"""`celery -A tasks worker` and `beat`, from delay() to the feed, at once and through PostgreSQL."""

from __future__ import annotations

import base64
import json
import os
import signal
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from redis import Redis

from notifier import runtime
from notifier.embedded.process import signal_tree
from notifier.embedded.valkey import Valkey
from tasks import send_notification, send_notifications
from tests.acceptance.conftest import Site, message
from tests.support import eventually

POOLS = ("prefork", *(pytest.param(pool, marks=pytest.mark.slow) for pool in ("threads", "solo")))
JSON_KINDS: list[Any] = [
    None, True, False, 0, -0.0, 1e22, 1e-7, 12345678901234567890123, 0.1, "", "a\u0000b", "zwölf 🚀",
    "\u2028 \"quotes\" \\ </script>", [], {}, [[[]]], {"": {"": [None]}}, {"b": 1, "a": 2},
    {"__type__": "datetime", "__value__": "2026"}, {"args": [1], "kwargs": {}, "task": "x"},
    {"id": 1, "payload": 2, "seq": 3}, "x" * 60_000,
]  # fmt: skip


def raw_bodies(user: object) -> list[str]:
    """The payloads in a user's feed as the text that clients get."""
    from notifier.redis.keys import user_key

    entries: Any = runtime.get().client.xrange(user_key("feed", str(user), "websocket"))
    return [fields[b"f"].decode().partition('"payload":')[2].removesuffix("}") for _, fields in entries]


@pytest.mark.parametrize("pool", POOLS)
def test_from_delay_to_the_feed_at_once_and_later(site: Site, pool: str) -> None:
    worker, beat = site.worker(pool=pool), site.beat()
    for number in range(8):
        send_notification.delay("anna", number)
    send_notifications.delay([f"user-{n}" for n in range(150)], {"for": "all"})
    counts = site.settled(158)
    assert counts.deferrals >= 1
    assert counts.replayed == counts.deferrals
    assert sorted(site.payloads("anna")) == list(range(8))
    assert [site.payloads(f"user-{n}") for n in range(150)] == [[{"for": "all"}]] * 150
    assert (beat.stop(), worker.stop()) == (0, 0)
    assert "Traceback" not in worker.text + beat.text
    assert "replay_dead_letters[" not in worker.text, "nothing is said of what is done every second"
    assert "notifier-replay" not in beat.text
    assert not [path.name for path in site.directory.iterdir() if path.suffix != ".log"], "beat keeps no file"


def test_whatever_json_can_say_arrives_as_it_was_said(site: Site) -> None:
    """At once, and through a dead letter."""
    site.worker()
    site.beat()
    said = [json.dumps(value, separators=(",", ":")) for value in JSON_KINDS]
    for number, value in enumerate(JSON_KINDS):
        send_notification.delay(f"user-{number}", value)
        send_notification.delay(f"user-{number}", value, not_before=datetime.now(UTC) + timedelta(seconds=3))
    assert site.settled(2 * len(said)).replayed == len(said)
    assert [raw_bodies(f"user-{n}") for n, _ in enumerate(said)] == [[body, body] for body in said]


@pytest.mark.slow
def test_a_message_that_the_broker_lost_is_published_again(site: Site, broker: Redis) -> None:
    """celery/kombu#305: a pop that nobody recorded."""
    for number in range(5):
        send_notification.delay(f"user-{number}", number)
    assert broker.delete("notifier.normal") == 1
    site.worker()
    site.beat()
    counts = site.settled(5)
    assert (counts.delivered, counts.republished) == (5, 5)
    assert [site.payloads(f"user-{number}") for number in range(5)] == [[n] for n in range(5)]


@pytest.mark.slow
def test_a_worker_frozen_and_killed_with_messages_in_hand(site: Site) -> None:
    """celery/celery#4984: what a killed worker held comes back within seconds, not after an hour."""
    beat, frozen = site.beat(), site.worker()
    frozen.freeze()
    for number in range(6):
        send_notification.delay(f"user-{number}", number)
    eventually(lambda: site.counts.accepted == 6, timeout_s=60)
    frozen.kill()
    site.worker()
    site.settled(6)
    assert [site.payloads(f"user-{number}") for number in range(6)] == [[n] for n in range(6)]
    assert beat.stop() == 0


@pytest.mark.slow
def test_killed_in_the_middle_of_a_message(make_site: Callable[..., Site], fresh_valkey: Callable[..., Valkey]) -> None:
    state = fresh_valkey(aof="always")
    site = make_site(redis_url=state.url())
    site.beat()
    worker = site.worker()
    send_notification.delay("anna", 0)
    site.settled(1)
    signal_tree(worker.pid, signal.SIGSTOP)
    for number in range(1, 5):
        send_notification.delay(f"user-{number}", number)
    state.freeze()
    signal_tree(worker.pid, signal.SIGCONT)
    with Redis.from_url(site.settings.broker_url) as client:
        eventually(lambda: client.hlen("unacked") >= 2, timeout_s=60)
    worker.kill()
    state.thaw()
    site.worker()
    site.settled(5)
    assert [site.payloads(f"user-{number}") for number in range(1, 5)] == [[n] for n in range(1, 5)]


@pytest.mark.slow
def test_term_under_load_loses_nothing_and_doubles_nothing(site: Site) -> None:
    site.beat()
    workers = [site.worker(), site.worker()]
    for number in range(200):
        send_notification.delay(f"user-{number}", number)
        if number == 100:
            os.kill(workers[0].pid, signal.SIGTERM)
    assert workers[0].ended() == 0
    site.settled(200)
    assert [site.payloads(f"user-{number}") for number in range(200)] == [[n] for n in range(200)]


@pytest.mark.slow
def test_children_that_are_replaced_all_the_time_leave_nothing_behind(site: Site) -> None:
    """open-telemetry/opentelemetry-python-contrib#4916: what a recycled child still holds in memory is gone."""
    site.beat()
    worker = site.worker("--max-tasks-per-child", "3")
    for number in range(60):
        send_notification.delay(f"user-{number}", number)
    site.settled(60)
    assert [site.payloads(f"user-{number}") for number in range(60)] == [[n] for n in range(60)]
    assert worker.stop() == 0


@pytest.mark.slow
def test_nothing_of_a_payload_or_a_password_is_logged(site: Site, broker: Redis) -> None:
    worker, beat = site.worker("--loglevel", "DEBUG"), site.beat("--loglevel", "DEBUG")
    canary = "canary-7f3a"
    for _ in range(6):
        send_notification.delay("anna", {"text": canary})  # the last ones wait in PostgreSQL
    body = base64.b64encode(json.dumps([[], {"user_id": "anna", "body": canary}, {}]).encode()).decode()
    for task, content_type in (
        ("notifier.of_a_newer_version", "application/json"),
        ("notifier.send_notification", "application/x-python-serialize"),
        ("notifier.send_notification", "application/json"),
    ):
        broker.lpush("notifier.normal", message(task, content_type, body))
    broker.lpush("notifier.normal", message("notifier.send_notification", "application/json", "bm90IGpzb24gY2FuYXJ5"))
    site.settled(6)
    eventually(lambda: broker.llen("notifier.normal") == 0, timeout_s=60)
    worker.says("notifier.of_a_newer_version").says("cannot be read").says("Refusing to deserialize")
    assert (beat.stop(), worker.stop()) == (0, 0)
    password = site.settings.redis_url.split(":")[2].split("@")[0]
    for process in (worker, beat):
        for secret in (canary, "canary", password, base64.b64encode(canary.encode()).decode()[:8]):
            assert secret not in process.text


@pytest.mark.slow
def test_an_unsupported_pool_is_refused_at_the_start(site: Site) -> None:
    process = site.celery("worker", "--pool", "custom", CELERY_CUSTOM_WORKER_POOL="celery.concurrency.gevent:TaskPool")
    assert process.ended() == 1
    assert "gevent pool is not supported" in process.text
    assert "Traceback" not in process.text


@pytest.mark.slow
def test_without_a_beat_workers_replay_themselves(site: Site) -> None:
    worker = site.worker()
    for number in range(8):
        send_notification.delay("anna", number)
    site.settled(8)
    assert sorted(site.payloads("anna")) == list(range(8))
    worker.says("no replay ran for 10 s")
