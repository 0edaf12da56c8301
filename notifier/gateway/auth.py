"""Who a client is: a JWT (HS256) whose `sub` is the user. Checked before a connection is accepted."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import jwt
from pydantic import SecretStr

from notifier.errors import InvalidNotification, NotifierError, SettingsError
from notifier.notification import clean_user_id
from notifier.settings import MAKE_A_SECRET, SHORTEST_SECRET, Settings

SUBPROTOCOL = "notifier.v1"
BEARER = "bearer."
MAX_TOKEN = 4_096  # characters
_PORTS = {"http": 80, "https": 443, "ws": 80, "wss": 443}
_HOW = f"send 'Sec-WebSocket-Protocol: {SUBPROTOCOL}, {BEARER}<token>' or 'Authorization: Bearer <token>'"


class Refused(NotifierError):
    """A client that is not let in: HTTP `status`, a `kind` for programs, a text for people."""

    def __init__(self, status: int, kind: str, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.kind = kind


@dataclass(frozen=True, slots=True)
class Session:
    """A client that was let in. `expires_s` is unix time; `live`: may see and do what the live page does."""

    user_id: str
    expires_s: float
    live: bool = False


def make_token(
    secret: str, user_id: str, ttl_s: float, *, issuer: str = "", audience: str = "", live: bool = False
) -> str:
    """A token for one user, valid for `ttl_s` seconds from now; `live` opens the live page, with everybody's feeds."""
    now_s = int(time.time())
    claims: dict[str, Any] = {"sub": clean_user_id(user_id), "iat": now_s, "exp": now_s + max(1, int(ttl_s))}
    if issuer:
        claims["iss"] = issuer
    if audience:
        claims["aud"] = audience
    if live:
        claims["live"] = True
    return jwt.encode(claims, secret, algorithm="HS256")


def token_for(settings: Settings, user_id: str, ttl_s: float, *, live: bool = False) -> str:
    """A token that a gateway with these settings accepts. Raises SettingsError where the secret is missing."""
    issuer, audience = settings.token_issuer, settings.token_audience
    return make_token(secret_of(settings), user_id, ttl_s, issuer=issuer, audience=audience, live=live)


def secret_of(settings: Settings) -> str:
    """The signing secret. Raises SettingsError where it is missing or short."""
    return _long_enough("SECRET", settings.secret)


def _long_enough(name: str, secret: SecretStr | None) -> str:
    text = secret.get_secret_value() if secret else ""
    if len(text) < SHORTEST_SECRET:
        raise SettingsError(
            f"NOTIFIER_{name}: must be set, to at least {SHORTEST_SECRET} characters; make one with {MAKE_A_SECRET}"
        )
    return text


class Auth:
    """Checks origin and token of a connection that asks to be let in."""

    def __init__(
        self, secrets: Sequence[str], origins: Sequence[str] = (), *, issuer: str = "", audience: str = ""
    ) -> None:
        """`secrets`: the first that verifies counts. `origins`: pages that may connect; none: the same host's.

        `issuer` and `audience` must be in the token, if given.
        """
        self._secrets = secrets
        self._issuer = issuer or None
        self._audience = audience or None
        self._origins = frozenset(_origin(each) for each in origins)

    @classmethod
    def from_settings(cls, settings: Settings) -> Auth:
        """Raises SettingsError where the secret is missing."""
        secrets = [secret_of(settings)]
        if settings.previous_secret and settings.previous_secret.get_secret_value():
            secrets.append(_long_enough("PREVIOUS_SECRET", settings.previous_secret))
        origins = [each for each in settings.allowed_origins.split(",") if each.strip()]
        return cls(secrets, origins, issuer=settings.token_issuer, audience=settings.token_audience)

    def check(self, headers: Mapping[str, str], subprotocols: Sequence[str] = (), *, scheme: str = "ws") -> Session:
        """Raises Refused. `headers` by lower-case name."""
        self._check_origin(headers.get("origin"), headers.get("host", ""), scheme)
        token = _token(headers.get("authorization", ""), subprotocols)
        if not token:
            raise Refused(401, "token_missing", f"no token: {_HOW}")
        if len(token) > MAX_TOKEN:
            raise Refused(401, "token_invalid", f"the token is over {MAX_TOKEN:,} characters")
        return self._session(token)

    def _check_origin(self, origin: str | None, host: str, scheme: str) -> None:
        if origin is None:  # not a browser
            return
        asking = _origin(origin)
        allowed = asking in self._origins or "*" in self._origins if self._origins else _same_host(asking, host, scheme)
        if not allowed:
            raise Refused(
                403, "origin_refused", "pages of this origin may not connect; allow it in NOTIFIER_ALLOWED_ORIGINS"
            )

    def _session(self, token: str) -> Session:
        failure: jwt.InvalidTokenError = jwt.InvalidTokenError()
        for secret in self._secrets:
            try:
                claims = jwt.decode(
                    token,
                    secret,
                    algorithms=["HS256"],
                    options={"require": ["sub", "exp"], "verify_aud": self._audience is not None},
                    issuer=self._issuer,
                    audience=self._audience,
                )
                return Session(clean_user_id(claims["sub"]), float(claims["exp"]), claims.get("live") is True)
            except (OverflowError, RecursionError, UnicodeError) as error:  # PyJWT passes these on
                failure = jwt.DecodeError(type(error).__name__)
            except jwt.ExpiredSignatureError:
                raise Refused(401, "token_expired", "the token has expired; get a new one") from None
            except InvalidNotification:
                raise Refused(401, "token_invalid", "the token's sub is not a user id") from None
            except jwt.InvalidTokenError as error:
                failure = error
        raise Refused(401, "token_invalid", f"the token is not valid: {type(failure).__name__}") from None


def _token(authorization: str, subprotocols: Sequence[str]) -> str:
    scheme, _, credentials = authorization.partition(" ")
    if scheme.lower() == "bearer" and credentials:
        return credentials.strip()
    if SUBPROTOCOL not in subprotocols:
        return ""
    return next((each.removeprefix(BEARER) for each in subprotocols if each.startswith(BEARER)), "")


def _origin(text: str) -> str:
    return text.strip().rstrip("/").lower()


def _same_host(origin: str, host: str, scheme: str) -> bool:
    """Scheme aside: behind a proxy that ends TLS the page is https and the gateway is not."""
    try:
        page, here = urlsplit(origin), urlsplit(f"{scheme}://{host.lower()}")
        if not page.hostname or page.hostname != here.hostname:
            return False
        return page.port == here.port or (page.port or _PORTS.get(page.scheme)) == (here.port or _PORTS.get(scheme))
    except ValueError:
        return False
