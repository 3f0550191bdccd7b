"""Paths and names on the command line.

An empty text is neither: it is what a shell makes of a variable that is not set. As a path it would
stand for the current folder.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click


class FilePath(click.Path):
    """click's type of a path, as `pathlib.Path`; an empty one is refused."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """See `click.ParamType`."""
        return super().convert(_given(self, value, param, ctx), param, ctx)


class Name(click.types.StringParamType):
    """A name that may be a path, such as that of a model; an empty one is refused."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """See `click.ParamType`."""
        return super().convert(_given(self, value, param, ctx), param, ctx)


PATH, NAME = FilePath(), Name()


def _given(
    kind: click.ParamType[Any],
    value: Any,
    param: click.Parameter | None,
    ctx: click.Context | None,
) -> Any:
    if value == "":
        kind.fail("it is empty; give a name or a path.", param, ctx)
    return value
