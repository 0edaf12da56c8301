"""Settings: three places, one namespace, refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from notifier.errors import SettingsError
from notifier.limit import Limit
from notifier.settings import RUN_ENV, Settings

PASSWORD = "p%40s%2F%23canary"


@pytest.mark.parametrize("scheme", ["postgres", "postgresql", "postgresql+psycopg2"])
def test_every_spelling_of_postgresql_ends_at_psycopg2(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFIER_DATABASE_URL", f"{scheme}://u:{PASSWORD}@h:5432/d?sslmode=require")
    assert Settings().database_url == f"postgresql+psycopg2://u:{PASSWORD}@h:5432/d?sslmode=require"


def test_environment_over_dotenv_over_a_running_up(monkeypatch: pytest.MonkeyPatch) -> None:
    RUN_ENV.parent.mkdir()
    RUN_ENV.write_text("NOTIFIER_USER_LIMIT=1/s\nNOTIFIER_CHANNEL_LIMIT=1/s\nNOTIFIER_USER_QUOTA=1/day\n")
    Path(".env").write_text("NOTIFIER_USER_LIMIT=2/s\nNOTIFIER_CHANNEL_LIMIT=2/s\nOTHER=1\n")
    monkeypatch.setenv("NOTIFIER_USER_LIMIT", "3/s")
    settings = Settings()
    assert settings.user_limit == Limit.parse("3/s")
    assert settings.channel_limit == Limit.parse("2/s")
    assert settings.user_quota == Limit.parse("1/day")


def test_limits_of_one_channel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFIER_USER_LIMIT__WEBHOOK", "5/min")
    settings = Settings()
    assert settings.user_limit_of("webhook") == Limit.parse("5/min")
    assert settings.user_limit_of("websocket") == settings.user_limit


def test_the_limiter_defaults_to_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFIER_REDIS_URL", "redis://state:1/2")
    assert Settings().limiter_url == "redis://state:1/2"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NOTIFIER_USER_LIMIT", "nan/s"),
        ("NOTIFIER_USER_LIMIT", ""),
        ("NOTIFIER_USER_LIMIT__WEBHOOK", "5/fortnight"),
        ("NOTIFIER_LOCAL_BUCKET", "0/s"),
        ("NOTIFIER_GRACE_SECONDS", "-1"),
        ("NOTIFIER_GRACE_SECONDS", "nan"),
        ("NOTIFIER_MAX_PROCESSES", "0x10"),
        ("NOTIFIER_OVERFLOW", "explode"),
        ("NOTIFIER_DATABASE_URL", f"mysql://u:{PASSWORD}@h/d"),
        ("NOTIFIER_REDIS_URL", f"http://u:{PASSWORD}@h"),
        ("NOTIFIER_REDIS_URL", f"redis://:{PASSWORD}/#?x@h:notaport/0"),
        ("NOTIFIER_BROKER_URL", f"sqs://u:{PASSWORD}@h"),
        ("NOTIFIER_DEDUPE_WINDOW", "inf"),
        ("NOTIFIER_GATEWAY_PORT", "70000"),
        ("NOTIFIER_FEED_SECONDS", "0.5"),
    ],
)
def test_a_bad_value_is_refused_by_name_and_not_shown(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError, match=f"^{name}: ") as refused:
        Settings()
    assert "canary" not in str(refused.value)


def test_all_problems_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFIER_USER_LIMIT", "many")
    monkeypatch.setenv("NOTIFIER_OVERFLOW", "explode")
    with pytest.raises(SettingsError) as refused:
        Settings()
    assert {line.split(":")[0] for line in str(refused.value).splitlines()} == {
        "NOTIFIER_USER_LIMIT",
        "NOTIFIER_OVERFLOW",
    }


def test_no_secret_in_repr(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFIER_REDIS_URL", f"redis://:{PASSWORD}@h/0")
    monkeypatch.setenv("NOTIFIER_SECRET", PASSWORD)
    assert "canary" not in repr(Settings())


@pytest.mark.parametrize("name", ["broker_url", "redis_url", "limiter_redis_url", "database_url"])
@pytest.mark.parametrize("password", ["hun/ter2", "12/hunter2"])
def test_a_slash_in_a_password_is_refused_and_not_shown(name: str, password: str) -> None:
    scheme = "postgresql" if name == "database_url" else "redis"
    with pytest.raises(SettingsError, match=r"percent-encode") as refused:
        Settings(**{name: f"{scheme}://u:{password}@server.test/0"})  # type: ignore[arg-type]
    assert "hun" not in str(refused.value)
    assert "12" not in str(refused.value)


@pytest.mark.parametrize(
    ("host", "here"),
    [("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "127.0.0.1"), ("", "127.0.0.1"), ("::", "[::1]"), ("::1", "[::1]")],
)
def test_where_the_gateway_is_seen_from_here(host: str, here: str) -> None:
    assert Settings(gateway_host=host, gateway_port=80).gateway_here == f"{here}:80"
