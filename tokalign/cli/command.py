"""Commands whose options are data: what each option needs, what it excludes, whether it is rare.

    ALIGNMENT = Option("--alignment", "A table.", type=FILE, needs="--draft", excludes="--json")

    @click.command("decode", cls=Command, params=[TARGET, DRAFT, METHOD, ALIGNMENT])
    def command(*, alignment: Path | None, …) -> None:

An option that would change nothing beside the others is refused, not ignored, and before anything
is loaded. A condition is written as it is typed: "--draft" holds where that option was typed,
"--method copy" where it has this value, "--translation context:*" where it fits the pattern, "FILE"
where that argument was given. A condition on an option that a command does not have says nothing
there, so commands can share declarations.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

import click
from click.core import ParameterSource

from tokalign.errors import UsageError


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
    """A command that checks its options together, and has --json and --quiet like all others."""

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
        return super().invoke(ctx)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """See `click.Command`."""
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
