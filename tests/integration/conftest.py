"""Fixtures of the integration tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery import Celery, current_app
from redis import Redis
from sqlalchemy import create_engine
from sqlalchemy.orm import Session, sessionmaker

from notifier import runtime
from notifier.channels.addresses import Addresses
from notifier.channels.breaker import Breakers
from notifier.channels.webhook import WebhookChannel
from notifier.embedded.valkey import Valkey
from notifier.ledger import Ledger
from notifier.redis.state import connect_state
from notifier.settings import Settings
from tasks.app import create_app
from tests.as_worker import Use
from tests.deadletters import Bench
from tests.receiver import SECRET, Make, Receiver, receiver


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


@pytest.fixture
def client(valkey: Valkey) -> Iterator[Redis]:
    with connect_state(valkey.url(), 5.0) as made:
        yield made


@pytest.fixture
def ledger(client: Redis, settings: Settings) -> Ledger:
    return Ledger(client, settings)


@pytest.fixture
def use(settings: Settings) -> Iterator[Callable[..., None]]:
    """Make these settings the process's."""

    def configure(**changes: object) -> None:
        runtime.close()
        runtime.get(settings.model_copy(update=changes))

    configure()
    yield configure
    runtime.close()


@pytest.fixture
def sessions(use: object, postgres_url: str) -> Iterator[sessionmaker[Session]]:
    """An application's sessions, in the database of the dead letters."""
    engine = create_engine(postgres_url)
    yield sessionmaker(engine)
    engine.dispose()


@pytest.fixture
def hook() -> Iterator[Receiver]:
    with receiver() as made:
        yield made


@pytest.fixture
def make_webhook() -> Make:
    """A channel whose users are reached at the given addresses."""

    def factory(addresses: object, **settings: object) -> WebhookChannel:
        values: dict[str, object] = {"webhook_secret": SECRET, "webhook_allow_networks": "127.0.0.0/8, ::1/128"}
        lookup = addresses if callable(addresses) else lambda _user, _channel: addresses
        return WebhookChannel(Settings(**(values | settings)), Addresses([lookup]), Breakers())

    return factory


@pytest.fixture
def our_app(settings: Settings) -> Iterator[Use]:
    """Make these settings the process's, and an app on its broker the current one."""
    before = current_app._get_current_object()

    def configure(**changes: object) -> Celery:
        runtime.close()
        changed = settings.model_copy(update=changes)
        runtime.get(changed)
        app = create_app(changed)
        app.set_current()
        return app

    yield configure
    before.set_current()
    runtime.close()
