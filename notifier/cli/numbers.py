"""Numbers that commands take."""

from __future__ import annotations

import math
from typing import Any

import click


class Number(click.FloatRange):
    """A float within a range. Click lets NaN through every range, since it compares as neither below nor above."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Fails, by Click's error, for what is no number within the range."""
        number = float(super().convert(value, param, ctx))
        if math.isnan(number):
            self.fail(f"{value!r} is not a number", param, ctx)
        return number
