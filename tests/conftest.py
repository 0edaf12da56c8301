"""Real servers for every test: started when first asked for, emptied before each test, none left at the end."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any, TypeVar

import psycopg2
import pytest
from kombu import Connection
from redis import Redis

import tests.effort  # noqa: F401  for every test that uses Hypothesis
from notifier.deadletters.migrate import upgrade as migrate
from notifier.embedded.postgres import Postgres
from notifier.embedded.rabbitmq import RabbitMQ, missing
from notifier.embedded.valkey import Valkey
from notifier.errors import ExtraMissing
from notifier.settings import PREFIX, Settings
from notifier.wire import QUEUES
from tests.support import adopt_orphans, command_line, descendants, eventually

S = TypeVar("S", Valkey, Postgres, RabbitMQ)
IN_CI = os.environ.get("CI") == "true"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A missing server skips on a laptop and fails in CI, where everything must have run."""
    report = yield
    if IN_CI and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped, which CI forbids: {item.nodeid}: {report.longrepr}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """The same for a whole file."""
    report = yield
    if IN_CI and report.skipped:
        report.outcome = "failed"
        report.longrepr = f"skipped, which CI forbids: {collector.nodeid}: {report.longrepr}"
    return report


@pytest.fixture(scope="session", autouse=True)
def nothing_left() -> Iterator[None]:
    """No process that a test started outlives the session."""
    adopt_orphans()
    yield
    try:
        eventually(lambda: not descendants())
    except AssertionError:
        left = descendants()
        names = [f"{process.pid} {command_line(process)}" for process in left]
        for process in left:
            with contextlib.suppress(Exception):
                process.kill()
        pytest.fail("left running:\n" + "\n".join(names))


@pytest.fixture(autouse=True)
def clean_surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No setting of the developer's reaches a test: no NOTIFIER_ variable, an empty working directory."""
    for name in [name for name in os.environ if name.upper().startswith(PREFIX)]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="session")
def server_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the session's servers keep their data."""
    return tmp_path_factory.mktemp("servers")


def _start(starter: Callable[[], S]) -> S:
    try:
        return starter()
    except ExtraMissing as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="session")
def _state_valkey(server_directory: Path, nothing_left: None) -> Iterator[Valkey]:
    with _start(lambda: Valkey.start(server_directory / "state", aof=None)) as server:
        yield server


@pytest.fixture(scope="session")
def _limiter_valkey(server_directory: Path, nothing_left: None) -> Iterator[Valkey]:
    with _start(lambda: Valkey.start(server_directory / "limiter", aof=None)) as server:
        yield server


def _emptied(server: Valkey) -> Valkey:
    with contextlib.closing(Redis.from_url(server.url())) as client:
        client.flushall()
    return server


@pytest.fixture
def valkey(_state_valkey: Valkey) -> Valkey:
    """The state server, empty. Database 0 is for state, 1 for the broker. Neither kill nor freeze it."""
    return _emptied(_state_valkey)


@pytest.fixture
def limiter_valkey(_limiter_valkey: Valkey) -> Valkey:
    """The limiter's server, empty. Neither kill nor freeze it."""
    return _emptied(_limiter_valkey)


@pytest.fixture(scope="session")
def _postgres(server_directory: Path, nothing_left: None) -> Iterator[Postgres]:
    server = _start(lambda: Postgres.start(server_directory / "postgres", durable=False))
    try:
        migrate(for_sqlalchemy(server.url()))
        yield server
    finally:
        server.remove()


def for_sqlalchemy(url: str) -> str:
    """With the driver named, as Settings gives it: a bare postgresql:// means another one to SQLAlchemy."""
    return url.replace("postgresql://", "postgresql+psycopg2://", 1)


@pytest.fixture
def postgres_url(_postgres: Postgres) -> str:
    """A migrated database without rows, as postgresql+psycopg2://. Neither kill nor freeze its server."""
    _truncate(_postgres.url())
    return for_sqlalchemy(_postgres.url())


