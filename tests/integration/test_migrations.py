"""Migrations: up, down, twice, four at once, under somebody else's locks, with any password."""

from __future__ import annotations

import threading
from urllib.parse import quote

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.engine import make_url

from notifier.deadletters import migrate
from notifier.deadletters.schema import metadata
from notifier.deadletters.store import Store
from notifier.errors import DatabaseUnavailable
from tests.deadletters import MakeBench


def engine_of(database_url: str) -> Engine:
    return create_engine(database_url)


def test_models_and_migrated_schema_are_the_same(postgres_url: str) -> None:
    engine = engine_of(postgres_url)
    with engine.connect() as connection:
        context = MigrationContext.configure(
            connection,
            opts={
                "version_table": migrate.VERSION_TABLE,
                "compare_type": True,
                "compare_server_default": True,
                "include_name": lambda name, kind, _parents: kind != "table" or name in metadata.tables,
            },
        )
        assert compare_metadata(context, metadata) == []
        definitions = "SELECT indexname, indexdef FROM pg_indexes WHERE tablename = 'dead_letters' ORDER BY 1"
        migrated = connection.execute(text(definitions)).all()
    with engine.begin() as connection:  # what autogenerate does not compare: conditions and collations
        connection.execute(text("CREATE SCHEMA scratch"))
        connection.execute(text("SET LOCAL search_path = scratch"))
        metadata.create_all(connection)
        modelled = connection.execute(text(definitions + ", schemaname")).all()
        columns = connection.execute(
            text(
                "SELECT column_name, data_type, is_nullable, column_default, collation_name, count(*) AS number "
                "FROM information_schema.columns WHERE table_name = 'dead_letters' GROUP BY 1, 2, 3, 4, 5"
            )
        ).all()
        connection.rollback()
    assert sorted(
        row.indexdef.replace("scratch.", "public.") for row in modelled if "scratch" in row.indexdef
    ) == sorted(row.indexdef for row in migrated)
    assert {row.number for row in columns} == {2}
    engine.dispose()


def test_up_down_and_up_again_with_rows(make_bench: MakeBench, new_database_url: str) -> None:
    assert migrate.upgrade(new_database_url) == ("", migrate.head())
    assert migrate.upgrade(new_database_url) == (migrate.head(), migrate.head())
    bench = make_bench(user_limit="off", database_url=new_database_url)
    bench.deny("anna", 3, wait_s=60)
    bench.replay.spill()
    assert migrate.upgrade(new_database_url).after == migrate.head()
    assert bench.store.counts().waiting == 3
    assert migrate.downgrade(new_database_url, "base") == (migrate.head(), "")
    with pytest.raises(DatabaseUnavailable, match="notifier migrate"):
        bench.store.counts()
    migrate.upgrade(new_database_url)
    assert bench.store.counts() == (0, 0)


def test_four_upgrades_at_once(new_database_url: str) -> None:
    moved: list[migrate.Moved] = []
    threads = [threading.Thread(target=lambda: moved.append(migrate.upgrade(new_database_url))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(moved) == [("", migrate.head())] + [(migrate.head(), migrate.head())] * 3


def test_an_upgrade_does_not_wait_for_ever_behind_a_lock(
    new_database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("notifier.deadletters.migrate.LOCK_TIMEOUT", "200ms")
    migrate.upgrade(new_database_url)
    engine = engine_of(new_database_url)
    with engine.begin() as connection:
        connection.execute(text("SELECT count(*) FROM dead_letters"))
        with pytest.raises(DatabaseUnavailable, match="55P03"):
            migrate.downgrade(new_database_url, "base")
    assert migrate.current(new_database_url) == migrate.head()
    engine.dispose()


def test_an_unknown_revision_is_refused(new_database_url: str) -> None:
    with pytest.raises(DatabaseUnavailable, match="9999"):
        migrate.upgrade(new_database_url, "9999")
    assert migrate.current(new_database_url) == ""


@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "postgresql+psycopg2"])
def test_any_password_and_any_spelling(new_database_url: str, scheme: str) -> None:
    password = "a%b@c/#?:s%(x)s"
    url = make_url(new_database_url)
    engine = engine_of(new_database_url)
    change = text("ALTER ROLE CURRENT_USER PASSWORD :password")
    with engine.begin() as connection:
        connection.execute(change, {"password": password})
    try:
        odd = f"{scheme}://{url.username}:{quote(password, safe='')}@{url.host}:{url.port}/{url.database}"
        assert migrate.upgrade(odd).after == migrate.head()
        store = Store(odd)
        assert store.counts() == (0, 0)
        store.close()
    finally:
        with engine.begin() as connection:
            connection.execute(change, {"password": url.password})
        engine.dispose()


def test_errors_hold_no_password() -> None:
    for url in (
        "postgresql://user:s3cret@127.0.0.1:1/nothing",
        "postgresql://user:p@s3cret@nowhere.invalid/nothing",
    ):
        with pytest.raises(DatabaseUnavailable) as caught:
            migrate.upgrade(url)
        assert "s3cret" not in str(caught.value)
        assert caught.value.__cause__ is None
