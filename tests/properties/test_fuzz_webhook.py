"""Whatever answers a webhook, its headers are read without an error and bound what they ask for."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

from hypothesis import example, given
from hypothesis import strategies as st

from notifier.channels import Failed, RetryAt, Sent
from notifier.channels.outbound import Refused, target_of
from notifier.channels.replies import LONGEST_WAIT_S, outcome_of, retry_after_s

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
NOW_S = NOW.timestamp()
NAMES = st.sampled_from([b"Retry-After", b"retry-after", b"RETRY-AFTER", b"Date", b""]) | st.binary(max_size=20)
DATE_PARTS = st.lists(
    st.sampled_from([
        *("Sun,", "Sunday,", "Mar", "Foo", "01", "1", "-1", "00", "29", "32"),
        *("2026", "26", "0000", "10000", "99999999999"),
        *("12:00:00", "25:61:61", "12:00", "1:2:3:4", ":"),
        *("GMT", "UTC", "+0000", "-0000", "+9999", "-2500", "EST", "(c)", ","),
    ]),
    max_size=9,
).map(" ".join)  # fmt: skip
VALUES = (
    st.binary(max_size=60)
    | st.integers().map(lambda n: str(n).encode())
    | st.floats().map(lambda x: str(x).encode())
    | st.text(max_size=40).map(lambda text: text.encode())
    | DATE_PARTS.map(str.encode)
    | st.datetimes().map(lambda moment: format_datetime(moment.replace(tzinfo=UTC), usegmt=True).encode())
)
HEADERS = st.lists(st.tuples(NAMES, VALUES), max_size=5)


@given(HEADERS, st.floats(0, 1e11))
@example([(b"Retry-After", b"Sun, 06 Nov 0000 08:49:37 GMT")], NOW_S)
@example([(b"Retry-After", b"Sun, 06 Nov 1994 08:49:37 +9999")], NOW_S)
@example([(b"Retry-After", b"Sun, 06 Nov 99999999999 08:49:37 GMT")], NOW_S)
@example([(b"Retry-After", b"9" * 60)], NOW_S)
@example([(b"Retry-After", "\u0662\u0663".encode())], NOW_S)
@example([(b"Retry-After", b"Fri, 31 Dec 9999 23:59:59 -0100")], NOW_S)
def test_any_headers_ask_for_a_bounded_time(headers: list[tuple[bytes, bytes]], now_s: float) -> None:
    wait_s = retry_after_s(headers, now_s)
    assert math.isfinite(wait_s)
    assert 0 <= wait_s <= LONGEST_WAIT_S


@given(st.integers(-10, 100_000), HEADERS)
def test_any_answer_is_one_outcome(status: int, headers: list[tuple[bytes, bytes]]) -> None:
    outcome = outcome_of(status, headers, "host", NOW_S)
    assert isinstance(outcome, (Sent, RetryAt, Failed))
    assert isinstance(outcome, Sent) == (200 <= status < 300)


@given(st.integers(0, 10**14))
def test_seconds_are_taken_as_they_are_up_to_a_day(seconds: int) -> None:
    assert retry_after_s([(b"Retry-After", b" %d " % seconds)], NOW_S) == min(seconds, LONGEST_WAIT_S)


@given(st.integers(-200_000, 200_000))
def test_every_form_of_an_http_date_is_read(seconds: int) -> None:
    moment = NOW + timedelta(seconds=seconds)
    for form in ("%a, %d %b %Y %H:%M:%S GMT", "%A, %d-%b-%y %H:%M:%S GMT", "%a %b %e %H:%M:%S %Y"):
        value = moment.strftime(form).encode()
        assert retry_after_s([(b"Retry-After", value)], NOW_S) == min(max(seconds, 0), LONGEST_WAIT_S)


HOST_PARTS = st.sampled_from(
    ["xn--", "xn--a", "a", ".", "-", "[", "]", "::1", "%", "%41", "@", ":", "80", "0x7f", "ß", "。", "ﬀ"]
)
HOSTS = st.lists(HOST_PARTS | st.characters(), max_size=6).map("".join)
URLS = st.builds("{}://{}/{}".format, st.sampled_from(["http", "https", "HTTP", ""]), HOSTS, st.text(max_size=5))


@given(URLS | st.text(max_size=30))
@example("http://xn--/")
@example("http://xn--a.example/")
def test_any_text_is_a_target_or_refused(url: str) -> None:
    try:
        target = target_of(url)
    except Refused as refused:
        assert str(refused).startswith("the address ")
    else:
        assert target.where.isascii() and target.url.scheme in (b"http", b"https")