def _truncate(database_url: str) -> None:
    with contextlib.closing(psycopg2.connect(database_url)) as connection, connection, connection.cursor() as cursor:
        cursor.execute("SET lock_timeout = '10s'")
        cursor.execute(
            "SELECT string_agg(format('%I', tablename), ', ') FROM pg_tables"
            " WHERE schemaname = 'public' AND tablename NOT LIKE '%alembic_version'"
        )
        (tables,) = cursor.fetchone() or (None,)
        if tables:
            cursor.execute(f"TRUNCATE {tables} RESTART IDENTITY CASCADE")


@pytest.fixture
def new_database_url(_postgres: Postgres) -> Iterator[str]:
    """A database of its own, empty and not migrated."""
    name = f"test_{secrets.token_hex(6)}"
    _administer(_postgres, f"CREATE DATABASE {name}")
    yield for_sqlalchemy(_postgres.url(name))
    _administer(_postgres, f"DROP DATABASE {name} WITH (FORCE)")


def _administer(server: Postgres, statement: str) -> None:
    connection = psycopg2.connect(server.url())
    connection.autocommit = True
    with contextlib.closing(connection), connection.cursor() as cursor:
        cursor.execute(statement)


@pytest.fixture
def settings(valkey: Valkey, limiter_valkey: Valkey, postgres_url: str, tmp_path: Path) -> Settings:
    """Settings that point at the session's servers."""
    return make_settings(valkey, limiter_valkey, postgres_url, tmp_path)


def make_settings(state: Valkey, limiter: Valkey, database_url: str, data_dir: Path, **others: Any) -> Settings:
    """Settings for the given servers; `others` win."""
    values: dict[str, Any] = {
        "broker_url": state.url(1),
        "redis_url": state.url(0),
        "limiter_redis_url": limiter.url(0),
        "database_url": database_url,
        "secret": "a secret of the tests, 32 characters",
        "data_dir": data_dir,
    }
    return Settings(**(values | others))


@pytest.fixture
def fresh_valkey(tmp_path: Path, nothing_left: None) -> Iterator[Callable[..., Valkey]]:
    """A factory of servers of the test's own, to kill, freeze and restart: `fresh_valkey(aof="always")`."""
    with contextlib.ExitStack() as stack:

        def start(**options: Any) -> Valkey:
            directory = tmp_path / f"valkey-{secrets.token_hex(4)}"
            return stack.enter_context(_start(lambda: Valkey.start(directory, **options)))

        yield start


@pytest.fixture
def fresh_postgres(tmp_path: Path, nothing_left: None) -> Iterator[Callable[..., Postgres]]:
    """A factory of migrated servers of the test's own, to kill, freeze and restart: `fresh_postgres()`.

    `migrated=False` leaves the database empty.
    """
    with contextlib.ExitStack() as stack:

        def start(*, migrated: bool = True, **options: Any) -> Postgres:
            directory = tmp_path / f"postgres-{secrets.token_hex(4)}"
            server = _start(lambda: Postgres.start(directory, **({"durable": False} | options)))
            stack.callback(server.remove)
            if migrated:
                migrate(for_sqlalchemy(server.url()))
            return server

        yield start


@pytest.fixture(scope="session")
def _rabbitmq(server_directory: Path, nothing_left: None) -> Iterator[RabbitMQ]:
    if problem := missing():
        pytest.skip(problem)
    with RabbitMQ.start(server_directory / "rabbitmq") as server:
        yield server


@pytest.fixture
def rabbitmq_url(_rabbitmq: RabbitMQ) -> str:
    """A RabbitMQ without the project's queues. Neither kill nor freeze its server."""
    with Connection(_rabbitmq.url()) as connection:
        for queue in QUEUES:
            connection.default_channel.queue_delete(queue)
    return _rabbitmq.url()


@pytest.fixture
def fresh_rabbitmq(tmp_path: Path, nothing_left: None) -> Iterator[Callable[..., RabbitMQ]]:
    """A factory of servers of the test's own, to kill, freeze and restart (seconds each): `fresh_rabbitmq()`."""
    if problem := missing():
        pytest.skip(problem)
    with contextlib.ExitStack() as stack:

        def start(**options: Any) -> RabbitMQ:
            directory = tmp_path / f"rabbitmq-{secrets.token_hex(4)}"
            return stack.enter_context(RabbitMQ.start(directory, **options))

        yield start
