"""What the live page shows beside the feeds: the books, grants by source, one user's bucket, which servers answer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from redis import Redis
from redis.exceptions import RedisError

from notifier import metrics_dir, runtime
from notifier.errors import NotifierError, Unavailable
from notifier.redis import keys
from notifier.redis.client import connect
from notifier.settings import Settings

LAB = f"{keys.PREFIX}lab"  # what may be stopped and started, as JSON; kept by whoever runs the servers
LAB_COMMANDS = f"{LAB}:commands"  # a list: {"do": "stop" | "start", "what": name}
TIMEOUT_S = 0.3
COMMANDS_TTL_S = 10
NUMBERS = ("accepted", "delivered", "digested", "expired", "dropped", "parked", "waiting", "in_flight", "replayed")


class Sampler:
    """Asks every server; one that is away is said to be, and costs at most its timeout. Used from one thread."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._limit = settings.user_limit_of("websocket")
        self._runtime = runtime.get(settings)
        self._limiter: Redis = connect(settings.limiter_url, TIMEOUT_S)

    def sample(self, user_ids: Sequence[str]) -> dict[str, Any]:
        """Everything, as the page gets it; the buckets of the users named."""
        found: dict[str, Any] = {
            "type": "sample",
            "grants": metrics_dir.grants(),
            "buckets": {},
            "servers": {},
            "lab": {},
        }
        servers = found["servers"]
        try:
            counts = self._runtime.ledger.counts()._asdict()
            found["counts"] = {name: counts.get(name, 0) for name in NUMBERS}
            found["lab"] = json.loads(self._runtime.client.get(LAB) or "{}")
            servers["state"] = True
        except (NotifierError, RedisError, OSError):
            servers["state"] = False
        try:
            found["rows"] = self._runtime.store.counts().waiting
            servers["postgres"] = True
        except Unavailable:
            servers["postgres"] = False
        try:
            found["buckets"] = {user_id: self._bucket(user_id) for user_id in user_ids}
            self._limiter.ping()
            servers["limiter"] = True
        except (RedisError, OSError):
            servers["limiter"] = False
        return found

    def command(self, do: str, what: str) -> None:
        """Ask whoever runs the servers to stop or start one."""
        client = self._runtime.client
        if client.exists(LAB):  # somebody reads them
            pipe = client.pipeline()
            pipe.rpush(LAB_COMMANDS, json.dumps({"do": do, "what": what}))
            pipe.expire(LAB_COMMANDS, COMMANDS_TTL_S)
            pipe.execute()

    def close(self) -> None:
        """Close its own connection; the rest is the process's."""
        self._limiter.close()

    def _bucket(self, user_id: str) -> dict[str, float]:
        """`tokens` (below 0: in debt) of `burst`, as the limiter's script would find them now."""
        emission_us, burst = self._limit.emission_us, self._limit.burst
        seconds, micros = self._limiter.time()
        value: Any = self._limiter.get(keys.user_key("bucket", user_id, "websocket"))
        numbers = [float(number) for number in (value or b"0").split()]
        if len(numbers) == 3:  # the user's limit was changed: it lies in the bucket
            emission_us, burst = int(numbers[1]), int(numbers[2])
        if not emission_us:
            return {"tokens": burst, "burst": burst}
        ahead_us = max(0.0, numbers[0] - seconds * 1_000_000 - micros)
        return {"tokens": round(burst - ahead_us / emission_us, 2), "burst": burst}
