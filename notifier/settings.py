"""Settings: from the environment, then `.env`, then what a running `notifier up` wrote.

Every name is `NOTIFIER_` and the field in capitals. Limits may be set for one channel: `NOTIFIER_USER_LIMIT__WEBHOOK`.
"""

from __future__ import annotations

import base64
import difflib
import os
import re
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from dotenv import dotenv_values
from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from notifier.errors import SettingsError
from notifier.limit import Limit

PREFIX = "NOTIFIER_"
RUN_ENV = Path(".notifier") / "run.env"
PER_CHANNEL = ("user_limit", "channel_limit", "user_quota")
FIELD_OF = {"broker": "broker_url", "state": "redis_url", "limiter": "limiter_redis_url", "database": "database_url"}
MASK = "***"
SHORTEST_SECRET = 32  # characters; HS256 asks for 256 bits
MAKE_A_SECRET = "python -c 'import secrets; print(secrets.token_urlsafe(48))'"  # noqa: S105  a command
_PASSWORD = re.compile(r"(://[^:@/?]*):.*@")
_PASSWORD_PARAMETER = re.compile(r"([?&][^=&]*(?:password|passwd|secret|token)[^=&]*)=[^&]*", re.IGNORECASE)


def _limit(value: Any) -> Any:
    return Limit.parse(value) if isinstance(value, str) else value


def _local_bucket(limit: Limit) -> Limit:
    if limit.blocks:
        raise ValueError("write 'off' to go without local buckets")
    return limit


def _redis_url(value: str) -> str:
    if not value.startswith(("redis://", "rediss://", "unix://")):
        raise ValueError("must begin with redis://, rediss:// or unix://")
    _parsed(value)
    from redis import ConnectionPool, RedisError

    try:
        ConnectionPool.from_url(value).make_connection()  # opens nothing, and knows the options
    except (RedisError, ValueError, TypeError):
        raise ValueError("has an option, after the ?, that redis-py does not take") from None
    return value


def _broker_url(value: str) -> str:
    if not value.startswith(("redis://", "rediss://", "amqp://", "amqps://", "pyamqp://", "memory://")):
        raise ValueError("must begin with redis://, rediss://, amqp:// or amqps://")
    return _parsed(value)


def _parsed(value: str) -> str:
    try:
        parts = urlsplit(value)
        if parts.port is not None and "@" in parts.path:  # a slash in the password: what looks like a port is of it
            raise ValueError
        make_url(value)
    except (ArgumentError, ValueError):
        raise ValueError(
            "is not a URL; percent-encode special characters in the password (urllib.parse.quote)"
        ) from None
    return value


def _database_url(value: str) -> str:
    """`postgres://` and `postgresql://` end at psycopg2, whatever SQLAlchemy's default driver is."""
    for scheme in ("postgres://", "postgresql://", "postgresql+psycopg2://"):
        if value.startswith(scheme):
            return _parsed("postgresql+psycopg2://" + value.removeprefix(scheme))
    raise ValueError("must begin with postgresql:// (driver: psycopg2)")


Network = IPv4Network | IPv6Network


def networks(value: str) -> list[Network]:
    """Networks as text, separated by commas or spaces. Raises ValueError."""
    try:
        return [ip_network(text) for text in value.replace(",", " ").split()]
    except ValueError:
        raise ValueError("must be networks such as 10.0.0.0/8, separated by commas, no host bits set") from None


def signing_keys(value: str) -> list[bytes]:
    """Webhook secrets as text, separated by commas or spaces, as keys. Raises ValueError, which shows none."""
    keys = []
    for text in value.replace(",", " ").split():
        encoded = text.removeprefix("whsec_")
        try:
            keys.append(base64.b64decode(encoded + "=" * (-len(encoded) % 4), validate=True))
        except ValueError:
            keys.append(b"")
        if encoded == text or not 24 <= len(keys[-1]) <= 64:
            raise ValueError("must be whsec_ and 24 to 64 bytes as base64; several are separated by commas")
    return keys


def _checked_by(parse: Callable[[str], object]) -> AfterValidator:
    def check(value: Any) -> Any:
        parse(value.get_secret_value() if isinstance(value, SecretStr) else value)
        return value

    return AfterValidator(check)


LimitText = Annotated[Limit, BeforeValidator(_limit)]
RedisUrl = Annotated[str, AfterValidator(_redis_url)]
Seconds = Annotated[float, Field(gt=0, le=315_532_800, allow_inf_nan=False)]


