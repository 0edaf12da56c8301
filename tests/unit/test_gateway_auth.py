"""Who is let in, and what the others are told."""

from __future__ import annotations

import base64
import json
import time
from typing import Any

import jwt
import pytest

from notifier.errors import SettingsError
from notifier.gateway.auth import Auth, Refused, make_token, secret_of, token_for
from notifier.settings import Settings

SECRET = "s" * 40
OTHER = "t" * 40


def bearer(token: str, **headers: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}", "host": "example.com", **headers}


def kind_of(auth: Auth, headers: dict[str, str], subprotocols: list[str] | None = None) -> str:
    with pytest.raises(Refused) as refused:
        auth.check(headers, subprotocols or [])
    return refused.value.kind


def test_token_by_header_and_by_subprotocol() -> None:
    token = make_token(SECRET, "üser:1", 60)
    auth = Auth([SECRET])
    assert auth.check(bearer(token)).user_id == "üser:1"
    session = auth.check({"host": "example.com"}, ["notifier.v1", f"bearer.{token}"])
    assert session.user_id == "üser:1"
    assert 0 < session.expires_s - time.time() <= 61


@pytest.mark.parametrize(
    ("claims", "secret", "kind"),
    [
        ({"sub": "1", "exp": 60}, OTHER, "token_invalid"),
        ({"sub": "1", "exp": -1}, SECRET, "token_expired"),
        ({"sub": "1"}, SECRET, "token_invalid"),
        ({"exp": 60}, SECRET, "token_invalid"),
        ({"sub": "", "exp": 60}, SECRET, "token_invalid"),
        ({"sub": "x" * 513, "exp": 60}, SECRET, "token_invalid"),
        ({"sub": ["1"], "exp": 60}, SECRET, "token_invalid"),
        ({"sub": "1", "exp": "never"}, SECRET, "token_invalid"),
        ({"sub": "1", "exp": 90, "nbf": 60}, SECRET, "token_invalid"),
    ],
)
def test_bad_claims(claims: dict[str, Any], secret: str, kind: str) -> None:
    """exp and nbf: seconds from now."""
    now_s = time.time()
    claims = {name: value + now_s if isinstance(value, int) else value for name, value in claims.items()}
    assert kind_of(Auth([SECRET]), bearer(jwt.encode(claims, secret, algorithm="HS256"))) == kind


def test_unsigned_and_other_algorithms_are_refused() -> None:
    claims = {"sub": "1", "exp": time.time() + 60}
    parts = [
        base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in ({"alg": "none"}, claims)
    ]
    auth = Auth(["s" * 64])
    assert auth.check(bearer(jwt.encode(claims, "s" * 64, algorithm="HS256"))).user_id == "1"
    assert kind_of(auth, bearer(".".join([*parts, ""]))) == "token_invalid"
    assert kind_of(auth, bearer(jwt.encode(claims, "s" * 64, algorithm="HS512"))) == "token_invalid"
    assert kind_of(auth, bearer("nonsense")) == "token_invalid"
    assert kind_of(auth, bearer("x" * 5_000)) == "token_invalid"


def test_no_token() -> None:
    auth = Auth([SECRET])
    token = make_token(SECRET, "1", 60)
    assert kind_of(auth, {"host": "example.com"}) == "token_missing"
    assert kind_of(auth, {"host": "example.com", "authorization": "Basic abc"}) == "token_missing"
    assert kind_of(auth, {"host": "example.com"}, [f"bearer.{token}"]) == "token_missing"


def test_no_refusal_shows_the_token() -> None:
    token = make_token(OTHER, "1", 60)
    with pytest.raises(Refused) as refused:
        Auth([SECRET]).check(bearer(token))
    assert token not in str(refused.value)
    assert refused.value.__cause__ is None


@pytest.mark.parametrize(
    ("origin", "host", "allowed"),
    [
        ("https://example.com", "example.com", True),
        ("http://example.com:8000", "example.com:8000", True),
        ("http://EXAMPLE.com:80", "example.com", True),
        ("http://example.com:8001", "example.com:8000", False),
        ("https://evil.example", "example.com", False),
        ("https://example.com.evil.example", "example.com", False),
        ("null", "example.com", False),
        ("", "example.com", False),
        ("https://[::1", "example.com", False),
        ("https://example.com:notaport", "example.com", False),
    ],
)
def test_without_a_list_only_pages_of_the_same_host(origin: str, host: str, allowed: bool) -> None:
    headers = bearer(make_token(SECRET, "1", 60), origin=origin) | {"host": host}
    if allowed:
        assert Auth([SECRET]).check(headers).user_id == "1"
    else:
        assert kind_of(Auth([SECRET]), headers) == "origin_refused"


def test_with_a_list_only_pages_on_it() -> None:
    auth = Auth([SECRET], ["https://app.example.com/", "http://localhost:3000"])
    token = make_token(SECRET, "1", 60)
    assert auth.check(bearer(token, origin="https://app.example.com")).user_id == "1"
    assert auth.check(bearer(token, origin="http://localhost:3000")).user_id == "1"
    assert kind_of(auth, bearer(token, origin="https://example.com")) == "origin_refused"
    assert Auth([SECRET], ["*"]).check(bearer(token, origin="https://any.example")).user_id == "1"


@pytest.mark.parametrize("secret", [None, "short"])
def test_missing_or_short_secret_is_named_and_not_shown(secret: str | None) -> None:
    with pytest.raises(SettingsError, match="NOTIFIER_SECRET") as error:
        secret_of(Settings(secret=secret))
    assert "short" not in str(error.value)


def test_two_secrets_while_rotating() -> None:
    auth = Auth.from_settings(Settings(secret=OTHER, previous_secret=SECRET))
    assert auth.check(bearer(make_token(SECRET, "1", 60))).user_id == "1"
    assert auth.check(bearer(make_token(OTHER, "1", 60))).user_id == "1"
    assert kind_of(auth, bearer(make_token("u" * 40, "1", 60))) == "token_invalid"
    old = jwt.encode({"sub": "1", "exp": time.time() - 1}, SECRET, algorithm="HS256")
    assert kind_of(auth, bearer(old)) == "token_expired"
    with pytest.raises(SettingsError, match="NOTIFIER_PREVIOUS_SECRET"):
        Auth.from_settings(Settings(secret=OTHER, previous_secret="short"))


def test_issuer_and_audience_count_where_they_are_set() -> None:
    strict = Settings(secret=SECRET, token_issuer="https://id.example", token_audience="notifier")
    auth = Auth.from_settings(strict)
    assert auth.check(bearer(token_for(strict, "1", 60))).user_id == "1"
    for issuer, audience in (("", ""), ("https://id.example", ""), ("x", "notifier")):
        token = make_token(SECRET, "1", 60, issuer=issuer, audience=audience)
        assert kind_of(auth, bearer(token)) == "token_invalid"
    loose = Auth([SECRET])
    assert loose.check(bearer(token_for(strict, "1", 60))).user_id == "1"
