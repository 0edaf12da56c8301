"""Whatever a client says, headers, tokens, messages and ids are refused in our words, or taken within bounds."""

from __future__ import annotations

import base64
import json
import math
from typing import Any

import jwt
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from notifier.gateway.app import last_id_of
from notifier.gateway.auth import MAX_TOKEN, Auth, Refused, make_token
from notifier.gateway.feed import PING, Message, heard, is_id, order, parse_push, parse_read
from notifier.gateway.wires import event_of
from tests.properties.anything import CANARY, ODD_JSON, json_texts, json_values, pairs, texts

SECRET, OTHER = "s" * 40, "t" * 40
LAST = 2**64 - 1  # of each half of a stream's id
auth = Auth([SECRET, OTHER], ["https://shop.example"], issuer="", audience="")
open_auth = Auth([SECRET])


def encoded(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def signed(claims: dict[str, Any], secret: str) -> str:
    try:
        return jwt.encode(claims, secret, algorithm="HS256")
    except (TypeError, ValueError):  # what cannot be a token at all
        return "a.b.c"


claims = st.fixed_dictionaries(
    {},
    optional={
        "sub": json_values | st.just("ann"),
        "exp": json_values | st.just(4_000_000_000) | st.just(math.inf),
        **dict.fromkeys(("nbf", "iat", "iss", "aud", "live", "jti", "crit"), json_values),
    },
)
parts = json_texts.map(lambda text: encoded(text.encode("utf-8", "surrogatepass"))) | st.binary(max_size=40).map(
    encoded
)
tokens = (
    st.builds(signed, claims, st.sampled_from([SECRET, OTHER, "u" * 40]))
    | st.lists(parts, min_size=1, max_size=5).map(".".join)
    | texts
)
headers = st.fixed_dictionaries(
    {},
    optional={
        "authorization": tokens.map("Bearer {}".format) | texts,
        "origin": texts | st.sampled_from(["https://shop.example", "http://[", "http://a:99999", "null", "http://a:b"]),
        "host": texts | st.sampled_from(["a", "[::1", "a:99999", "a:b", "@", "a@b"]),
    },
)
subprotocols = st.lists(texts | tokens.map("bearer.{}".format) | st.just("notifier.v1"), max_size=4)


@given(st.sampled_from([auth, open_auth]), headers, subprotocols)
@example(open_auth, {"authorization": f"Bearer {encoded(b'[' * 3_000)}.e30.AA"}, [])
@example(open_auth, {"authorization": "Bearer \ud800"}, [])
@example(open_auth, {"authorization": f"Bearer {signed({'sub': 'a', 'exp': math.inf}, SECRET)}"}, [])
@example(open_auth, {"authorization": f"Bearer {signed({'sub': 'a', 'exp': 10**400}, SECRET)}"}, [])
def test_a_client_is_refused_in_our_words_or_let_in_by_a_signed_token(
    by: Auth, given_headers: dict[str, str], offered: list[str]
) -> None:
    try:
        session = by.check(given_headers, offered)
    except Refused as error:
        assert (error.status, error.kind) in {
            (401, "token_missing"), (401, "token_invalid"), (401, "token_expired"), (403, "origin_refused")
        }  # fmt: skip
    else:
        assert 1 <= len(session.user_id) <= 512
        assert math.isfinite(session.expires_s)
        assert "origin" not in given_headers or by is open_auth or "shop.example" in given_headers["origin"]


@given(st.sampled_from([auth, open_auth]), headers, subprotocols)
def test_what_a_refused_client_said_is_not_shown(by: Auth, given_headers: dict[str, str], offered: list[str]) -> None:
    canaries = {name: f"{value}{CANARY}" for name, value in given_headers.items()}
    try:
        by.check(canaries, [f"{protocol}{CANARY}" for protocol in offered])
    except Refused as error:
        assert CANARY not in str(error)


def test_every_pair_of_odd_claims_is_refused_in_our_words_or_let_in() -> None:
    for odd in pairs(("sub", "exp", "nbf", "iat", "iss", "aud", "live", "jti", "crit"), ODD_JSON[:-2]):  # not nested
        for by in (auth, open_auth):
            token = signed({"sub": "ann", "exp": 4_000_000_000, **odd}, SECRET)
            try:
                session = by.check({"authorization": f"Bearer {token}"})
            except Refused:
                continue
            assert 1 <= len(session.user_id) <= 512
            assert math.isfinite(session.expires_s)


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=512))
def test_a_token_names_the_user_it_was_made_for(user_id: str) -> None:
    token = make_token(SECRET, user_id, 60)
    if len(token) <= MAX_TOKEN:
        assert open_auth.check({"authorization": f"Bearer {token}"}).user_id == user_id


ids = st.from_regex(r"\A\d{1,22}-\d{1,22}\Z") | st.builds("{}-{}".format, st.integers(0, LAST), st.integers(0, LAST))
frames = (
    json_texts
    | st.builds(
        lambda kind, value: json.dumps({"type": kind, "id": value}), st.sampled_from(["read", "ping"]), ids | texts
    )
    | st.dictionaries(st.sampled_from(["type", "id"]), st.just("read") | st.none() | st.lists(texts)).map(json.dumps)
)


@given(frames)
@example('{"type":"read","id":"99999999999999999999-0"}')
@example('{"type":"read","id":"٣-٣"}')
def test_a_clients_message_is_a_ping_a_read_id_or_nonsense(said: str) -> None:
    meant = heard(said)
    if meant is None or meant == PING:
        return
    assert json.loads(said) == {**json.loads(said), "type": "read", "id": meant}
    assert all(number <= LAST for number in order(meant))
    assert meant.isascii() and meant.replace("-", "0").isdigit()


@given(ids | texts)
@example("18446744073709551616-0")
@example("1-0\n")
def test_a_last_id_is_refused_or_one_that_redis_takes(text: str) -> None:
    try:
        last_id = last_id_of(text)
    except Refused as error:
        assert (error.status, error.kind) == (400, "last_id_invalid")
        assert not is_id(text)
    else:
        assert last_id is None if text == "" else last_id == text
        assert text == "" or all(number <= LAST for number in order(text))
    with pytest.raises(Refused) as refused:
        last_id_of(f"{text}{CANARY}")
    assert CANARY not in str(refused.value)


@given(st.binary(max_size=80) | texts.map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_what_is_no_push_is_told_by_a_value_error(raw: bytes) -> None:
    try:
        push = None if parse_read(raw) else parse_push(raw)
    except ValueError:
        return
    assert push is None or (is_id(push.id) and is_id(push.previous))


@given(json_values)
def test_an_event_is_one_event_whatever_is_in_it(payload: Any) -> None:
    try:
        text = json.dumps(payload, separators=(",", ":"))
    except ValueError:
        return
    lines = event_of(Message("1-0", text)).split("\n")
    assert lines == ["id: 1-0", f"data: {text}", "", ""]
