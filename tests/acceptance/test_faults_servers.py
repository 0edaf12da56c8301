"""Servers that forget, stall, restart and come too late, under working processes."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from redis import Redis

from notifier import runtime
from notifier.deadletters.migrate import upgrade
from notifier.embedded.postgres import Postgres
from notifier.embedded.valkey import Valkey
from tasks import send_notification
from tests.acceptance.conftest import Site
from tests.conftest import for_sqlalchemy
from tests.support import eventually

pytestmark = pytest.mark.slow

MakeSite = Callable[..., Site]
Servers = Callable[..., Valkey]
LIMIT = "1/s burst 3"


def rows() -> int:
    return runtime.get().store.counts().waiting


@pytest.mark.parametrize("how", ["FLUSHALL", "restart without AOF"])
def test_state_redis_forgets_everything(make_site: MakeSite, fresh_valkey: Servers, how: str) -> None:
    """apache/airflow#28941: what waits in PostgreSQL outlives it, and nothing of it arrives twice."""
    state = fresh_valkey(aof=None)
    site = make_site(redis_url=state.url(), user_limit=LIMIT)
    beat, worker = site.beat(), site.worker()
    for number in range(8):
        send_notification.delay("anna", number)
    eventually(lambda: site.counts.deferred == 0 and site.counts.in_flight == 0 and rows() > 1, timeout_s=30)
    if how == "FLUSHALL":
        with Redis.from_url(state.url()) as client:
            client.flushall()
    else:
        state.kill()
        state.restart()
    send_notification.delay("bert", "after")
    eventually(lambda: rows() == 0 and site.payloads("bert"), timeout_s=40)
    assert len(site.payloads("anna")) > 0
    assert len(set(site.payloads("anna"))) == len(site.payloads("anna"))
    assert site.payloads("anna")[-1] == 7
    assert site.payloads("bert") == ["after"]
    assert (worker.stop(), beat.stop()) == (0, 0)


def test_scripts_are_flushed_again_and_again(make_site: MakeSite, fresh_valkey: Servers) -> None:
    """redis/redis-py#4206: NOSCRIPT is neither an outage nor a loss."""
    state, limiter = fresh_valkey(aof="always"), fresh_valkey(aof="always")
    site = make_site(redis_url=state.url(), limiter_redis_url=limiter.url(), user_limit="20/s burst 2")
    site.beat()
    worker = site.worker()
    over = threading.Event()

    def flush() -> None:
        with Redis.from_url(state.url()) as one, Redis.from_url(limiter.url()) as other:
            while not over.wait(0.01):
                one.script_flush()
                other.script_flush()

    flushing = threading.Thread(target=flush)
    flushing.start()
    try:
        for number in range(100):
            send_notification.delay(f"user-{number % 10}", number)
        site.settled(100, timeout_s=40)
    finally:
        over.set()
        flushing.join()
    assert sorted(n for u in range(10) for n in site.payloads(f"user-{u}")) == list(range(100))
    assert "unavailable" not in worker.text


def test_a_worker_that_starts_before_the_migration(
    make_site: MakeSite, fresh_postgres: Callable[..., Postgres]
) -> None:
    """What was denied meanwhile waits in Redis, loudly, until there is a table."""
    database = fresh_postgres(migrated=False)
    site = make_site(database_url=for_sqlalchemy(database.url()), user_limit=LIMIT)
    site.beat()
    worker = site.worker()
    for number in range(6):
        send_notification.delay("anna", number)
    worker.says("run `notifier migrate`")
    eventually(lambda: site.counts.waiting > 0, timeout_s=60)
    upgrade(for_sqlalchemy(database.url()))
    site.settled(6, timeout_s=40)
    assert sorted(site.payloads("anna")) == list(range(6))


def test_postgres_restarts_while_notifications_are_denied(
    make_site: MakeSite, fresh_postgres: Callable[..., Postgres]
) -> None:
    """A transaction whose outcome is unknown is repeated: no row too few, none too many."""
    database = fresh_postgres(durable=True)
    site = make_site(database_url=for_sqlalchemy(database.url()), user_limit="5/s burst 2")
    site.beat()
    site.worker()
    for round_ in range(4):
        for number in range(25):
            send_notification.delay(f"user-{number % 5}", [round_, number])
        if round_ % 2:
            database.restart()
        else:
            database.kill()
            database.restart()
    site.settled(100, timeout_s=60)
    arrived = [tuple(p) for user in range(5) for p in site.payloads(f"user-{user}")]
    assert sorted(arrived) == [(round_, number) for round_ in range(4) for number in range(25)]
    assert rows() == 0


def test_a_frozen_broker_is_heard_again(make_site: MakeSite, fresh_valkey: Servers) -> None:
    """celery/celery#10502: alive, but deaf after a half-open connection."""
    broker = fresh_valkey(aof="always")
    site = make_site(broker_url=broker.url(), user_limit="off")
    site.beat()
    worker = site.worker()
    send_notification.delay("anna", 0)
    site.settled(1)
    broker.freeze()
    for number in range(1, 6):
        send_notification.delay("anna", number)
    # Whichever part of it met the silence first. The beat watch is the last one: it speaks after ten seconds.
    noticed = ("onnection to broker lost", "Couldn't ack", "degraded: beat_watch")
    eventually(lambda: any(text in worker.text for text in noticed), timeout_s=60)
    broker.thaw()
    site.settled(6)
    assert sorted(site.payloads("anna")) == list(range(6))
    assert worker.stop() == 0


def test_two_beats_and_four_workers(make_site: MakeSite) -> None:
    """sibson/redbeat#208: any number of beats; each row is delivered once."""
    site = make_site(user_limit="5/s burst 2")
    for _ in range(2):
        site.beat()
        site.worker()
    for number in range(60):
        send_notification.delay(f"user-{number % 4}", number)
    site.settled(60, timeout_s=40)
    assert sorted(n for u in range(4) for n in site.payloads(f"user-{u}")) == list(range(60))
    assert site.counts.replayed > 0
