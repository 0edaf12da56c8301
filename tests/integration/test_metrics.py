"""What a scrape finds, from real servers and real deliveries."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from notifier import metrics_dir
from notifier.channels import RetryAt, Sent
from notifier.channels.breaker import FAILURES, FORGOTTEN_S, Breakers
from notifier.embedded.postgres import Postgres
from notifier.embedded.valkey import Valkey
from notifier.exposition import Exposition
from notifier.licence import Denial
from notifier.limits.limiter import Limiter
from notifier.notification import Notification
from notifier.settings import Settings
from notifier.survey import NO_ANSWER, Surveyor
from notifier.wire import Message
from tests.conftest import for_sqlalchemy, make_settings
from tests.deadletters import MakeBench
from tests.support import eventually

Values = dict[tuple[str, str], float]


def of_process() -> Values:
    """(name, labels as JSON) of every sample of this process."""
    return {(s.name, json.dumps(s.labels, sort_keys=True)): s.value for m in metrics_dir.collect() for s in m.samples}


def of_scrape(exposition: Exposition) -> Values:
    """The same, of a whole scrape."""
    families = text_string_to_metric_families(generate_latest(exposition.registry).decode())
    return {(s.name, json.dumps(s.labels, sort_keys=True)): s.value for family in families for s in family.samples}


def value(values: Values, name: str, **labels: str) -> float:
    """One sample; 0 where it is not there."""
    return values.get((name, json.dumps(labels, sort_keys=True)), 0.0)


@pytest.fixture
def grown() -> Callable[..., float]:
    """By how much a sample of this process has grown since the test began."""
    before = of_process()
    return lambda name, **labels: value(of_process(), name, **labels) - value(before, name, **labels)


@pytest.fixture
def exposition(settings: Settings) -> Iterator[Exposition]:
    """All that is known of the session's servers."""
    with closing(Exposition(settings)) as made:
        yield made


def test_ends_of_messages_and_of_rows_are_counted_by_channel_and_reason(
    make_bench: MakeBench, grown: Callable[..., float]
) -> None:
    bench = make_bench(user_limit="off")
    ended, latency = "notifier_ended_total", "notifier_delivery_seconds_count"
    bench.deny("anna", 1)
    assert grown("notifier_accepted_total", channel="websocket") == 1
    assert grown("notifier_deferred_total", channel="websocket", reason="rate_limited") == 1
    bench.replay.run()
    bench.replay.run()
    assert grown(ended, channel="websocket", end="delivered", reason="") == 1
    assert grown(latency, channel="websocket", via="row") == 1
    assert grown(latency, channel="websocket", via="message") == 0


def test_no_label_is_whatever_a_stranger_wrote(make_bench: MakeBench, grown: Callable[..., float]) -> None:
    bench = make_bench(user_limit="off")
    n = Notification.create("anna", 1, channel="made-up")
    (accepted,) = bench.ledger.accept([n])
    bench.ledger.deny([Message(n, accepted.accepted_us, accepted.epoch)], [Denial(1, 0, "made up too")])
    assert grown("notifier_deferred_total", channel="other", reason="other") == 1
    assert not [labels for _, labels in of_process() if "made" in labels]


def test_the_limiter_tells_of_grants_denials_and_loans(settings: Settings, grown: Callable[..., float]) -> None:
    values = settings.model_dump(exclude_unset=True) | {"user_limit": "12/min burst 1", "local_bucket": "off"}
    with closing(Limiter.from_settings(Settings(**values))) as limiter:
        assert limiter.acquire("anna").granted
        assert not limiter.acquire("anna").granted
        assert not limiter.acquire("anna").granted
        eventually(lambda: grown("notifier_denials_total", level="user") == 1, timeout_s=60)
        eventually(lambda: grown("notifier_denials_total", level="cached") == 1, timeout_s=60)
        eventually(lambda: grown("notifier_grants_total", source="shared") == 1, timeout_s=60)
        assert value(of_process(), "notifier_limiter_processes", state="in_touch") == 1


