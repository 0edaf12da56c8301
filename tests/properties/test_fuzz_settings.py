"""Whatever a setting says, it is refused by name and without its value, or works; no limit lets more through."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path

import click
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from sqlalchemy import select
from sqlalchemy.dialects import postgresql

from notifier.cli.dead_letters import Age, Moment
from notifier.deadletters.manage import Filter
from notifier.deadletters.schema import dead_letters, instant
from notifier.errors import SettingsError
from notifier.limit import MAX_DRAIN_US, MAX_EMISSION_US, MIN_EMISSION_US, Limit
from notifier.redis.broker import tls
from notifier.redis.client import connect
from notifier.settings import PER_CHANNEL, PREFIX, Settings, mask_url, places
from tests.properties.anything import CANARY, texts

PERIODS = {
    "s": 1,
    "sec": 1,
    "second": 1,
    "m": 60,
    "min": 60,
    "minute": 60,
    "h": 3_600,
    "hour": 3_600,
    "d": 86_400,
    "day": 86_400,
}
pieces = st.sampled_from(
    ["2", "0", "/", " ", "s", "min", "day", "burst", "10", "off", ".", "-", "+", "e5", "٣", "²", "\n"]
)
notations = st.lists(pieces, max_size=9).map("".join) | texts | st.text("0123456789/.smindaybrut off", max_size=30)


@given(notations)
@example("9" * 50_000)
@example("2/s burst " + "9" * 5_000)
def test_a_limit_is_refused_with_the_reason_or_within_bounds(text: str) -> None:
    try:
        limit = Limit.parse(text)
    except ValueError as error:
        assert len(str(error)) < 300
        return
    assert limit.off or limit.blocks or MIN_EMISSION_US <= limit.emission_us <= MAX_EMISSION_US
    assert 0 <= limit.tolerance_us <= MAX_DRAIN_US
    assert Limit.parse(str(limit)) == limit


@given(
    st.integers(0, 30_000) | st.decimals(0, 30_000, allow_nan=False, places=6),
    st.sampled_from(sorted(PERIODS)),
    st.none() | st.integers(0, 10**7),
)
def test_a_limit_never_lets_more_through_than_was_written(count: object, period: str, burst: int | None) -> None:
    written = f"{count}/{period}" + ("" if burst is None else f" burst {burst}")
    try:
        limit = Limit.parse(written)
    except ValueError:
        return
    exact = Fraction(str(count)) / PERIODS[period]
    assert Fraction(0 if limit.blocks else 10**6, limit.emission_us) <= exact
    assert limit.burst <= (max(1, math.floor(Fraction(str(count)))) if burst is None else burst)


def possible(text: str) -> str:
    """What an environment can hold."""
    return text.replace("\0", "").encode("utf-8", "replace").decode()


schemes = st.sampled_from([
    *("redis://", "rediss://", "unix://", "amqp://", "amqps://", "memory://", "postgres://", "postgresql://"),
    *("postgresql+psycopg2://", "postgresql+asyncpg://", "http://", "", "redis:"),
])  # fmt: skip
tails = st.lists(
    st.sampled_from([
        *("host", "user", ":", "@", "/", "?", "#", "0", "65536", "[::1]", "[", "]", "%zz", "%00", ",", "host:1,"),
        *("db=x", "socket_timeout=soon", "ssl_cert_reqs=maybe", "max_connections=many", "=", "&", "é"),
    ]),
    max_size=8,
).map("".join) | texts  # fmt: skip
urls = st.builds("{}user:{}@{}".format, schemes, st.just(CANARY), tails) | st.builds("{}{}".format, schemes, tails)
FIELDS = sorted(set(Settings.model_fields) - {"per_channel"})
values = texts | notations | st.integers().map(str) | st.floats().map(str)
secrets = st.builds("{}{}{}".format, st.sampled_from(["", "whsec_", "whsec_ "]), st.just(CANARY), texts)
SECRET = {"secret", "previous_secret", "webhook_secret"}
URLS = {"broker_url", "redis_url", "limiter_redis_url", "database_url"}
_values = {field: secrets if field in SECRET else urls if field in URLS else values for field in FIELDS}
environments = st.lists(st.sampled_from(FIELDS), min_size=1, max_size=3).flatmap(
    lambda fields: st.fixed_dictionaries({field: _values[field] for field in fields})
)


@given(environments)
@example({"redis_url": f"redis://:{CANARY}@host/0?socket_timeout=soon"})
@example({"redis_url": f"redis://:{CANARY}@host/0?ssl_cert_reqs=maybe"})
@example({"broker_url": f"redis://:{CANARY}@[host/0"})
def test_settings_are_refused_by_name_and_without_their_value(given_values: dict[str, str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for field, value in given_values.items():
            patch.setenv(f"{PREFIX}{field}".upper(), possible(value))
        try:
            settings = Settings()
        except SettingsError as error:
            assert error.__cause__ is None
            assert CANARY not in str(error)
            assert any(f"{PREFIX}{field}".upper() in str(error) for field in given_values)
            return
        assert CANARY not in repr(settings)
        for url in (settings.redis_url, settings.limiter_url):
            connect(url, 0.1).close()  # opens nothing, and knows every option
        tls(settings.broker_url)


@given(st.sampled_from(PER_CHANNEL), st.text("abcXYZ_09", min_size=1, max_size=20), notations)
def test_limits_of_one_channel_are_refused_by_name(field: str, channel: str, text: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        name = f"{PREFIX}{field}__{channel}".upper()
        patch.setenv(name, possible(text))
        try:
            settings = Settings()
        except SettingsError as error:
            assert name in str(error)
        else:
            assert settings.per_channel[channel.lower()][field] == Limit.parse(possible(text))


@given(
    st.binary(max_size=200)
    | st.lists(
        st.sampled_from([b"NOTIFIER_USER_LIMIT", b"=", b"2/s", b"'", b'"', b"${X}", b"\n", b"export ", b"\xff", b"\0"])
    ).map(b"".join)
)
def test_any_file_of_settings_is_read_or_refused(raw: bytes) -> None:
    Path(".env").write_bytes(raw)
    try:
        found = places()
        Settings()
    except SettingsError:
        return
    finally:
        Path(".env").unlink()
    assert found[1][0] == ".env"


@given(schemes, st.text("abc:@/?&=#%0", max_size=20), tails)
def test_no_password_of_a_url_is_shown(scheme: str, user: str, tail: str) -> None:
    if "://" in scheme and not set(user) & set(":@/?#&"):
        assert CANARY not in mask_url(f"{scheme}{user}:{CANARY}@host{tail}")
        assert CANARY not in mask_url(f"{scheme}host/0?password={CANARY}")


# Filters of `notifier dead-letters`

ages = st.builds("{}{}".format, st.integers(0, 10**10), st.sampled_from("smhdwx")) | texts
moments = (
    ages
    | st.datetimes(timezones=st.none() | st.timezones()).map(str)
    | st.sampled_from(["0001-01-01", "9999-12-31T23:59:59-23:00"])
)


@given(ages, moments)
@example("999999999w", "999999999w")
def test_ages_and_times_are_refused_or_fit_the_table(age: str, moment: str) -> None:
    now_us = int(datetime.now(UTC).timestamp() * 10**6)
    try:
        until_us = now_us - Age().convert(age, None, None)
        since_us = Moment().convert(moment, None, None)
    except click.BadParameter as error:
        assert len(str(error)) < 400
        return
    statement = select(dead_letters.c.user_id).where(*Filter(since_us=since_us, until_us=until_us).conditions())
    bound = statement.compile(dialect=postgresql.dialect()).params.values()
    assert len(bound) == 2
    for moment_us in bound:
        assert moment_us > 0  # 0 is NULL, which no row is older or younger than
        assert isinstance(instant(moment_us), datetime)


@given(st.sampled_from(["user_id", "notification_id", "channel", "category", "reason", "state"]), texts)
def test_no_filter_becomes_part_of_a_statement(field: str, value: str) -> None:
    def sql(text: str) -> str:
        where = replace(Filter(), **{field: text}).conditions()  # type: ignore[arg-type]
        return str(select(dead_letters.c.user_id).where(*where).compile(dialect=postgresql.dialect()))

    assert sql(value) == sql("ann")
