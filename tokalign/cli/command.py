"""Types of options, and commands that check their options together.

    ALIGNMENT = Option("--alignment", "A table.", FILE, hidden=True)

    @click.command("decode", cls=Command, params=[TARGET, DRAFT, METHOD, ALIGNMENT])
    def command(*, alignment: Path | None, …) -> None:

Which options go together is in `conflicts.py`. Rare options are hidden: `--help-all` shows them.
An empty text is neither a path nor a name: it is what a shell makes of a variable that is not set.
As a path it would stand for the current folder.
"""

from __future__ import annotations

import re
from copy import copy
from math import isfinite
from pathlib import Path
from typing import Any

import click

from tokalign.cli.conflicts import refuse_idle
from tokalign.cli.output import flags
from tokalign.errors import shown

_EMPTY = "it is empty; give a name or a path."


class FilePath(click.Path):
    """click's type of a path, as `pathlib.Path`; an empty one is refused.

    kind: the ending that a file to write has to have, such as ".html". A file of another kind is
    never overwritten. shown: what the help calls it.
    """

    def __init__(self, kind: str = "", *, shown: str = "FILE") -> None:
        super().__init__(path_type=Path)
        self.kind, self._shown = kind, shown + kind

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        return self._shown

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            self.fail(_EMPTY, param, ctx)
        path: Any = super().convert(value, param, ctx)
        if self.kind and path.suffix != self.kind:
            name = shown(str(path))
            self.fail(f"{name} does not end in {self.kind}; give another name.", param, ctx)
        return path


class Name(click.types.StringParamType):
    """A name that may be a path, such as that of a model; an empty one is refused."""

    name = "name"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            self.fail(_EMPTY, param, ctx)
        return super().convert(value, param, ctx)


FILE, FOLDER, NAME = FilePath(), FilePath(shown="FOLDER"), Name()
PATH = FilePath(shown="PATH")


class FiniteRange(click.FloatRange):
    """click's range of numbers, without the two that are in none: NaN and infinity.

    click compares a number with the bounds, and NaN is neither below nor above any.
    """

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        number = float(super().convert(value, param, ctx))
        if not isfinite(number):
            self.fail(f"{number} is not a finite number.", param, ctx)
        return number


class Size(click.ParamType[int]):
    """A number of bytes, which may end in K, M or G, each 1,024 of the one before."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        match = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]{1,15})?)([KMG]?)B?", str(value).upper())
        if match is None:
            self.fail(f"{shown(value)} is not a size such as 500M or 2G.", param, ctx)
        return int(float(match[1]) * (1 << {"": 0, "K": 10, "M": 20, "G": 30}[match[2]]))


AT_LEAST_1, FROM_0 = click.IntRange(min=1), click.IntRange(min=0)
POSITIVE, SHARE = FiniteRange(0, min_open=True), FiniteRange(0, 1)


class Option(click.Option):
    """An option of a command.

    names: as in "-k --size" or "--loud/--silent"; a bare word names the value.
    typed: its type, and then its default, if it has them.
    """

    def __init__(self, names: str, help: str, *typed: Any, **attributes: Any) -> None:
        attributes.update(zip(("type", "default"), typed, strict=False))
        super().__init__(names.split(), help=help, **attributes)
        if isinstance(self.type, click.types.IntParamType | click.types.FloatParamType):
            self.metavar = self.metavar or "N"

    def get_help_extra(self, ctx: click.Context) -> Any:
        """See `click.Option`; ranges are left to the error of a number that is outside."""
        return {name: text for name, text in super().get_help_extra(ctx).items() if name != "range"}


class Command(click.Command):
    """A command that checks its options together.

    --json and --quiet, which all have, are for `output.flags` and not handed to its function.
    """

    def __init__(self, *given: Any, **attributes: Any) -> None:
        super().__init__(*given, **attributes)
        self.params += [JSON, QUIET]
        if any(isinstance(one, click.Option) and one.hidden for one in self.params):
            self.params.append(HELP_ALL)

    def invoke(self, ctx: click.Context) -> Any:
        """See `click.Command`. Raises: UsageError for an option without effect."""
        for option in self.params:
            refuse_idle(ctx, option)
        flags.as_json, flags.quiet = ctx.params.pop("as_json"), ctx.params.pop("quiet")
        try:
            return super().invoke(ctx)
        finally:
            flags.as_json = flags.quiet = False


def _show_all(context: click.Context, _option: click.Parameter, value: bool) -> None:
    if value:
        command = copy(context.command)
        command.params = [copy(one) for one in command.params]
        for option in command.params:
            option.hidden = False  # type: ignore[attr-defined]
        click.echo(command.get_help(context))
        context.exit()


JSON = Option("--json as_json", "Print one JSON object.", is_flag=True)
QUIET = Option("--quiet", "No progress and no notes on stderr.", is_flag=True)
HELP_ALL = Option(
    "--help-all",
    "Show the rare options too.",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_all,
)