def test_a_limiter_in_grace_and_its_loans_are_seen(settings: Settings, fresh_valkey: Callable[..., Valkey]) -> None:
    server = fresh_valkey()
    changes = {"limiter_redis_url": server.url(), "grace_seconds": 300, "local_bucket": "1/day burst 50"}
    with closing(Limiter.from_settings(Settings(**(settings.model_dump(exclude_unset=True) | changes)))) as limiter:
        limiter.connect()
        server.kill()
        assert limiter.acquire("anna").granted
        eventually(lambda: value(of_process(), "notifier_limiter_processes", state="grace") == 1, timeout_s=60)
        eventually(lambda: value(of_process(), "notifier_loans_open") >= 1, timeout_s=60)


def test_a_scrape_tells_how_the_installation_stands(make_bench: MakeBench, exposition: Exposition) -> None:
    bench = make_bench(user_limit="off")
    bench.deny("anna", 1, wait_s=3_600)
    bench.deny("bert", 1)
    bench.replay.spill()
    bench.ledger.accept([Notification.create("carl", 1)])

    def look() -> Values:
        values = of_scrape(exposition)
        assert value(values, "notifier_rows", state="waiting") == 2
        assert value(values, "notifier_ledger_queued", queue="normal") == 1
        assert value(values, "notifier_rows_overdue_seconds") > 0
        return values

    values = eventually(look, timeout_s=60)
    for server in ("state", "limiter", "database", "broker"):
        assert value(values, "notifier_up", server=server) == 1
    assert value(values, "notifier_ledger_booked_total", what="accepted") == 3
    assert value(values, "notifier_ledger_waiting") == 2
    assert value(values, "notifier_ledger_oldest_queued_seconds") > 0
    assert value(values, "notifier_rows_oldest_seconds", state="waiting") > 0
    assert value(values, "notifier_replay_age_seconds") == 3_600


@pytest.mark.slow
def test_servers_that_are_away_or_frozen_are_said_to_be_and_hold_up_nothing(
    settings: Settings, fresh_valkey: Callable[..., Valkey], fresh_postgres: Callable[..., Postgres]
) -> None:
    state, limiter, postgres = fresh_valkey(), fresh_valkey(), fresh_postgres()
    away = make_settings(state, limiter, for_sqlalchemy(postgres.url()), settings.data_dir)
    with closing(Surveyor(away)) as surveyor:
        eventually(lambda: set(surveyor.look().servers.values()) == {"ok"}, timeout_s=60)
        limiter.kill()
        postgres.freeze()

        def problems() -> dict[str, str]:
            found = {name: problem for name, problem in surveyor.look().servers.items() if problem != "ok"}
            assert set(found) == {"limiter", "database"}, found
            return found

        assert eventually(problems, timeout_s=60)["database"] == NO_ANSWER
        assert surveyor.look().rows is None
        assert surveyor.look().books is not None
        postgres.thaw()
        eventually(lambda: surveyor.look().servers["database"] == "ok", timeout_s=60)


def test_an_open_breaker_is_seen_by_its_channel_until_it_closes(grown: Callable[..., float]) -> None:
    breakers = Breakers()
    for _ in range(FAILURES + 2):
        breakers.record("webhook to example.com", [RetryAt("refused")])
    breakers.record("webhook to other.example.com", [RetryAt("refused")])
    assert grown("notifier_channel_breakers_open", channel="webhook") == 1
    breakers.record("webhook to example.com", [Sent()])
    assert grown("notifier_channel_breakers_open", channel="webhook") == 0


def test_an_open_breaker_of_a_side_that_is_gone_is_forgotten(grown: Callable[..., float]) -> None:
    now_s = [0.0]
    breakers = Breakers(lambda: now_s[0])
    for _ in range(FAILURES):
        breakers.record("webhook to gone.example.com", [RetryAt("refused")])
    now_s[0] = FORGOTTEN_S + 1.0
    breakers.record("webhook to example.com", [Sent()])
    assert grown("notifier_channel_breakers_open", channel="webhook") == 0
    assert breakers.wait_s("webhook to gone.example.com") == 0


def test_a_gateway_does_not_ask_servers_that_nobody_has_named(settings: Settings) -> None:
    with closing(Exposition(Settings(redis_url=settings.redis_url), only_named=True)) as exposition:
        up = {labels for name, labels in of_scrape(exposition) if name == "notifier_up"}
    assert up == {'{"server": "state"}'}