class _Source(PydanticBaseSettingsSource):
    """The environment over `.env` over `.notifier/run.env`, one flat namespace."""

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        raise NotImplementedError  # __call__ gives all at once

    def __call__(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        per_channel: dict[str, dict[str, Any]] = {}
        for name, value in raw_values().items():
            field, _, channel = name.removeprefix(PREFIX).lower().partition("__")
            if channel and field in PER_CHANNEL:
                per_channel.setdefault(channel, {})[field] = value
            elif field in self.settings_cls.model_fields and field != "per_channel":
                found[field] = value
        return found | {"per_channel": per_channel}


def places() -> list[tuple[str, Mapping[str, str | None]]]:
    """Where settings are read from, by name; the first place that names one wins."""
    return [("environment", os.environ), (".env", _read(Path(".env"))), (str(RUN_ENV), _read(RUN_ENV))]


def _read(path: Path) -> Mapping[str, str | None]:
    try:
        return dotenv_values(path)
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}: cannot be read ({type(error).__name__}); it must be UTF-8 text") from None


def raw_values() -> dict[str, str]:
    """All NOTIFIER_ variables as text."""
    merged: dict[str, str | None] = {}
    for _, values in reversed(places()):
        merged |= values
    return {
        name.upper(): value for name, value in merged.items() if name.upper().startswith(PREFIX) and value is not None
    }


def variable(field: str) -> str:
    """The variable that sets a field."""
    return f"{PREFIX}{field}".upper()


def unknown(names: Iterable[str]) -> dict[str, str]:
    """Those of the NOTIFIER_ variables that nothing reads, most likely misspelt, with what may be meant, or ""."""
    known = [variable(field) for field in Settings.model_fields if field != "per_channel"]
    limits = [variable(field) for field in PER_CHANNEL]
    found = {}
    for name in sorted(names):
        general, _, channel = name.partition("__")
        if general not in (limits if channel else known):
            found[name] = next(iter(difflib.get_close_matches(name, known, n=1)), "")
    return found


def mask_url(text: str) -> str:
    """The text, with passwords of URLs in it replaced by ***."""
    return _PASSWORD_PARAMETER.sub(rf"\1={MASK}", _PASSWORD.sub(rf"\1:{MASK}@", text))


