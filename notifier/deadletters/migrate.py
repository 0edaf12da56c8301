"""Brings the schema up to date, or back. Any number of upgrades may run at once: one works, the others wait."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import Connection, NullPool, create_engine, make_url, text
from sqlalchemy.exc import DBAPIError

from notifier import resources
from notifier.deadletters.problems import unavailable
from notifier.errors import DatabaseUnavailable

VERSION_TABLE = "notifier_alembic_version"
STATEMENT_TIMEOUT, LOCK_TIMEOUT = "120s", "5s"
_LOCK_ID = 0x6E6F7469666965  # "notifie"
_SET = "SELECT set_config(:name, :value, true)"


class Moved(NamedTuple):
    """Revisions before and after; "" is an empty database."""

    before: str
    after: str


def upgrade(database_url: str, revision: str = "head") -> Moved:
    """Run the migrations up to `revision` in one transaction. Raises DatabaseUnavailable."""
    return _move(database_url, command.upgrade, revision)


def downgrade(database_url: str, revision: str) -> Moved:
    """Go back to `revision`; "base" drops the table and all dead letters in it. Raises DatabaseUnavailable."""
    return _move(database_url, command.downgrade, revision)


def current(database_url: str) -> str:
    """The revision the database is at; "" is none."""
    with connected(database_url) as connection:
        return _revision(connection)


def head() -> str:
    """The revision this code wants."""
    return ScriptDirectory(str(resources.migrations())).get_current_head() or ""


def _move(database_url: str, step: object, revision: str) -> Moved:
    config = Config()
    config.set_main_option("script_location", str(resources.migrations()).replace("%", "%%"))
    with connected(database_url) as connection:
        # Within the transaction, not the session: so it works behind pgbouncer in transaction mode.
        connection.execute(text(_SET), {"name": "statement_timeout", "value": STATEMENT_TIMEOUT})
        connection.execute(text("SELECT pg_advisory_xact_lock(:id)"), {"id": _LOCK_ID})
        connection.execute(text(_SET), {"name": "lock_timeout", "value": LOCK_TIMEOUT})
        before = _revision(connection)
        config.attributes["connection"] = connection
        try:
            step(config, revision)  # type: ignore[operator]
        except CommandError as error:
            raise DatabaseUnavailable(
                f"cannot migrate to {revision!r}: {error}. A database that is newer than this code needs newer code"
            ) from None
        return Moved(before, _revision(connection))


def _revision(connection: Connection) -> str:
    context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE})
    return context.get_current_revision() or ""


@contextmanager
def connected(database_url: str, timeout_s: int = 5) -> Iterator[Connection]:
    """One transaction on a connection of its own. Raises DatabaseUnavailable."""
    url = make_url(database_url).set(drivername="postgresql+psycopg2")
    engine = create_engine(url, poolclass=NullPool, hide_parameters=True, connect_args={"connect_timeout": timeout_s})
    try:
        with engine.begin() as connection:
            yield connection
    except DBAPIError as error:
        raise unavailable(error) from None
    finally:
        engine.dispose()
