"""Commands whose options are data: what each option takes, needs and excludes.

    ALIGNMENT = Option("--alignment", "A table.", type=FILE, needs="--draft", excludes="--json")

    @click.command("decode", cls=Command, params=[TARGET, DRAFT, METHOD, ALIGNMENT])
    def command(*, alignment: Path | None, …) -> None:

An option that would change nothing beside the others is refused, not ignored, and before anything
is loaded. A condition is written as it is typed: "--draft" holds where that option was typed,
"--method copy" where it has this value, "--translation context:*" where it fits the pattern, "FILE"
where that argument was given. A condition on an option that a command does not have says nothing
there, so commands can share declarations.

An empty text is neither a path nor a name: it is what a shell makes of a variable that is not set.
As a path it would stand for the current folder.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from math import isfinite
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from tokalign.cli.output import asked
from tokalign.errors import UsageError, shown

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

    names: as in "-k --size", or as in "--loud/--silent"; a word without hyphens names the value.
    needs: conditions, of which one has to hold for the option to have an effect.
    excludes: conditions, of which none may hold. rare: shown by `--help-all` only.
    """

    def __init__(
        self,
        names: str,
        help: str,
        *,
        needs: str | Sequence[str] = (),
        excludes: str | Sequence[str] = (),
        rare: bool = False,
        **attributes: Any,
    ) -> None:
        super().__init__(names.split(), help=help, **attributes)
        if isinstance(self.type, click.types.IntParamType | click.types.FloatParamType):
            self.metavar = self.metavar or "N"
        self.needs = (needs,) if isinstance(needs, str) else tuple(needs)
        self.excludes = (excludes,) if isinstance(excludes, str) else tuple(excludes)
        self.rare = rare

    def get_help_extra(self, ctx: click.Context) -> Any:
        """See `click.Option`; ranges are left to the error of a number that is outside."""
        return {name: told for name, told in super().get_help_extra(ctx).items() if name != "range"}


class Command(click.Command):
    """A command that checks its options together.

    --json and --quiet, which all have, are for `output.asked` and not handed to its function.
    """

    def __init__(self, *given: Any, **attributes: Any) -> None:
        super().__init__(*given, **attributes)
        self.params += [JSON, QUIET]
        if any(is_rare(option) for option in self.params):
            self.params.append(HELP_ALL)

    def invoke(self, ctx: click.Context) -> Any:
        """See `click.Command`. Raises: UsageError for an option without effect."""
        for option in self.params:
            if isinstance(option, Option):
                _refuse_idle(ctx, option)
        asked.as_json, asked.quiet = ctx.params.pop("as_json"), ctx.params.pop("quiet")
        try:
            return super().invoke(ctx)
        finally:
            asked.as_json = asked.quiet = False

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        options = [one for one in self.get_params(ctx) if isinstance(one, click.Option)]
        shown = [one for one in options if ctx.meta.get(_ALL) or not is_rare(one)]
        records = [record for one in shown if (record := one.get_help_record(ctx)) is not None]
        with formatter.section("Options"):
            formatter.write_dl(records)


def is_rare(option: click.Parameter) -> bool:
    """Whether only --help-all shows it."""
    return isinstance(option, Option) and option.rare


def flag_of(option: click.Parameter) -> str:
    """An option as it is typed in full; an argument by its name in the help."""
    flags = [flag for flag in option.opts if flag.startswith("--")]
    return flags[0] if flags else option.human_readable_name.strip("[].")


def was_typed(context: click.Context, option: click.Parameter) -> bool:
    """Whether a value was typed for it, be it the default."""
    return context.get_parameter_source(option.name or "") is ParameterSource.COMMANDLINE


def _refuse_idle(context: click.Context, option: Option) -> None:
    """Raises: UsageError. An option that is off, or typed with its default, is let pass."""
    value = context.params.get(option.name or "")
    if not was_typed(context, option) or not value or value == option.default:
        return
    flag, needs = flag_of(option), [one for one in option.needs if _find(context, one)]
    if needs and not any(_holds(context, one) for one in needs):
        missing = " or ".join(_in_full(context, one) for one in needs)
        raise UsageError(
            f"{flag} does nothing without {missing}; give that too, or leave {flag} out"
        )
    for one in option.excludes:
        if _holds(context, one):
            raise UsageError(f"{flag} does nothing with {one}; leave one of them out")


def _find(context: click.Context, condition: str) -> click.Parameter | None:
    """The parameter of the command that a condition is about."""
    flag = condition.partition(" ")[0]
    return next((one for one in context.command.params if flag in (*one.opts, flag_of(one))), None)


def _holds(context: click.Context, condition: str) -> bool:
    option, wanted = _find(context, condition), condition.partition(" ")[2]
    if option is None:
        return False
    value = context.params.get(option.name or "")
    if wanted:
        return fnmatchcase(str(value), wanted)
    return was_typed(context, option) and not (value is None or value is False or value == ())


def _in_full(context: click.Context, condition: str) -> str:
    """A condition as it is typed, with what the option takes."""
    option = _find(context, condition)
    if not isinstance(option, Option) or option.is_flag or " " in condition:
        return condition
    return f"{condition} {option.make_metavar(context)}"


_ALL = "tokalign.all options"


def _show_all(context: click.Context, _option: click.Parameter, value: bool) -> None:
    if value:
        context.meta[_ALL] = True
        click.echo(context.get_help())
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
