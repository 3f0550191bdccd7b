"""What the values of options may be: paths, names, files to write, numbers, sizes.

An empty text is neither a path nor a name: it is what a shell makes of a variable that is not set.
As a path it would stand for the current folder.
"""

from __future__ import annotations

import re
from math import isfinite
from pathlib import Path
from typing import Any

import click

from tokalign.arguments import shown


class FilePath(click.Path):
    """click's type of a path, as `pathlib.Path`; an empty one is refused.

    kinds: the endings that a file to write may have, such as ".html". A file of another kind is
    never overwritten. shown: what the help calls it.
    """

    def __init__(self, *kinds: str, shown: str = "FILE") -> None:
        super().__init__(path_type=Path)
        self.kinds = kinds
        self._shown = shown if len(kinds) != 1 else f"{shown}{kinds[0]}"

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        """See `click.ParamType`."""
        return self._shown

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """See `click.ParamType`."""
        path: Any = super().convert(_given(self, value, param, ctx), param, ctx)
        if self.kinds and path.suffix not in self.kinds:
            endings, name = " or ".join(self.kinds), shown(str(path))
            self.fail(f"{name} does not end in {endings}; give another name.", param, ctx)
        return path


class Name(click.types.StringParamType):
    """A name that may be a path, such as that of a model; an empty one is refused."""

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        """See `click.ParamType`."""
        return "NAME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """See `click.ParamType`."""
        return super().convert(_given(self, value, param, ctx), param, ctx)


FILE, FOLDER, NAME = FilePath(), FilePath(shown="FOLDER"), Name()
PATH = FilePath(shown="PATH")


def _given(
    kind: click.ParamType[Any],
    value: Any,
    param: click.Parameter | None,
    ctx: click.Context | None,
) -> Any:
    if value == "":
        kind.fail("it is empty; give a name or a path.", param, ctx)
    return value


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


class Size(click.ParamType[int]):
    """A number of bytes, which may end in K, M or G, each 1,024 of the one before."""

    name = "size"

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        """See `click.ParamType`."""
        return "SIZE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """See `click.ParamType`."""
        if isinstance(value, int):
            return value
        match = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]{1,15})?)([KMG]?)B?", str(value).upper())
        if match is None:
            self.fail(f"{shown(value)} is not a size such as 500M or 2G.", param, ctx)
        return int(float(match[1]) * (1 << {"": 0, "K": 10, "M": 20, "G": 30}[match[2]]))


AT_LEAST_1, FROM_0 = click.IntRange(min=1), click.IntRange(min=0)
POSITIVE, SHARE = FiniteRange(0, min_open=True), FiniteRange(0, 1)
