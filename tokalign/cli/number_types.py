"""Numbers on the command line."""

from __future__ import annotations

import re
from math import isfinite
from typing import Any

import click

from tokalign.arguments import shown


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


class Numbers(click.ParamType[tuple[float, ...]]):
    """Numbers separated by commas, all finite and at least `least`; `_` may group digits."""

    name = "numbers"

    def __init__(self, number: type[int] | type[float], least: float) -> None:
        self._number, self._least = number, least

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[float, ...]:
        """See `click.ParamType`."""
        if isinstance(value, tuple):
            return value
        try:
            found = tuple(self._number(part.replace("_", "")) for part in str(value).split(","))
        except ValueError:
            self.fail(f"{value!r} is not a list of numbers such as 1,2,3", param, ctx)
        for number in found:
            if not isfinite(number) or number < self._least:
                self.fail(f"{number} is not a number of at least {self._least}", param, ctx)
        return found


class Size(click.ParamType[int]):
    """A number of bytes, which may end in K, M or G, each 1,024 of the one before."""

    name = "size"

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        """What the help shows in the place of a value."""
        return "SIZE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """See `click.ParamType`."""
        if isinstance(value, int):
            return value
        match = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]{1,15})?)([KMG]?)B?", str(value).upper())
        if match is None:
            self.fail(f"{shown(value)} is not a size such as 500M or 2G.", param, ctx)
        return int(float(match[1]) * (1 << {"": 0, "K": 10, "M": 20, "G": 30}[match[2]]))
