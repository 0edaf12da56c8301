"""The notation of limits."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from notifier.limit import MAX_EMISSION_US, MIN_EMISSION_US, Limit

DAY_US = 86_400 * 10**6


@pytest.mark.parametrize(
    ("text", "emission_us", "burst"),
    [
        ("2/s burst 10", 500_000, 10),
        ("30/min", 2_000_000, 30),
        ("1000/hour", 3_600_000, 1_000),
        ("50/day burst 10", 1_728_000_000, 10),
        ("0.5/s", 2_000_000, 1),
        ("7/s", 142_858, 7),
        ("1/day", DAY_US, 1),
        ("25000/s", 40, 25_000),
        (" 2 / S  Burst 3 ", 500_000, 3),
        ("90/second", 11_112, 90),
    ],
)
def test_parses(text: str, emission_us: int, burst: int) -> None:
    assert Limit.parse(text) == Limit(emission_us, burst)


def test_off_and_block() -> None:
    assert Limit.parse("off").off
    assert Limit.parse("0/s").blocks
    assert not Limit.parse("0/s").off
    assert (str(Limit.parse("off")), str(Limit.parse("0/s"))) == ("off", "0/s")


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "5", "nan", "inf", "nan/s", "-1/s", "1e3/s", "0x10/s", "5/fortnight", "5/s burst 0", "5/s burst -1",
        "5/s burst 1.5", "0/s burst 3", "25001/s", "0.5/day", "1/day burst 4000", "2/s,burst 3", "٣/s",
        "1/s burst " + "9" * 30,
    ],
)  # fmt: skip
def test_refuses_with_the_reason(text: str) -> None:
    with pytest.raises(ValueError, match=r"limit|unknown|burst|at most|at least"):
        Limit.parse(text)


@given(st.integers(1, 25_000), st.integers(1, 1_000))
def test_rounding_never_lets_more_through_and_the_text_reads_back(count: int, burst: int) -> None:
    limit = Limit.parse(f"{count}/s burst {burst}")
    assert Fraction(10**6, limit.emission_us) <= count
    assert Limit.parse(str(limit)) == limit


@given(st.integers(MIN_EMISSION_US, MAX_EMISSION_US), st.integers(1, 3))
def test_every_limit_reads_back(emission_us: int, burst: int) -> None:
    assert Limit.parse(str(Limit(emission_us, burst))).emission_us >= emission_us
