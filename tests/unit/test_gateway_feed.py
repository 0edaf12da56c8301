"""The cursor against every order of pushes, losses and reads: in order, each once, nothing skipped in silence."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from notifier.gateway.feed import HELD, PAGE, START, Cursor, Message, Push, entry_of, is_id, order, parse_push


@dataclass
class Stream:
    """A feed as Redis keeps it."""

    length: int = 50
    ids: list[int] = field(default_factory=list)
    published: int = 0

    def add(self, number: int | None = None) -> Push:
        previous = self.ids[-1] if self.ids else 0
        self.ids.append(previous + 1 if number is None else number)
        del self.ids[: -self.length]
        return Push(f"{self.ids[-1]}-0", f"{previous}-0", str(self.ids[-1]))

    def read(self, start: str) -> list[Message]:
        return [Message(f"{n}-0", str(n)) for n in self.ids if (n, 0) >= order(start)][:PAGE]


def catch_up(cursor: Cursor, stream: Stream) -> list[int]:
    got: list[int] = []
    while cursor.behind:
        got += [int(entry.text) for entry in cursor.apply(stream.read(cursor.begin())).entries]
    return got


def test_push_that_follows_the_last_is_sent_without_a_read() -> None:
    stream = Stream()
    cursor = Cursor(None, 50)
    assert catch_up(cursor, stream) == []
    assert [cursor.push(stream.add()) for _ in range(3)] == [True] * 3
    assert not cursor.behind


def test_repeated_push_is_not_sent_again() -> None:
    stream = Stream()
    cursor = Cursor(None, 50)
    catch_up(cursor, stream)
    first, second = stream.add(), stream.add()
    assert cursor.push(first)
    assert cursor.push(second)
    assert not cursor.push(second)
    assert not cursor.push(first)
    assert catch_up(cursor, stream) == []


def test_gap_between_pushes_is_read_from_the_feed() -> None:
    stream = Stream()
    cursor = Cursor(None, 50)
    catch_up(cursor, stream)
    stream.add()
    assert not cursor.push(stream.add())
    assert cursor.behind
    assert catch_up(cursor, stream) == [1, 2]


def test_resume_is_recovered_only_while_the_last_id_is_still_in_the_feed() -> None:
    stream = Stream(length=3)
    for _ in range(5):
        stream.add()
    kept = Cursor("3-0", 3)
    step = kept.apply(stream.read(kept.begin()))
    assert ([entry.text for entry in step.entries], step.stands_at, step.gap) == (["4", "5"], "3-0", False)
    trimmed = Cursor("2-0", 3)
    step = trimmed.apply(stream.read(trimmed.begin()))
    assert ([entry.text for entry in step.entries], step.gap) == (["3", "4", "5"], True)


def test_id_above_the_feeds_last_starts_over() -> None:
    stream = Stream()
    stream.add()
    cursor = Cursor("99-0", 50)
    step = cursor.apply(stream.read(cursor.begin()))
    assert (step.stands_at, step.gap, cursor.behind) == (START, True, True)
    assert catch_up(cursor, stream) == [1]


def test_feed_that_begins_anew_under_lower_ids_is_noticed() -> None:
    stream = Stream(ids=[70])
    cursor = Cursor(None, 50)
    assert catch_up(cursor, stream) == [70]
    stream.ids.clear()
    assert not cursor.push(stream.add(5))
    assert catch_up(cursor, stream) == [5]
    assert cursor.push(stream.add())


@pytest.mark.parametrize(("entries", "gap"), [(2, False), (3, True)])
def test_who_saw_an_empty_feed_has_missed_nothing_until_it_is_full(entries: int, gap: bool) -> None:
    stream = Stream(length=3)
    for _ in range(entries):
        stream.add()
    cursor = Cursor(START, 3)
    assert cursor.apply(stream.read(cursor.begin())).gap is gap


def test_long_feed_is_read_page_by_page() -> None:
    stream = Stream(length=1_000)
    for _ in range(3 * PAGE):
        stream.add()
    cursor = Cursor(None, 1_000)
    assert catch_up(cursor, stream) == list(range(1, 3 * PAGE + 1))
    assert not cursor.behind


def test_more_pushes_during_a_read_than_are_held_cost_one_more_read() -> None:
    stream = Stream(length=1_000)
    cursor = Cursor(None, 1_000)
    read = stream.read(cursor.begin())
    for _ in range(HELD + 5):
        assert not cursor.push(stream.add())
    got = [int(entry.text) for entry in cursor.apply(read).entries]
    assert cursor.behind
    assert got + catch_up(cursor, stream) == list(range(1, HELD + 6))


def test_miss_during_a_read_is_not_forgotten() -> None:
    stream = Stream()
    cursor = Cursor(None, 50)
    read = stream.read(cursor.begin())
    stream.add()
    cursor.miss()
    assert cursor.apply(read).entries == []
    assert catch_up(cursor, stream) == [1]


ACTIONS = st.sampled_from(["add", "add", "lose", "repeat", "begin", "read", "apply", "fail", "miss"])


@settings(max_examples=400, deadline=None)
@given(st.lists(ACTIONS, max_size=60), st.integers(2, 6), st.integers(0, 4))
def test_any_order_of_events(actions: list[str], length: int, before: int) -> None:
    """Whatever happens, a client is sent an increasing run; where it jumps, it was told so."""
    stream = Stream(length=length)
    for _ in range(before):
        stream.add()
    cursor = Cursor(None, length)
    got: list[int] = []
    told: set[int] = {0}
    reading: list[Message] | None = None
    begun: str | None = None
    recent: list[Push] = []

    def take(entries: list[Message], gap: bool) -> None:
        if gap or not got:
            told.add(len(got))
        got.extend(int(entry.text) for entry in entries)

    for action in [*actions, "end"]:
        if action in ("add", "lose"):
            push = stream.add()
            recent.append(push)
            if action == "add" and cursor.push(push):
                got.append(int(push.frame))
        elif action == "repeat" and recent:
            push = recent[-(len(recent) % 3) - 1] if len(recent) > 3 else recent[0]
            assert begun is not None or cursor.behind or not cursor.push(push) or push.id == f"{got[-1]}-0"
        elif action == "begin" and cursor.behind and begun is None:
            begun = cursor.begin()
        elif action == "read" and begun is not None and reading is None:
            reading = stream.read(begun)
        elif action == "apply" and reading is not None:
            step = cursor.apply(reading)
            take(step.entries, step.gap)
            reading = begun = None
        elif action == "fail" and begun is not None:
            cursor.fail()
            reading = begun = None
        elif action == "miss":
            cursor.miss()
    if begun is not None:
        cursor.fail()
    cursor.miss()  # as on every reconnect: from here on nothing is lost
    while cursor.behind:
        step = cursor.apply(stream.read(cursor.begin()))
        take(step.entries, step.gap)
    assert got == sorted(set(got))
    assert not stream.ids or got[-1] == stream.ids[-1]
    jumps = {i for i in range(1, len(got)) if got[i] != got[i - 1] + 1}
    assert jumps <= told


def test_wire_forms() -> None:
    assert parse_push(b'12-3 0-0 {"id":"12-3","payload":"a b  c"}') == Push(
        "12-3", "0-0", '{"id":"12-3","payload":"a b  c"}'
    )
    assert entry_of(b"12-3", b'"seq":1,"payload":{}}').text == '{"id":"12-3","seq":1,"payload":{}}'
    for bad in (b"", b"12-3", b"12-3 {}", b"x y z", b"\xff 0-0 z"):
        with pytest.raises(ValueError, match=r".*"):
            parse_push(bad)


@pytest.mark.parametrize(
    "text", ["", "-", "+", "$", "1", "1-", "-1", "1-1 ", "1-1\n", "(1-1", "1-1-1", "a-b", "9" * 21 + "-0"]
)
def test_only_stream_ids_pass_as_last_id(text: str) -> None:
    assert not is_id(text)
    assert is_id("1764471120123-0")
