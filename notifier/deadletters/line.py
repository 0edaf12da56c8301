"""A user's waiting rows stand in line: each has a place in time, one token apart. Pure: no I/O here.

A denial means that there are more due rows than tokens: tokens were lost (nobody replayed for a while), or all rows
fell due at once. What is due then moves to the places that are free. Simply moving it to the front would put two rows
into each place there, and so many too many would be claimed and denied in each period, for as long as the line lasts.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count, islice
from typing import NamedTuple


class Pace(NamedTuple):
    """From `first_us` on one row goes each `interval_us`. `user_id` "": all users of the channel are one line."""

    user_id: str
    channel: str
    first_us: int
    interval_us: int


def free_places(pace: Pace, taken_us: Iterable[int], number: int) -> list[int]:
    """The earliest `number` places that no row has which stays where it is, `taken_us`. Microseconds, ascending."""
    step_us = max(1, pace.interval_us)
    taken = {(time_us - pace.first_us) // step_us for time_us in taken_us}
    free = (place for place in count() if place not in taken)
    return [pace.first_us + place * step_us for place in islice(free, number)]
