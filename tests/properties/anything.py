"""What strangers may send: values of any kind, as calls, as JSON and as text."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta, timezone
from itertools import combinations, product
from typing import Any
from uuid import UUID

from hypothesis import strategies as st

CANARY = "canary-7f3a"  # stands for what must not be shown

huge = st.sampled_from([10**400, -(10**400), 10**4_000, 2**63, 2**64, 2**53 + 1, -(2**63) - 1])
odd_texts = st.sampled_from([
    *("", " ", "\0", "\n", "\ud800", "a\0b", "x" * 513, "\u200b", "null", "NaN", "1e999", "'; DROP TABLE x; --"),
    *("{0001}", "\x7f", "\r\n", "*", "-", "..", "é" * 600, "\U0001f600" * 200, "0", "-1"),
])  # fmt: skip
texts = st.text(max_size=40) | odd_texts
numbers = st.integers() | huge | st.floats()
scalars = st.none() | st.booleans() | numbers | texts
json_values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4), max_leaves=12
)


def nested(depth: int) -> list[Any]:
    """Lists in lists."""
    outer: list[Any] = []
    for _ in range(depth):
        outer = [outer]
    return outer


objects = (
    json_values
    | st.builds(nested, st.sampled_from([10, 499, 500, 501, 5_000]))
    | st.binary(max_size=20)
    | st.uuids()
    | st.datetimes(timezones=st.none() | st.timezones())
    | st.sampled_from([datetime.min, datetime.max, datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)])
    | st.timedeltas()
    | st.sampled_from([timedelta.max, timedelta.min, object(), Ellipsis, int, {1: 2}, {(): ()}, {1, 2}, b"\xff", 1j])
    | st.tuples(json_values)
)

# One of each kind that a rare combination would meet: for tests of every pair of arguments.
ODD_JSON: tuple[Any, ...] = (
    *(None, True, 0, -1, 2.5, 2**53, 10**400, 10**5_000, math.nan, math.inf, 1e308, "", "\0", "\ud800", "x" * 70_000),
    *([], {}, [[]], {"a": {}}, nested(600), nested(5_000)),
)
ODD: tuple[Any, ...] = (
    *ODD_JSON,
    *(object(), b"\xff", 1j, {1: 2}, {1, 2}, int, timedelta.max, timedelta.min, timedelta(0), UUID(int=7)),
    *(datetime.max, datetime.min, datetime.max.replace(tzinfo=UTC), datetime.min.replace(tzinfo=UTC)),
    *(datetime.max.replace(tzinfo=timezone(-timedelta(hours=23))), datetime.min.replace(tzinfo=timezone.max)),
)


def pairs(names: Sequence[str], values: Sequence[Any]) -> Iterator[dict[str, Any]]:
    """Every two names with every two values."""
    for first, second in combinations(names, 2):
        for one, other in product(values, repeat=2):
            yield {first: one, second: other}


_deep = st.builds(
    lambda n, a, b: a * n + b * n, st.sampled_from([10, 900, 30_000]), st.just("["), st.sampled_from("] ")
)
json_texts = (
    json_values.map(lambda value: _text_of(value))
    | texts
    | _deep
    | st.sampled_from(
        ["NaN", "-Infinity", "1e999", "1" * 5_000, '{"a":1,"a":2}', '"\\ud800"', "{\n}", '"a\rb"', "\ufeff1"]
    )
)


def _text_of(value: Any) -> str:
    try:
        return json.dumps(value)
    except ValueError:  # a number longer than Python writes
        return "0"