class Settings(BaseSettings):
    """All settings. Raises SettingsError, by name and without showing a secret, when one is bad."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="forbid")

    broker_url: Annotated[str, AfterValidator(_broker_url)] = Field(
        "redis://localhost:6379/0", repr=False, description="Celery's broker: Redis/Valkey or RabbitMQ."
    )
    redis_url: RedisUrl = Field(
        "redis://localhost:6379/1", repr=False, description="State: ledger, feeds. AOF on, noeviction."
    )
    limiter_redis_url: RedisUrl | None = Field(
        None, repr=False, description="The limiter's own Redis; redis_url if not set."
    )
    database_url: Annotated[str, AfterValidator(_database_url)] = Field(
        "postgresql://localhost/notifier", validate_default=True, repr=False, description="PostgreSQL: dead letters."
    )
    user_limit: LimitText = Field(Limit.parse("2/s burst 10"), description="What one user gets on one channel.")
    channel_limit: LimitText = Field(Limit.parse("off"), description="What a channel carries, over all users.")
    user_quota: LimitText = Field(Limit.parse("off"), description="A user's quota in a sliding window, e.g. 50/day.")
    local_bucket: Annotated[LimitText, AfterValidator(_local_bucket)] = Field(
        Limit.parse("2/s burst 10"), description="The local bucket of each process: its micro-bursts; 'off' for none."
    )
    per_channel: dict[str, dict[str, LimitText]] = Field(
        default_factory=dict, description="From NOTIFIER_USER_LIMIT__WEBHOOK and the like."
    )
    overflow: Literal["defer", "drop"] = Field("defer", description="What becomes of a denied notification.")
    grace_seconds: Annotated[float, Field(ge=0, le=3_600)] = Field(
        30.0, description="How long local buckets go on while the limiter's Redis is down."
    )
    max_processes: Annotated[int, Field(ge=1, le=100_000)] = Field(
        256, description="Processes that may lend; bounds the debt one user's bucket remembers."
    )
    local_users: Annotated[int, Field(ge=16, le=10_000_000)] = Field(
        10_000, description="Users one process remembers (loans, denials)."
    )
    dedupe_window: Seconds = Field(3_600.0, description="How long an id chosen by the caller is remembered, seconds.")
    default_ttl: Seconds = Field(604_800.0, description="ttl of a notification that names none, seconds.")
    max_waiting: Annotated[int, Field(ge=1, le=10_000_000)] = Field(
        10_000, description="Denied notifications that may wait for one user and channel."
    )
    max_deferred: Annotated[int, Field(ge=1, le=10_000_000)] = Field(
        10_000, description="Deferred notifications that may wait in Redis, in each of 1,024 shards of the users."
    )
    parked_retention: Seconds = Field(2_592_000.0, description="How long a parked row waits for a person, seconds.")
    feed_length: Annotated[int, Field(ge=1, le=10_000)] = Field(50, description="Entries a feed keeps.")
    feed_seconds: Annotated[Seconds, Field(ge=1)] = Field(
        604_800.0, description="How long a feed lives after its last entry."
    )
    state_timeout: Seconds = Field(0.4, description="State Redis: seconds a producer waits for one call.")
    limiter_timeout: Seconds = Field(0.05, description="Limiter Redis: seconds one call may take.")
    secret: SecretStr | None = Field(
        None, description=f"Signs the gateway's tokens (HS256), at least {SHORTEST_SECRET} characters."
    )
    previous_secret: SecretStr | None = Field(None, description="Still verifies tokens while `secret` is replaced.")
    token_issuer: str = Field("", description="The `iss` that tokens must carry; empty: any, or none.")
    token_audience: str = Field("", description="The `aud` that tokens must carry; empty: any, or none.")
    gateway_host: str = Field("127.0.0.1", description="Address the gateway listens on.")
    gateway_port: Annotated[int, Field(ge=0, le=65_535)] = Field(8_000, description="Port the gateway listens on.")
    allowed_origins: str = Field("", description="Origins whose pages may connect, comma-separated; empty: same host.")
    webhook_secret: Annotated[SecretStr, _checked_by(signing_keys)] | None = Field(
        None, description="Signs webhooks: whsec_ and base64. While it is replaced: new and old, separated by a comma."
    )
    webhook_timeout: Annotated[float, Field(gt=0, le=5.5)] = Field(
        5.0, description="Seconds one webhook may take in all, from looking up its host to the answer."
    )
    webhook_allow_networks: Annotated[str, _checked_by(networks)] = Field(
        "", description="Networks that webhooks may go to although they are not public, e.g. 10.1.0.0/16."
    )
    apprise_services: str = Field(
        "", description="Services (URL schemes) that the channel apprise may use, comma-separated; empty: all."
    )
    preferences_seconds: Annotated[float, Field(ge=0, le=86_400)] = Field(
        30.0, description="How long a process remembers a user's preferences, seconds; 0: it always asks."
    )
    metrics_port: Annotated[int, Field(ge=0, le=65_535)] = Field(
        0, description="Port on which a worker serves /metrics; 0: none. The gateway serves them anyway."
    )
    metrics_host: str = Field("127.0.0.1", description="Address for it.")
    live_page: bool = Field(False, description="Serve the live page at / (always on in `up` and `demo`).")
    log_format: Literal["text", "json"] = Field(
        "text", description="Logs of worker, beat, gateway and `up`: text, or one JSON object a line."
    )
    data_dir: Path = Field(Path(".notifier"), description="Where `notifier up` keeps its servers' data.")

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise SettingsError("\n".join(_problems(error))) from None

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, _Source(settings_cls)

    @cached_property
    def limiter_url(self) -> str:
        """Where the limiter's keys are."""
        return self.limiter_redis_url or self.redis_url

    @property
    def gateway_here(self) -> str:
        """The gateway's host and port, seen from this machine."""
        everywhere = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104
        host = everywhere.get(self.gateway_host, self.gateway_host).strip("[]")
        return f"{f'[{host}]' if ':' in host else host}:{self.gateway_port}"

    def user_limit_of(self, channel: str) -> Limit:
        """The user limit of a channel."""
        return self._of(channel, "user_limit", self.user_limit)

    def interval_us_of(self, channel: str) -> int:
        """Between two grants of a user on a channel, in microseconds; 0 without a limit."""
        return self.user_limit_of(channel).emission_us

    def channel_limit_of(self, channel: str) -> Limit:
        """The limit of a whole channel."""
        return self._of(channel, "channel_limit", self.channel_limit)

    def user_quota_of(self, channel: str) -> Limit:
        """The quota of a user on a channel."""
        return self._of(channel, "user_quota", self.user_quota)

    def _of(self, channel: str, name: str, default: Limit) -> Limit:
        return self.per_channel.get(channel.lower(), {}).get(name, default)


def _problems(error: ValidationError) -> list[str]:
    """One line a bad variable: its name, and what would do. Never the value: it may hold a password."""
    lines = []
    for problem in error.errors(include_input=False, include_url=False, include_context=False):
        field, *rest = (str(part) for part in problem["loc"])
        name = f"{rest[1]}__{rest[0]}" if field == "per_channel" and len(rest) > 1 else field
        lines.append(f"{variable(name)}: {problem['msg'].removeprefix('Value error, ')}")
    return lines
