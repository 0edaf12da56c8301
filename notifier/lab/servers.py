"""The servers of this machine: those that the settings name are used, the others are started here."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable
from pathlib import Path

import psutil

from notifier.embedded.postgres import Postgres
from notifier.embedded.server import Server
from notifier.embedded.valkey import Aof, Valkey
from notifier.errors import Unavailable
from notifier.settings import Settings

STATE_DB, BROKER_DB = 0, 1


class Servers:
    """State Redis (with the broker in a database of its own), the limiter's Redis and PostgreSQL.

    `urls` are the four NOTIFIER_..._URL settings. Start and tend them from one thread: they end with it.
    """

    def __init__(self) -> None:
        self.started: dict[str, Server] = {}
        self.urls: dict[str, str] = {}

    @property
    def postgres(self) -> Postgres | None:
        """Ours, if it was started."""
        server = self.started.get("postgres")
        return server if isinstance(server, Postgres) else None

    def start(
        self, settings: Settings, *, aof: Aof = "everysec", durable: bool = True, say: Callable[[str], None] = print
    ) -> None:
        """Start what `settings` does not name, on the data in its data_dir. Raises ExtraMissing or Unavailable."""
        named, home = settings.model_fields_set, settings.data_dir
        self.urls = {
            "NOTIFIER_BROKER_URL": settings.broker_url,
            "NOTIFIER_REDIS_URL": settings.redis_url,
            "NOTIFIER_LIMITER_REDIS_URL": settings.limiter_url,
            "NOTIFIER_DATABASE_URL": settings.database_url,
        }
        if not {"broker_url", "redis_url"} <= named:
            say("state and broker: Valkey")
            state = self._add("state", Valkey.start(home / "state", aof=aof))
            if "redis_url" not in named:
                self.urls["NOTIFIER_REDIS_URL"] = self.urls["NOTIFIER_LIMITER_REDIS_URL"] = state.url(STATE_DB)
            if "broker_url" not in named:
                self.urls["NOTIFIER_BROKER_URL"] = state.url(BROKER_DB)
        if not {"redis_url", "limiter_redis_url"} & named:
            # Apart from the state, so that its loss can be survived, and shown.
            say("limiter: Valkey")
            self.urls["NOTIFIER_LIMITER_REDIS_URL"] = self._add(
                "limiter", Valkey.start(home / "limiter", aof=aof)
            ).url()
        elif settings.limiter_redis_url:
            self.urls["NOTIFIER_LIMITER_REDIS_URL"] = settings.limiter_redis_url
        if "database_url" not in named:
            say("dead letters: PostgreSQL")
            database = Postgres.start(home / "postgres", durable=durable)
            self.started["postgres"] = database
            self.urls["NOTIFIER_DATABASE_URL"] = database.url()

    def _add(self, name: str, server: Valkey) -> Valkey:
        self.started[name] = server
        return server

    def tend(self, say: Callable[[str], None] = print) -> None:
        """Restart those of ours that died, on the same ports."""
        for name, server in self.started.items():
            if not server.running:
                say(f"{name} ({server.name}) has died and is started again; see {server.log}")
                with contextlib.suppress(Unavailable):  # the next round tries again
                    server.restart()

    def stop(self) -> None:
        """Stop those we started, the database first: its checkpoint takes longest."""
        for server in reversed(self.started.values()):
            server.stop()

    def remove(self) -> None:
        """Stop them, and delete PostgreSQL's data where it lies outside of data_dir."""
        if self.postgres:
            self.postgres.remove()
        self.stop()

    def places(self) -> list[Path]:
        """Where our data lies."""
        return [server.data if isinstance(server, Postgres) else server.home for server in self.started.values()]


def forget(data_dir: Path) -> list[Path]:
    """Delete what our servers of earlier runs stored there. Returns the places; what is not ours is left alone.

    Raises Unavailable where one of them still runs.
    """
    valkeys = [home for home in (data_dir / "state", data_dir / "limiter") if (home / "lock").exists()]
    for home in valkeys:
        Valkey.check_unused(home)
    gone = list(valkeys)
    home = data_dir / "postgres"
    data = (home / "data").resolve()  # as root it lies elsewhere
    if (home / "password").exists() and (data / "PG_VERSION").exists():
        if _postmaster_runs(data):
            raise Unavailable(f"{data} is in use by another PostgreSQL")
        gone += [home] if data.is_relative_to(home.resolve()) else [home, data]
    for place in gone:
        shutil.rmtree(place, ignore_errors=True)
    return gone


def _postmaster_runs(data: Path) -> bool:
    try:
        pid = int((data / "postmaster.pid").read_text().split("\n", 1)[0])
        return "postgres" in psutil.Process(pid).name()
    except (OSError, ValueError, psutil.NoSuchProcess):  # it may end while it is looked at
        return False
