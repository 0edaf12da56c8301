"""State Redis, the limiter's Redis, and a broker that is a Redis or Valkey."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from typing import Any, NamedTuple

from redis import Redis
from redis.exceptions import RedisError

from notifier.doctor.finding import Finding, ok, problem, warning
from notifier.redis.breaker import kind_of
from notifier.redis.client import connect, place
from notifier.settings import FIELD_OF, variable
from notifier.survey import AWAY

TIMEOUT_S = 1.0
OLDEST = (7, 0)  # scripts with a `#!lua flags=` line
NEARLY_FULL = 0.9
ASKS_NOTHING = "#!lua flags=no-writes\nreturn 1"


class Role(NamedTuple):
    """What a server is for."""

    name: str  # begins the names of its findings
    keeps: str  # what is lost if it forgets; "" where that is survivable
    evicts: str  # what is lost if it throws keys away
    clusters: bool = False  # whether it may be a Redis Cluster

    @property
    def variable(self) -> str:
        """What names it."""
        return variable(FIELD_OF[self.name])

    @property
    def away(self) -> str:
        """What it means that it is away."""
        return AWAY[self.name]


STATE = Role(
    "state",
    "a restart loses the ledger, and with it the guarantee that nothing is lost",
    "a full server throws away ledger entries and feeds: notifications are lost without a word",
)
LIMITER = Role(
    "limiter",
    "",
    "a full server throws away buckets: those users begin with a full burst again",
    clusters=True,
)
BROKER = Role(
    "broker",
    "a restart loses what is queued; the sweep publishes it again from the ledger, later than it could be",
    "a full server throws away queues; your own app's tasks in them are lost",
)


def server(role: Role, url: str) -> Iterator[Finding]:
    """All about one server."""
    with closing(connect(url, TIMEOUT_S)) as client:
        try:
            client.ping()  # connects
            began_s = time.monotonic()
            client.ping()
            took_ms = (time.monotonic() - began_s) * 1000
            info: Mapping[str, Any] = client.info()
        except (RedisError, OSError) as error:
            yield _away(role, client, error)
            return
        yield ok(f"{role.name}.reachable", f"{_name_of(info)} at {_place(client)} answers in {took_ms:.1f} ms")
        yield from version(role, info)
        yield from topology(role, info)
        yield from memory(role, info)
        if role.keeps:
            yield from persistence(role, info, _fsync(client))
        if role is not BROKER:
            yield from scripts(role, client)


def _away(role: Role, client: Redis, error: Exception) -> Finding:
    kind = kind_of(error)
    mend = {
        "authentication": f"check user and password in {role.variable}, and that they may run INFO and scripts",
        "loading": "wait until it has read its data",
    }.get(kind, f"start the server, or set {role.variable}")
    return problem(f"{role.name}.reachable", f"{_place(client)}: {kind}", role.away, mend)


def _place(client: Redis) -> str:
    return place(client.connection_pool.connection_kwargs)


def _name_of(info: Mapping[str, Any]) -> str:
    return f"Valkey {info['valkey_version']}" if "valkey_version" in info else f"Redis {info.get('redis_version', '?')}"


def version(role: Role, info: Mapping[str, Any]) -> Iterator[Finding]:
    """Redis 7 or newer; every Valkey is."""
    said = str(info.get("redis_version", "0"))
    if tuple(int(part) for part in said.split(".")[:2] if part.isdigit()) < OLDEST:
        why = "our scripts need Redis 7: nothing is accepted, limited or delivered with an older one"
        yield problem(f"{role.name}.version", f"{_name_of(info)} is too old", why, "Redis 7.0 or newer, or Valkey")


def topology(role: Role, info: Mapping[str, Any]) -> Iterator[Finding]:
    """A primary; no cluster, but for the limiter."""
    if info.get("role") == "slave":
        yield problem(
            f"{role.name}.primary",
            "this is a replica: it refuses writes",
            role.away,
            f"let {role.variable} name the primary",
        )
    if info.get("cluster_enabled") and not role.clusters:
        why = "scripts and queues here touch keys of many slots, which a cluster refuses"
        mend = "name a server that is no cluster; only the limiter may live in one"
        yield problem(f"{role.name}.cluster", "this is a node of a Redis Cluster", why, mend)


def memory(role: Role, info: Mapping[str, Any]) -> Iterator[Finding]:
    """noeviction, and room."""
    policy = str(info.get("maxmemory_policy", "noeviction"))
    if policy == "noeviction":
        yield ok(f"{role.name}.eviction", "noeviction: nothing is thrown away")
    else:
        found = warning if role is LIMITER else problem
        mend = "maxmemory-policy noeviction (CONFIG SET, and in the server's configuration)"
        yield found(f"{role.name}.eviction", f"maxmemory-policy is {policy}", role.evicts, mend)
    used, most = int(info.get("used_memory", 0)), int(info.get("maxmemory", 0))
    if most and used > NEARLY_FULL * most:
        yield warning(
            f"{role.name}.memory",
            f"{used / most:.0%} of maxmemory is used",
            "a full server accepts nothing new (what is in it can still be delivered)",
            "raise maxmemory; `notifier status` shows what waits, feeds are NOTIFIER_FEED_LENGTH entries a user",
        )


def persistence(role: Role, info: Mapping[str, Any], fsync: str) -> Iterator[Finding]:
    """An append-only file that is being written."""
    name = f"{role.name}.aof"
    mend = "appendonly yes, appendfsync everysec or always (CONFIG SET, and in the server's configuration)"
    if not info.get("aof_enabled", 1):
        found = problem if role is STATE else warning
        yield found(name, "no append-only file", role.keeps, mend)
    elif "err" in (info.get("aof_last_write_status"), info.get("aof_last_bgrewrite_status")):
        yield problem(name, "the append-only file cannot be written", role.keeps, "is the server's disk full?")
    elif fsync == "no":
        yield warning(
            name, "appendfsync is no", "a power cut loses what the system has not written: half a minute", mend
        )
    else:
        yield ok(name, f"append-only file{f', fsync {fsync}' if fsync else ''}")


def _fsync(client: Redis) -> str:
    """Empty where it may not be asked: managed servers often forbid CONFIG."""
    with suppress(RedisError):
        said: Any = client.config_get("appendfsync")
        value = next(iter(said.values()), "")
        return value.decode() if isinstance(value, bytes) else str(value)
    return ""


def scripts(role: Role, client: Redis) -> Iterator[Finding]:
    """Whether this server, and this user, runs a script of our kind. This one asks for nothing."""
    try:
        client.eval(ASKS_NOTHING, 0)
    except RedisError as error:
        why = "accept, limits and delivery are scripts"
        mend = "allow the user EVAL and EVALSHA (ACL: +@scripting); the server must be Redis 7 or Valkey"
        yield problem(f"{role.name}.scripts", f"scripts cannot be run: {kind_of(error)}", why, mend)
    else:
        yield ok(f"{role.name}.scripts", "scripts run")
