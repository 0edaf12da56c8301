"""Lets the live page stop and start servers, so that one sees grace, deferral and recovery. Lab only."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from redis.exceptions import RedisError

from notifier.errors import Unavailable
from notifier.gateway.sample import LAB, LAB_COMMANDS
from notifier.redis.client import connect

FORGOTTEN_S = 5  # after which the page shows no buttons any more


class Switch(NamedTuple):
    """How one server or process is stopped and started, and whether it runs."""

    stop: Callable[[], object]
    start: Callable[[], object]
    running: Callable[[], bool]


class Controls:
    """Call tick() several times a second, from the thread that started the servers: they end with it."""

    def __init__(self, redis_url: str, switches: Mapping[str, Switch]) -> None:
        self._client = connect(redis_url, 1.0)
        self._switches = switches

    def tick(self) -> None:
        """Do what was asked, and say what runs. Nothing is raised: the page is a guest."""
        with suppress(RedisError, OSError):
            wanted: Any = self._client.lpop(LAB_COMMANDS, 10) or []
            for text in wanted:
                self._obey(json.loads(text))
            state = {name: switch.running() for name, switch in self._switches.items()}
            self._client.set(LAB, json.dumps(state), ex=FORGOTTEN_S)

    def _obey(self, command: dict[str, str]) -> None:
        switch = self._switches.get(command.get("what", ""))
        if switch is None:
            return
        with suppress(Unavailable):
            if command.get("do") == "stop" and switch.running():
                switch.stop()
            elif command.get("do") == "start" and not switch.running():
                switch.start()

    def close(self) -> None:
        """Forget it all."""
        with suppress(RedisError, OSError):
            self._client.delete(LAB, LAB_COMMANDS)
        self._client.close()
