"""The PostgreSQL that `up`, the demo and the tests start."""

from __future__ import annotations

import contextlib
import os
import pwd
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import psycopg2
import pytest

from notifier.embedded.postgres import Postgres
from tests.support import eventually

Factory = Callable[..., Postgres]


def run(url: str, *statements: str) -> list[tuple[object, ...]]:
    """Commit the statements; the rows of the last."""
    with contextlib.closing(psycopg2.connect(url, connect_timeout=2)) as connection, connection:
        cursor = connection.cursor()
        for statement in statements:
            cursor.execute(statement)
        return cursor.fetchall() if cursor.description else []


def modes(path: Path) -> dict[Path, tuple[int, int, int]]:
    """Mode and owner of a directory and of all its parents."""
    found = ((place, place.stat()) for place in (path, *path.parents))
    return {place: (stat.S_IMODE(at.st_mode), at.st_uid, at.st_gid) for place, at in found}


def test_it_asks_for_a_password_and_shows_it_nowhere(fresh_postgres: Factory) -> None:
    server = fresh_postgres()
    with pytest.raises(psycopg2.OperationalError, match="password"):
        psycopg2.connect(server.url().replace(server.password, "wrong"))
    with pytest.raises(psycopg2.OperationalError, match="no password"):
        psycopg2.connect(server.url().replace(f":{server.password}", ""))
    assert server.password not in " ".join(psutil.Process(server.pid).cmdline())
    assert server.password not in server.log.read_text()
    assert stat.S_IMODE((server.home / "password").stat().st_mode) == 0o600
    assert stat.S_IMODE(server.data.stat().st_mode) == 0o700


def test_the_application_is_no_superuser_and_the_superuser_cannot_come_in(fresh_postgres: Factory) -> None:
    server = fresh_postgres()
    assert run(server.url(), "SELECT rolsuper FROM pg_roles WHERE rolname = current_user") == [(False,)]
    with pytest.raises(psycopg2.OperationalError, match=r"no pg_hba\.conf entry"):
        psycopg2.connect(server.url().replace("notifier:", "postgres:", 1))


def test_what_was_committed_survives_kill_9_on_the_same_port(fresh_postgres: Factory) -> None:
    server = fresh_postgres(durable=True)
    url = server.url()
    run(url, "CREATE TABLE t (n int)", "INSERT INTO t VALUES (1)")
    server.kill()
    assert not server.running
    server.restart()
    assert server.url() == url
    assert run(url, "SELECT n FROM t") == [(1,)]


def test_data_and_password_are_kept_between_two_runs(tmp_path: Path) -> None:
    data_dir = tmp_path / "a \"directory\" of 'mine' \\ #1"
    server = Postgres.start(data_dir)
    try:
        run(server.url(), "CREATE TABLE t (n int)")
        server.stop()
        again = Postgres.start(data_dir)
        assert again.password == server.password
        assert run(again.url(), "SELECT n FROM t") == []
        again.stop()
    finally:
        server.remove()
    assert not data_dir.exists()


@pytest.mark.slow
def test_a_frozen_one_answers_nothing_until_it_is_thawed_and_can_be_stopped(fresh_postgres: Factory) -> None:
    server = fresh_postgres()
    server.freeze()
    with pytest.raises(psycopg2.OperationalError):
        psycopg2.connect(server.url(), connect_timeout=2)
    server.thaw()
    assert eventually(lambda: run(server.url(), "SELECT 1"))
    server.freeze()
    server.stop()
    assert not server.running


@pytest.mark.slow
def test_scratch_data_of_a_process_that_was_killed_is_removed_by_the_next(tmp_path: Path) -> None:
    home = tmp_path / "killed"
    killed = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import pathlib, time\n"
            "from notifier.embedded.postgres import Postgres\n"
            f"server = Postgres.start(pathlib.Path({str(home)!r}), durable=False)\n"
            "print('up', flush=True)\n"
            "time.sleep(600)\n",
        ],
        stdout=subprocess.PIPE,
    )
    assert killed.stdout
    assert killed.stdout.readline() == b"up\n"
    data = (home / "data").resolve()
    server = Postgres.start(tmp_path / "first", durable=False)
    server.remove()
    assert (data / "PG_VERSION").exists()
    killed.kill()
    killed.communicate()
    server = Postgres.start(tmp_path / "second", durable=False)
    server.remove()
    assert not data.exists() or data.is_relative_to(tmp_path)  # below the directory of the test it goes with that


def test_no_permission_of_a_directory_that_exists_is_changed(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    before = modes(closed)
    server = Postgres.start(closed / "pg")
    try:
        assert run(server.url(), "SELECT 1") == [(1,)]
        assert modes(closed) == before
    finally:
        server.remove()


def test_it_never_runs_as_root_and_cannot_change_its_own_programs(fresh_postgres: Factory) -> None:
    server = fresh_postgres()
    process = psutil.Process(server.pid)
    assert 0 not in process.uids()
    assert 0 not in process.gids()
    assert server.data.stat().st_uid == process.uids().real
    if os.geteuid() == 0:
        account = pwd.getpwnam("celery-notifier")
        assert set(process.uids()) == {account.pw_uid}
        assert account.pw_shell.endswith("nologin")
        program = Path(process.exe())
        assert program.stat().st_uid == 0
        assert not program.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH)
