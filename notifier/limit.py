"""The notation of limits: `2/s burst 10`, `30/min`, `50/day burst 10`, `off`, `0/s`."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Self

_PERIOD_US = {"s": 10**6, "min": 60 * 10**6, "hour": 3_600 * 10**6, "day": 86_400 * 10**6}
_ALIASES = {"sec": "s", "second": "s", "m": "min", "minute": "min", "h": "hour", "d": "day"}
_FORM = re.compile(
    r"(?P<count>\d{1,12}(?:\.\d{1,15})?)\s*/\s*(?P<period>[a-z]+)(?:\s+burst\s+(?P<burst>\d{1,18}))?", re.ASCII
)

LONGEST = 100  # characters of the notation
MIN_EMISSION_US = 40  # 25,000/s
MAX_EMISSION_US = 86_400 * 10**6  # 1/day
MAX_DRAIN_US = 3_652 * 86_400 * 10**6  # B/R, ten years: now + this stays far below 2**53, exact in Lua


@dataclass(frozen=True, slots=True)
class Limit:
    """A rate and a burst. `emission_us` is the time one token takes, in whole microseconds, rounded up.

    Rounding up never lets more through than was written. `emission_us == 0`: no limit; `burst == 0`: none pass.
    """

    emission_us: int
    burst: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read the notation. Raises ValueError with the reason and a form that would do; TypeError for no str."""
        if not isinstance(text, str):
            raise TypeError(f"a limit is written as a str, e.g. '2/s burst 10', not as {type(text).__name__}")
        if len(text) > LONGEST:
            raise ValueError(f"a limit of {len(text):,} characters; write e.g. '2/s burst 10'")
        words = " ".join(text.split()).lower()
        if words == "off":
            return cls(0, 1)
        match = _FORM.fullmatch(words)
        if match is None:
            raise ValueError(
                f"{text!r} is not a limit; write e.g. '2/s burst 10', '30/min', '50/day burst 10' or 'off'"
            )
        period = _ALIASES.get(match["period"], match["period"])
        if period not in _PERIOD_US:
            raise ValueError(f"{text!r}: unknown period {match['period']!r}; use s, min, hour or day")
        count = Fraction(match["count"])
        if count == 0:
            if match["burst"]:
                raise ValueError(f"{text!r}: a rate of 0 lets none pass and has no burst; write '0/{period}'")
            return cls(MAX_EMISSION_US, 0)
        burst = int(match["burst"]) if match["burst"] else max(1, math.floor(count))
        if burst == 0:
            raise ValueError(f"{text!r}: burst 0 would let none pass; write burst 1 or more, or '0/s'")
        exact_us = _PERIOD_US[period] / count
        if exact_us < MIN_EMISSION_US:
            raise ValueError(f"{text!r}: at most 25000/s for one key; use 'off' for no limit")
        if exact_us > MAX_EMISSION_US:
            raise ValueError(f"{text!r}: at least 1/day")
        limit = cls(math.ceil(exact_us), burst)
        if limit.emission_us * burst > MAX_DRAIN_US:
            raise ValueError(f"{text!r}: burst / rate is over ten years; use a smaller burst")
        return limit

    @property
    def off(self) -> bool:
        """No limit at all."""
        return self.emission_us == 0

    @property
    def blocks(self) -> bool:
        """None pass."""
        return self.burst == 0

    @property
    def rate(self) -> float:
        """Tokens per second (inf when off, 0 when it blocks)."""
        return math.inf if self.off else 0.0 if self.blocks else 10**6 / self.emission_us

    @property
    def tolerance_us(self) -> int:
        """Time to refill from empty to full: burst * emission_us."""
        return self.emission_us * self.burst

    def __str__(self) -> str:
        if self.off:
            return "off"
        if self.blocks:
            return "0/s"
        for period, length_us in _PERIOD_US.items():
            if math.ceil(Fraction(length_us, count := max(1, round(length_us / self.emission_us)))) == self.emission_us:
                return f"{count}/{period} burst {self.burst}"
        scaled = -(-_PERIOD_US["day"] * 10**15 // self.emission_us)  # 15 decimals tell any two emissions apart
        return f"{scaled // 10**15}.{scaled % 10**15:015d}/day burst {self.burst}"
