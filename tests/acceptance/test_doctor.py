"""`notifier doctor` where workers and beat run, and where they do not."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from redis import Redis

from notifier import runtime
from notifier.embedded.valkey import Valkey
from notifier.redis.keys import PREFIX
from notifier.wire import QUEUES
from tests.acceptance.conftest import Site
from tests.support import eventually

SECRET = "Zk3vQ9wXr7Lm2Tq8YhUoPbNc5Fd1Gs6J"
WORKERS = [f"workers.{queue}" for queue in QUEUES]


def examine(site: Site) -> tuple[int, dict[str, dict[str, Any]]]:
    """Exit code, and check -> finding. Run as a person does, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "notifier", "doctor", "--json"],
        cwd=site.directory,
        env={**site.env, "NOTIFIER_SECRET": SECRET},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    assert SECRET not in done.stdout + done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    return done.returncode, {finding["check"]: finding for finding in report["findings"]}


def bad(found: dict[str, dict[str, Any]]) -> dict[str, str]:
    return {check: finding["level"] for check, finding in found.items() if finding["level"] != "ok"}


@pytest.mark.slow
def test_a_whole_installation_is_well_and_stays_as_it_was(
    make_site: Callable[..., Site], fresh_valkey: Callable[..., Valkey]
) -> None:
    state = fresh_valkey(aof="everysec")
    site = make_site(redis_url=state.url(0), broker_url=state.url(1))
    site.beat()
    site.worker()
    eventually(lambda: runtime.get().client.get(f"{PREFIX}replayed"), timeout_s=60)
    code, found = examine(site)
    assert bad(found) == {"database.fsync": "warning"}, "the tests' own PostgreSQL"
    assert code == 0
    assert [check for check in found if check.startswith("workers.")] == WORKERS
    assert "@" in found[WORKERS[0]]["what"], "it says which worker answered"
    assert site.counts.accepted == 0
    assert not list(runtime.get().client.scan_iter(f"{PREFIX}canary:*"))
    with Redis.from_url(site.settings.broker_url) as broker:
        assert eventually(lambda: not broker.hlen("unacked"), timeout_s=60)


@pytest.mark.slow
def test_workers_that_take_some_queues_and_a_beat_that_is_absent(site: Site) -> None:
    site.worker("-Q", "notifier.critical,notifier.normal,notifier.control")
    eventually(lambda: runtime.get().client.exists(f"{PREFIX}replay-sender"), timeout_s=60)
    code, found = examine(site)
    assert code == 1
    assert {check: found[check]["level"] for check in WORKERS} == {
        "workers.notifier.critical": "ok",
        "workers.notifier.normal": "ok",
        "workers.notifier.bulk": "problem",
        "workers.notifier.control": "ok",
    }
    assert found["replay.alive"]["level"] == "warning"


@pytest.mark.slow
def test_a_frozen_worker_is_no_worker(site: Site, broker: Redis) -> None:
    site.worker().freeze()
    _, found = examine(site)
    assert [found[check]["level"] for check in WORKERS] == ["problem"] * 4
    assert sum(broker.llen(queue) for queue in QUEUES) == 0


@pytest.mark.slow
def test_rabbitmq_without_queues_with_workers_and_with_a_queue_of_another_kind(
    make_site: Callable[..., Site], rabbitmq_url: str
) -> None:
    from kombu import Connection

    user, _, rest = rabbitmq_url.partition("@")
    _, found = examine(make_site(broker_url=f"{user.rpartition(':')[0]}:wrong-password@{rest}"))
    assert (found["broker.reachable"]["level"], "authentication" in found["broker.reachable"]["what"]) == (
        "problem",
        True,
    )
    assert found["workers.consume"]["level"] == "warning"
    site = make_site(broker_url=rabbitmq_url)
    _, found = examine(site)
    assert found["broker.queues"]["level"] == "warning"
    assert "there is no such queue" in found[WORKERS[0]]["what"]
    worker = site.worker()
    _, found = examine(site)
    assert (found["broker.queues"]["level"], [found[check]["level"] for check in WORKERS]) == ("ok", ["ok"] * 4)
    assert worker.stop() == 0
    _, found = examine(site)
    assert [found[check]["level"] for check in WORKERS] == ["problem"] * 4
    with Connection(rabbitmq_url) as connection:
        channel = connection.default_channel
        counts: Callable[[], int] = lambda: sum(  # noqa: E731
            channel.queue_declare(queue, passive=True).message_count for queue in QUEUES
        )
        eventually(lambda: counts() == 0, timeout_s=60)
        channel.queue_delete("notifier.bulk")
        channel.queue_declare("notifier.bulk", durable=True, auto_delete=False)
        _, found = examine(site)
        channel.queue_delete("notifier.bulk")
    assert found["broker.queues"]["level"] == "problem"
    assert "notifier.bulk" in found["broker.queues"]["what"]
