"""Types of options, and commands that check their options together (`conflicts.py`).

Rare options are hidden: `--help-all` shows them. An empty text, which a shell makes of a variable
that is not set, is neither a path nor a name.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from copy import copy
from functools import partial
from math import isfinite
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from tokalign.cli.config import naming_defaults
from tokalign.cli.conflicts import flag_of, refuse_idle, was_typed
from tokalign.cli.output import flags, text_or_file
from tokalign.cli.report import require_plots
from tokalign.errors import UsageError, is_text, require, shown
from tokalign.names.aliases import aliases, check_name
from tokalign.runtime.options import as_count
from tokalign.storage import as_path, is_replaceable, parse_json, require_writable

_EMPTY = "it is empty; give a name or a path."


class FilePath(click.Path):
    """click's type of a path, as `pathlib.Path`. kind: the ending that a file to write must have;
    that it can be written is checked before any work. mark: what its first lines hold, else it is
    of another kind. shown: what the help calls it."""

    def __init__(self, kind: str = "", *, mark: str = "", shown: str = "FILE") -> None:
        super().__init__(path_type=Path)
        self.kind, self._mark, self._shown = kind, mark, shown + kind

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        return self._shown

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            self.fail(_EMPTY, param, ctx)
        # A shell leaves the ~ of --output=~/new as it is, and a default has seen none.
        path: Any = super().convert(as_path(value), param, ctx)
        if self.kind:
            name = shown(str(path))
            if path.suffix != self.kind:
                self.fail(f"{name} does not end in {self.kind}; give another name.", param, ctx)
            if not is_replaceable(path, self._mark):
                self.fail(f"{name} is there, with other content; give another name.", param, ctx)
            require_writable(path)
            if self.kind == ".html":
                require_plots()
        return path


class ReadType(click.ParamType[Any]):
    """A value that a function reads of the option's name and its text, or raises UsageError."""

    def __init__(self, name: str, read: Callable[[str, str], Any]) -> None:
        self.name, self._read = name, read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        flag = "" if param is None else flag_of(param)
        return self._read(flag, value) if isinstance(value, str) else value


def _read_name(flag: str, text: str) -> str:
    if not text:
        raise UsageError(f"{flag}: {_EMPTY}")
    return text


def _read_model(flag: str, text: str) -> str:
    return check_name(_read_name(flag, text))


class ModelName(ReadType):
    """A model's name; a shell completes aliases and paths."""

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        fitting = [name for name in aliases() if name.startswith(incomplete.lower())]
        return [*map(CompletionItem, fitting), CompletionItem(incomplete, type="file")]


def _read_size(flag: str, text: str) -> int:
    """A number of bytes, which may end in K, M or G, each 1,024 of the one before."""
    match = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]{1,15})?)([KMG]?)B?", text.upper())
    if match is None:
        raise UsageError(f"{flag} {shown(text)} is not a size such as 500M or 2G")
    return int(float(match[1]) * (1 << {"": 0, "K": 10, "M": 20, "G": 30}[match[2]]))


def _read_text(flag: str, text: str) -> str:
    require(is_text(text), f"{flag} is not UTF-8; give it text in UTF-8")
    return text


def _read_text_or_file(flag: str, text: str) -> str:
    return text_or_file(_read_text(flag, text), f"the {flag} file")


def _read_stop(flag: str, text: str) -> str:
    require(bool(text), f"{flag} is empty; give at least one character")
    return _read_text(flag, text)


def _read_max_tokens(flag: str, text: str) -> int | None:
    """As in mlx-lm, -1 stands for as many as the context holds, here None."""
    if text == "-1":
        return None
    if not (count := as_count(text)):
        raise UsageError(f"{flag} {shown(text)} is not a count; give one, or -1 for no limit")
    return count


def _read_variables(flag: str, text: str) -> dict[str, object]:
    from tokalign.runtime.chat import RESERVED

    try:
        variables = parse_json(text)
    except ValueError:
        variables = None
    if not isinstance(variables, dict):
        raise UsageError(
            f"{flag} {text} is not a JSON object; give one such as "
            """'{"enable_thinking": false}'"""
        )
    if reserved := RESERVED & variables.keys():
        raise UsageError(
            f"{flag} may not have {', '.join(sorted(reserved))}, which no template reads; "
            "give variables of the template"
        )
    return variables


FILE, FOLDER, PATH = FilePath(), FilePath(shown="FOLDER"), FilePath(shown="PATH")
NAME, MODEL_NAME = ReadType("name", _read_name), ModelName("name", _read_model)
MODEL_WORD = ModelName("name", lambda _flag, word: word)  # may be one, and is not checked yet
TEXT, STOP_TEXT = ReadType("text", _read_text), ReadType("text", _read_stop)
TEXT_OR_FILE = ReadType("text", _read_text_or_file)
SIZE = ReadType("size", _read_size)
MAX_TOKENS, VARIABLES = ReadType("n", _read_max_tokens), ReadType("json", _read_variables)


