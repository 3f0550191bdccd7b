"""Numbers on the command line."""

from __future__ import annotations

from math import isfinite
from typing import Any

import click


class FiniteRange(click.FloatRange):
    """click's range of numbers, without the two that are in none: NaN and infinity.

    click compares a number with the bounds, and NaN is neither below nor above any.
    """

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """See `click.ParamType`."""
        number = float(super().convert(value, param, ctx))
        if not isfinite(number):
            self.fail(f"{number} is not a finite number.", param, ctx)
        return number
