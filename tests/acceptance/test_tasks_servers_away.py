"""Servers that are away when a notification is sent, or while it is worked on."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from notifier import runtime
from notifier.embedded.postgres import Postgres
from notifier.embedded.valkey import Valkey
from notifier.errors import NotAccepted
from tasks import send_notification, send_notifications
from tests.acceptance.conftest import Site
from tests.support import eventually

Servers = Callable[..., Valkey]


@pytest.mark.slow
def test_sent_while_the_ledger_is_away(make_site: Callable[..., Site], fresh_valkey: Servers) -> None:
    state = fresh_valkey(aof="always")
    site = make_site(redis_url=state.url(), user_limit="off")
    state.kill()
    sent = send_notification.delay("anna", "unledgered").id
    send_notifications.delay(["anna", "bert"], "both")
    state.restart()
    site.beat()
    site.worker()
    site.settled(3)
    assert sorted(site.payloads("anna")) == ["both", "unledgered"]
    assert site.payloads("bert") == ["both"]
    assert sent in {frame["notification_id"] for frame in site.frames("anna")}


@pytest.mark.slow
@pytest.mark.parametrize("away", ["killed", "frozen"])
def test_sent_while_the_broker_is_away(make_site: Callable[..., Site], fresh_valkey: Servers, away: str) -> None:
    broker = fresh_valkey(aof="always")
    site = make_site(broker_url=broker.url(), user_limit="off")
    if away == "killed":
        broker.kill()
    else:
        broker.freeze()
    for number in range(3):
        send_notification.delay("anna", number)
    if away == "killed":
        broker.restart()
    else:
        broker.thaw()
    site.worker()
    site.beat()
    site.settled(3)
    assert sorted(site.payloads("anna")) == [0, 1, 2]


def test_sent_while_both_are_away_it_is_refused_and_may_be_sent_again(
    make_site: Callable[..., Site], fresh_valkey: Servers
) -> None:
    state, broker = fresh_valkey(aof="always"), fresh_valkey(aof="always")
    site = make_site(redis_url=state.url(), broker_url=broker.url())
    state.kill()
    broker.kill()
    with pytest.raises(NotAccepted) as refused:
        send_notification.delay("anna", "again")
    assert refused.value.recipients == ["anna"]
    assert refused.value.notification_id in str(refused.value)
    state.restart()
    broker.restart()
    for _ in range(2):
        result = send_notification.delay("anna", "again", notification_id=refused.value.notification_id)
        assert result.id == refused.value.notification_id
    site.worker()
    eventually(lambda: site.payloads("anna") == ["again"], timeout_s=60)
    assert site.counts.duplicate == 1


@pytest.mark.slow
@pytest.mark.parametrize("pool", ["prefork", "threads", "solo"])
def test_the_broker_restarts_under_load(make_site: Callable[..., Site], fresh_valkey: Servers, pool: str) -> None:
    """celery/kombu#970, celery/celery#9250: the worker must live on."""
    broker = fresh_valkey(aof="always")
    site = make_site(broker_url=broker.url(), user_limit="off")
    site.beat()
    worker = site.worker(pool=pool)
    for number in range(150):
        send_notification.delay(f"user-{number}", number)
        if number in (50, 100):
            broker.kill()
            broker.restart()
    site.settled(150)
    assert [site.payloads(f"user-{number}") for number in range(150)] == [[n] for n in range(150)]
    assert worker.stop() == 0


@pytest.mark.slow
def test_both_stores_away_while_working(
    make_site: Callable[..., Site], fresh_valkey: Servers, fresh_postgres: Callable[..., Postgres]
) -> None:
    """Nobody could hold the message: it goes back to the broker until somebody can."""
    state, database = fresh_valkey(aof="always"), fresh_postgres()
    url = database.url().replace("postgresql:", "postgresql+psycopg2:")
    site = make_site(redis_url=state.url(), database_url=url, user_limit="off")
    site.beat()
    worker = site.worker()
    send_notification.delay("anna", "before")
    site.settled(1)
    state.kill()
    database.kill()
    send_notification.delay("anna", "meanwhile")
    worker.says("went back to the broker")
    database.restart()
    state.restart()
    site.settled(2)
    assert site.payloads("anna") == ["before", "meanwhile"]
    assert runtime.get().store.counts().waiting == 0