MOST = 1 << 53  # of a count, which JSON and tables can hold
AT_LEAST_1, FROM_0 = click.IntRange(1, MOST), click.IntRange(0, MOST)
POSITIVE = click.FloatRange(0, min_open=True)


class Option(click.Option):
    """An option. names: as in "-k --size" or "--loud/--silent"; a bare word names the value. typed:
    its type, and then its default."""

    def __init__(self, names: str, help: str, *typed: Any, **attributes: Any) -> None:
        attributes.update(zip(("type", "default"), typed, strict=False))
        super().__init__(names.split(), help=help, **attributes)
        if isinstance(self.type, click.types.IntParamType | click.types.FloatParamType):
            self.metavar = self.metavar or "N"
            is_whole = isinstance(self.type, click.types.IntParamType)
            self.type.name = "whole number" if is_whole else "number"  # not click's "float range"

    def type_cast_value(self, ctx: click.Context, value: Any) -> Any:
        """A number is finite: click's ranges let NaN through, and infinity where they are open."""
        value = super().type_cast_value(ctx, value)
        if isinstance(value, float) and not isfinite(value):
            raise click.BadParameter(f"{value} is not a finite number.", ctx, self)
        return value

    def get_help_extra(self, ctx: click.Context) -> Any:
        """Ranges are left to the error of a number that is outside."""
        return {name: text for name, text in super().get_help_extra(ctx).items() if name != "range"}


flag, several = partial(Option, is_flag=True), partial(Option, multiple=True)
rare = partial(Option, hidden=True)


class Words(click.Argument):
    """What may be typed without options: the target's name, and for `decode` the prompt."""

    def __init__(self, shown: str) -> None:
        super().__init__(["words"], nargs=-1, metavar=shown, type=MODEL_WORD)


def _take_words(ctx: click.Context) -> None:
    """Give the words that were typed to the target and the prompt, as if typed with their options.
    A single word is the prompt if the target is known. Raises: UsageError for further words."""
    words = [*ctx.params.pop("words", ())]
    options = {flag_of(option): option for option in ctx.command.params}
    named = (options[flag] for flag in ("--target", "--prompt") if flag in options)
    places = [option for option in named if not was_typed(ctx, option)]
    if len(words) < len(places):  # a default, which the user's file may state, stays
        places = [option for option in places if ctx.params.get(option.name or "") is None]
    for option, word in zip(places, words, strict=False):
        assert option.name is not None
        ctx.params[option.name] = option.type.convert(word, option, ctx)
        ctx.set_parameter_source(option.name, ParameterSource.COMMANDLINE)
    if more := words[len(places) :]:
        alone = f"{ctx.info_name} takes a model's name alone; tokalign decode takes a prompt, too"
        remedy = "put a prompt in quotation marks" if "--prompt" in options else alone
        raise UsageError(f"{shown(more[0])} is one word too many; {remedy}")


class Command(click.Command):
    """A command that checks its options together; --json and --quiet, which all have, are for
    `output.flags`."""

    def __init__(self, *given: Any, **attributes: Any) -> None:
        super().__init__(*given, **attributes)
        has_rare = any(getattr(option, "hidden", False) for option in self.params)
        self.params += [JSON, QUIET, HELP_ALL[has_rare]]

    def get_short_help_str(self, limit: int = 1000) -> str:
        """The whole first sentence, which click would cut to one line."""
        return super().get_short_help_str(1000)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        with naming_defaults(ctx):
            return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Raises: UsageError for an option without effect."""
        with naming_defaults(ctx):
            _take_words(ctx)
            for option in self.params:
                refuse_idle(ctx, option)
            flags.as_json, flags.quiet = ctx.params.pop("as_json"), ctx.params.pop("quiet")
            if flags.quiet:  # the Hub's library reads it when it is imported
                os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
            return super().invoke(ctx)


def _show_all(context: click.Context, _option: click.Parameter, value: bool) -> None:
    if value:
        command = copy(context.command)
        command.params = [copy(param) for param in command.params]
        for option in command.params:
            option.hidden = False  # type: ignore[attr-defined]
        click.echo(command.get_help(context))
        context.exit()


JSON = Option("--json as_json", "Print one JSON object.", is_flag=True)
QUIET = Option("--quiet", "No progress and no notes on stderr.", is_flag=True)
HELP_ALL = tuple(  # it is not shown where nothing is rare
    Option(
        "--help-all",
        "Show the rare options too.",
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=_show_all,
        hidden=hidden,
    )
    for hidden in (True, False)
)
