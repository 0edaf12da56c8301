"""Limits changed at run time: of a category (in one hash, read by every process) and of a user (in his bucket)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from notifier.errors import LimiterUnavailable, NotifierError
from notifier.limit import Limit
from notifier.limits.shared import Server
from notifier.notification import MAX_NAME, clean_text, clean_user_id
from notifier.redis import keys
from notifier.redis.breaker import kind_of
from notifier.redis.client import Command
from notifier.redis.routes import Routes
from notifier.redis.scripts import script
from notifier.settings import Settings

CONFIG_KEY = f"{keys.PREFIX}limits"
MAX_CATEGORIES = 1_000
DECADE_MS = 315_532_800_000  # every key has a TTL; this one is as good as none
TIMEOUT_S = 2.0


@dataclass(frozen=True, slots=True)
class Overrides:
    """What holds now. `version` grows with every change, also of a user's limit. `categories`: (channel, category)."""

    version: int = 0
    users: bool = False  # some user's limit was ever overridden
    categories: dict[tuple[str, str], Limit] = field(default_factory=dict)


def load(server: Server) -> Overrides:
    """Read all but the users' own. One round trip. Raises redis-py's errors."""
    (reply,) = server.call([("HGETALL", CONFIG_KEY)])
    if isinstance(reply, Exception):
        raise reply
    found = dict(zip(reply[::2], reply[1::2], strict=True))
    categories = {}
    for name, value in found.items():
        if name.startswith(b"category:"):
            length, _, rest = name.removeprefix(b"category:").decode().partition(":")
            categories[rest[: int(length)], rest[int(length) + 1 :]] = _limit(value)
    return Overrides(int(found.get(b"version", 0)), b"users" in found, categories)


def _limit(value: bytes) -> Limit:
    emission_us, burst = (int(number) for number in value.split()[-2:])
    return Limit(emission_us, burst)


def _bucket(user_id: str, channel: str) -> str:
    return keys.user_key("bucket", clean_user_id(user_id), clean_text("channel", channel, MAX_NAME))


class Editor:
    """Reads and writes overrides. All processes act on a change within a second.

    Every method raises LimiterUnavailable if the limiter's Redis cannot be asked; one that is given a user, a channel
    or a category raises InvalidNotification for what is none.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._routes = Routes(settings.limiter_url, TIMEOUT_S)
        self._discovered = False

    def user(self, user_id: str, channel: str) -> Limit | None:
        """The user's override on a channel, if there is one."""
        (value,) = self._call([("GET", _bucket(user_id, channel))])
        return _limit(value) if value is not None and b" " in value else None

    def set_user(self, user_id: str, channel: str, limit: Limit | None) -> None:
        """Override the user's limit, or with None go back to the settings'.

        What he has used stays used; a debt is forgiven.
        """
        key = _bucket(user_id, channel)
        default = self._settings.user_limit_of(channel)
        new = limit or default
        numbers = (new.emission_us, new.burst, default.emission_us, int(limit is not None))
        self._call([("EVAL", script("limit_override").text, 1, key, *numbers)])
        self._change(("HSET", CONFIG_KEY, "users", 1))

    def categories(self) -> dict[tuple[str, str], Limit]:
        """All overrides of categories, by (channel, category)."""
        self._call([])
        return load(self._routes).categories

    def set_category(self, category: str, channel: str, limit: Limit | None) -> None:
        """Give a category a limit and buckets of its own, or with None let it share the users' ordinary ones."""
        clean_text("channel", channel, MAX_NAME)
        clean_text("category", category, MAX_NAME)
        name = f"category:{len(channel)}:{channel}:{category}"
        if limit is None:
            self._change(("HDEL", CONFIG_KEY, name))
            return
        if (channel, category) not in (known := self.categories()) and len(known) >= MAX_CATEGORIES:
            raise NotifierError(f"{MAX_CATEGORIES} categories have limits of their own already; unset one first")
        self._change(("HSET", CONFIG_KEY, name, f"{limit.emission_us} {limit.burst}"))

    def _change(self, command: Command) -> None:
        self._call([command, ("HINCRBY", CONFIG_KEY, "version", 1), ("PEXPIRE", CONFIG_KEY, DECADE_MS)])

    def _call(self, commands: list[Command]) -> list[Any]:
        try:
            if not self._discovered:
                self._routes.discover()
                self._discovered = True
            replies = self._routes.call(commands) if commands else []
            for reply in replies:
                if isinstance(reply, Exception):
                    raise reply
        except Exception as error:
            raise LimiterUnavailable(f"the limiter's Redis (NOTIFIER_LIMITER_REDIS_URL): {kind_of(error)}") from None
        return replies

    def close(self) -> None:
        """Close the connections."""
        self._routes.close()
