"""Hours of the day in which a user is not to be disturbed, by the clock on the user's wall. Pure: no I/O, no clock.

They last from when the clock first shows `start` until the time before `end` has been shown for the last time. Where
the clock is set forward over one of the two, that one is the moment of the change. Where it is set back it shows an
hour twice: all that lies between the first and the last quiet minute of that hour is quiet.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

from notifier.errors import InvalidPreferences

_DAY = timedelta(days=1)
_SECOND = timedelta(seconds=1)
_TICK = timedelta(microseconds=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class QuietHours:
    """From `start` to `end`, past midnight where `end` is the earlier one. Raises InvalidPreferences.

    `tz` is a name of the time zone database: "Europe/Berlin".
    """

    start: time
    end: time
    tz: str
    _zone: ZoneInfo = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in ("start", "end"):
            moment = getattr(self, name)
            if not isinstance(moment, time):
                raise InvalidPreferences(f"QuietHours.{name}", f"must be a datetime.time, not {type(moment).__name__}")
            if moment.tzinfo is not None:
                raise InvalidPreferences(f"QuietHours.{name}", "must have no tzinfo: give the zone as tz, by name")
        if self.start == self.end:
            raise InvalidPreferences("QuietHours.end", "must differ from start; for no quiet hours give None")
        object.__setattr__(self, "_zone", _zone(self.tz))

    def end_after(self, now_us: int) -> int:
        """When the quiet that holds at `now_us` ends; 0 if none holds. Microseconds since the epoch."""
        now = _EPOCH + timedelta(microseconds=now_us)
        end = now
        for _ in range(3):  # one may begin before the last has ended, in the hour that the clock shows twice
            if (later := self._end_after(end)) == end:
                break
            end = later
        return (end - _EPOCH) // _TICK if end > now else 0

    def _end_after(self, now: datetime) -> datetime:
        today = now.astimezone(self._zone).date()
        for day in (today - _DAY, today, today + _DAY):  # set back at midnight, the clock may show yesterday again
            end = self._instant(day + _DAY if self.end < self.start else day, self.end, last=True)
            if self._instant(day, self.start, last=False) <= now < end:
                return end
        return now

    def _instant(self, day: date, clock: time, *, last: bool) -> datetime:
        """When the clock first shows this, or is about to for the last time; where it never does, when it is set on."""
        local = datetime.combine(day, clock) - _TICK * last
        instant = local.replace(tzinfo=self._zone, fold=int(last)).astimezone(UTC)
        if instant.astimezone(self._zone).replace(tzinfo=None, fold=0) == local:
            return instant + _TICK * last
        # By the offset after the change it lies before the change, by the one before it after (PEP 495).
        before = local.replace(tzinfo=self._zone, fold=1).astimezone(UTC)
        after = local.replace(tzinfo=self._zone, fold=0).astimezone(UTC)
        offset = before.astimezone(self._zone).utcoffset()
        before, after = before.replace(microsecond=0), after.replace(microsecond=0) + _SECOND
        while after - before > _SECOND:
            middle = before + (after - before) // (2 * _SECOND) * _SECOND
            if middle.astimezone(self._zone).utcoffset() == offset:
                before = middle
            else:
                after = middle
        return after


def _zone(name: object) -> ZoneInfo:
    if not isinstance(name, str):
        raise InvalidPreferences("QuietHours.tz", f"must be the name of a time zone, not {type(name).__name__}")
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise InvalidPreferences(
            "QuietHours.tz", f'{name!r:.80} is no time zone; give one like "Europe/Berlin"'
        ) from None
