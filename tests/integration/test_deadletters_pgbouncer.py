"""Behind pgbouncer in transaction mode: a session setting would reach strangers, and a transaction's does not."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg2
import pytest
from sqlalchemy import text
from sqlalchemy.engine import make_url

from notifier.deadletters import migrate
from notifier.deadletters.store import Store
from tests.deadletters import MakeBench
from tests.support import eventually, free_port

CONFIG = """
[databases]
* = host={host} port={port}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {listen}
unix_socket_dir =
auth_type = trust
auth_file = {users}
pool_mode = transaction
default_pool_size = 2
logfile = {log}
"""


@pytest.fixture
def pooled_url(new_database_url: str) -> Iterator[str]:
    """The empty database behind a pooler with two connections for everybody."""
    program = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        pytest.skip("needs pgbouncer: apt-get install pgbouncer")
    url = make_url(new_database_url)
    listen = free_port()
    directory = Path(tempfile.mkdtemp(prefix="notifier-pgbouncer-"))
    users, log, config = directory / "users.txt", directory / "log", directory / "pgbouncer.ini"
    users.write_text(f'"{url.username}" "{url.password}"\n')
    config.write_text(CONFIG.format(host=url.host, port=url.port, listen=listen, users=users, log=log))
    as_user: dict[str, Any] = {}
    if os.geteuid() == 0:  # it refuses root
        nobody = pwd.getpwnam("nobody")
        for path in (directory, users, config):
            os.chown(path, nobody.pw_uid, nobody.pw_gid)
        as_user = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
    process = subprocess.Popen([program, "-q", str(config)], stderr=subprocess.DEVNULL, cwd="/", **as_user)
    pooled = url.set(host="127.0.0.1", port=listen, password=None).render_as_string(hide_password=False)

    def answers() -> bool:
        try:
            psycopg2.connect(pooled.replace("+psycopg2", "")).close()
        except psycopg2.OperationalError:
            return False
        return True

    try:
        eventually(answers)
        yield pooled
    finally:
        process.terminate()
        process.wait(10)
        shutil.rmtree(directory)


def test_migrate_spill_and_replay_through_a_pooler(pooled_url: str, make_bench: MakeBench) -> None:
    assert migrate.upgrade(pooled_url).after == migrate.head()
    bench = make_bench(user_limit="off", database_url=pooled_url)
    for user in ("anna", "bert"):
        bench.deny(user, 10)
    bench.replay.run()
    assert (len(bench.feed("anna")), len(bench.feed("bert"))) == (10, 10)
    assert bench.store.counts() == (0, 0)


def test_no_setting_of_ours_reaches_the_next_one(pooled_url: str) -> None:
    migrate.upgrade(pooled_url)
    store = Store(pooled_url)
    asked = text("SELECT current_setting('statement_timeout'), current_setting('enable_hashjoin')")
    assert store.run(lambda c: tuple(c.execute(asked).one())) == ("10s", "off")
    with psycopg2.connect(pooled_url.replace("+psycopg2", "")) as stranger, stranger.cursor() as cursor:
        for _ in range(4):
            cursor.execute(asked.text)
            assert cursor.fetchone() == ("0", "on")
            stranger.commit()
    stranger.close()
    store.close()
