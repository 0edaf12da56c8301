"""Quiet hours against a brute force that reads the clock minute by minute, around every kind of change of the clock."""

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from notifier.errors import InvalidPreferences
from notifier.quiet_hours import QuietHours

MINUTE = timedelta(minutes=1)
DAY = 24 * 60
DAYS = 6  # three before the day of the change and three after it begins
CHANGES = [
    ("Europe/Berlin", "2026-03-29"),
    ("Europe/Berlin", "2026-10-25"),
    ("America/New_York", "2026-03-08"),
    ("America/New_York", "2026-11-01"),
    ("Australia/Lord_Howe", "2026-04-05"),  # by half an hour
    ("Australia/Lord_Howe", "2026-10-04"),
    ("America/Havana", "2026-03-08"),  # midnight is left out
    ("America/Havana", "2026-11-01"),  # midnight comes twice
    ("America/St_Johns", "2006-10-29"),  # at 00:01 back to yesterday
    ("America/St_Johns", "2006-04-02"),
    ("America/Sao_Paulo", "2018-02-18"),  # at midnight back to yesterday
    ("America/Sao_Paulo", "2018-11-04"),
    ("Africa/Cairo", "2026-04-24"),
    ("Asia/Kathmandu", "2026-05-01"),  # none, and an odd offset
    ("Pacific/Apia", "2011-12-30"),  # a day that never was
]


@lru_cache
def clock_of(zone: str, date: str) -> tuple[datetime, list[datetime]]:
    """The first minute, and what the clock on the wall shows in each."""
    first = (datetime.fromisoformat(date) - timedelta(days=DAYS // 2)).replace(tzinfo=UTC)
    info = ZoneInfo(zone)
    shown = [(first + k * MINUTE).astimezone(info).replace(tzinfo=None, fold=0) for k in range(DAYS * DAY)]
    return first, shown


def quiet_minutes(shown: list[datetime], start: time, end: time) -> list[bool]:
    """Minute by minute: does the clock show a quiet time; then close what lies between two in an hour shown twice."""
    quiet = [start <= now.time() < end if start < end else now.time() >= start or now.time() < end for now in shown]
    for k in range(1, len(shown)):
        if shown[k] < shown[k - 1]:
            size = int((shown[k - 1] + MINUTE - shown[k]) / MINUTE)
            inside = [m for m in range(k - size, k + size) if quiet[m]]
            for m in range(min(inside, default=0), max(inside, default=-1)):
                quiet[m] = True
    return quiet


TIMES = st.integers(0, DAY - 1).map(lambda minute: time(minute // 60, minute % 60))
NEAR = st.sampled_from([time(hour, minute) for hour in (22, 23, 0, 1, 2, 3) for minute in (0, 1, 15, 30, 59)])


@settings(deadline=None)
@given(st.sampled_from(CHANGES), TIMES | NEAR, TIMES | NEAR, st.integers(0, 3 * DAY))
@example(CHANGES[0], time(22), time(2, 30), 2 * DAY)  # ends in the hour that is left out
@example(CHANGES[0], time(2, 30), time(7), 2 * DAY)  # begins in it
@example(CHANGES[0], time(2, 15), time(2, 45), 2 * DAY)  # never is, that day
@example(CHANGES[1], time(22), time(2, 30), 2 * DAY)  # ends in the hour that comes twice
@example(CHANGES[1], time(22), time(2), 2 * DAY)  # ends where it begins
@example(CHANGES[1], time(2, 30), time(7), 2 * DAY)  # begins in it
@example(CHANGES[8], time(0), time(7), 2 * DAY)  # begins in it, at midnight: the clock then shows yesterday again
@example(CHANGES[1], time(2, 40), time(2, 20), 2 * DAY)  # ends and begins again in it
def test_as_by_the_clock_on_the_wall(change: tuple[str, str], start: time, end: time, from_minute: int) -> None:
    if start == end:
        return
    first, shown = clock_of(*change)
    quiet = quiet_minutes(shown, start, end)
    hours = QuietHours(start, end, change[0])
    for minute in range(DAY + from_minute, 2 * DAY + from_minute, 7):
        now_us = int((first + minute * MINUTE).timestamp()) * 1_000_000
        expected = minute
        while quiet[expected] and expected < len(quiet) - 1:
            expected += 1
        if expected < len(quiet) - 1:
            found = hours.end_after(now_us)
            assert found == (now_us + (expected - minute) * 60_000_000 if expected > minute else 0), (
                shown[minute],
                shown[expected],
            )


def us(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp()) * 1_000_000


@pytest.mark.parametrize(("now", "end"), [
    ("2026-06-01T22:00:00+02:00", "2026-06-02T07:00:00+02:00"),
    ("2026-06-02T06:59:59+02:00", "2026-06-02T07:00:00+02:00"),
    ("2026-03-28T23:00:00+01:00", "2026-03-29T07:00:00+02:00"),  # the night is an hour shorter
    ("2026-10-24T23:00:00+02:00", "2026-10-25T07:00:00+01:00"),  # and longer
])  # fmt: skip
def test_a_night_in_berlin(now: str, end: str) -> None:
    assert QuietHours(time(22), time(7), "Europe/Berlin").end_after(us(now)) == us(end)


@pytest.mark.parametrize("now", ["2026-06-01T21:59:59+02:00", "2026-06-02T07:00:00+02:00", "2026-06-02T12:00:00+02:00"])
def test_the_rest_of_the_day(now: str) -> None:
    assert QuietHours(time(22), time(7), "Europe/Berlin").end_after(us(now)) == 0


def test_to_the_microsecond() -> None:
    hours = QuietHours(time(1, 2, 3, 4), time(4, 5, 6, 7), "Asia/Kathmandu")
    start = us("2026-05-01T01:02:03+05:45") + 4
    end = us("2026-05-01T04:05:06+05:45") + 7
    assert [hours.end_after(now) for now in (start - 1, start, end - 1, end)] == [0, end, end, 0]


def test_a_day_left_out() -> None:
    """Samoa went from the 29th to the 31st."""
    samoa = QuietHours(time(22), time(7), "Pacific/Apia")
    assert samoa.end_after(us("2011-12-29T23:00:00-10:00")) == us("2011-12-31T07:00:00+14:00")


@pytest.mark.parametrize(("start", "end", "tz", "problem"), [
    (time(22), time(22), "UTC", "QuietHours.end: must differ from start"),
    ("22:00", time(7), "UTC", "QuietHours.start: must be a datetime.time, not str"),
    (time(22), 7, "UTC", "QuietHours.end: must be a datetime.time, not int"),
    (time(22, tzinfo=UTC), time(7), "UTC", "QuietHours.start: must have no tzinfo"),
    (time(22), time(7), "Mars/Base", "QuietHours.tz: 'Mars/Base' is no time zone"),
    (time(22), time(7), "../etc/passwd", "is no time zone"),
    (time(22), time(7), "Europe", "is no time zone"),
    (time(22), time(7), "", "is no time zone"),
    (time(22), time(7), "Europe/\0", "is no time zone"),
    (time(22), time(7), None, "QuietHours.tz: must be the name of a time zone, not NoneType"),
])  # fmt: skip
def test_what_is_refused_and_why(start: time, end: time, tz: str, problem: str) -> None:
    with pytest.raises(InvalidPreferences, match=problem):
        QuietHours(start, end, tz)
