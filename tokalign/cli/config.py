"""The user's defaults of options: `~/.config/tokalign.toml`, with the names that options have.

A name at the top holds for every command that has this option, one in the table of a command for
that command:

    target = "bielik"

    [decode]
    max-tokens = 512
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from tokalign.cli.conflicts import flag_of, is_stated
from tokalign.errors import TokalignError, UsageError, shown
from tokalign.storage import as_path


def config_path() -> Path:
    """`$TOKALIGN_CONFIG`, else `tokalign.toml` in `config_folder`. Raises: as that function."""
    named = os.environ.get("TOKALIGN_CONFIG")
    return as_path(named) if named else config_folder() / "tokalign.toml"


def config_folder() -> Path:
    """`$XDG_CONFIG_HOME` or `~/.config`. Raises: RuntimeError for a user without a home."""
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")


def read_config() -> dict[str, Any]:
    """The tables of the file; empty if there is none. Raises: UsageError for what is no TOML, and
    for a file that is named and missing."""
    path = config_path()
    try:
        return tomllib.loads(path.read_text("utf-8-sig"))
    except (FileNotFoundError, NotADirectoryError) as error:
        if os.environ.get("TOKALIGN_CONFIG"):
            remedy = "make it, or unset TOKALIGN_CONFIG, which names it"
            raise UsageError(f"{path} is not there; {remedy}") from error
        return {}
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read ({error}); correct it or remove it") from error


_OF_ITS_OWN = {"train": ("draft", "draft-model"), "build": ("language",), "check": ("language",)}
"""Options that mean another thing than the same ones of commands that decode: the draft that
`train` teaches, and the language of a text."""


def defaults(
    config: dict[str, Any], command: click.Command, others: Callable[[], Iterable[click.Command]]
) -> dict[str, Any]:
    """The defaults of a command, by the names of click. others: all commands. Raises: UsageError
    for an option in the command's own table that it does not have, for a name that no command has
    outside of a table, and for a value that no option takes."""
    options, path = _options(command), config_path()
    own = config.get(command.name or "", {})
    if not isinstance(own, dict):
        raise UsageError(f"{path}: {command.name} is a command; write [{command.name}] for a table")
    if unknown := next((name for name in own if name not in options), None):
        page = "--help" if isinstance(command, click.Group) else "--help-all"
        raise UsageError(
            f"{path}: {command.name} has no option --{unknown}; "
            f"tokalign {command.name} {page} lists what it takes"
        )
    if other_names := config.keys() - options:
        known = {name for one in others() for name in (str(one.name), *_options(one))}
        if unknown := min(other_names - known, default=None):
            raise UsageError(
                f"{path}: no command takes {unknown} from it; correct the name or remove it"
            )
    names = options.keys() - _OF_ITS_OWN.get(command.name or "", ())
    stated = {name: value for name, value in config.items() if name in names} | own
    return {
        str(options[name].name): _as_typed(name, value, options[name])
        for name, value in stated.items()
    }


@contextmanager
def naming_defaults(context: click.Context) -> Iterator[None]:
    """An error of the body says which values of the file it is about."""
    try:
        yield
    except (TokalignError, click.UsageError) as error:
        message = error.format_message() if isinstance(error, click.UsageError) else str(error)
        if not (names := [*_stated(context, message)]):
            raise
        are = "is" if len(names) == 1 else "are"
        message = f"{message} ({', '.join(names)} {are} set in {config_path()})"
        if isinstance(error, click.UsageError):
            raise click.UsageError(message, context) from error
        error.args = (message,)
        raise


def _stated(context: click.Context, message: str) -> Iterator[str]:
    """The options that the file sets and that an error's message names, by flag or by value."""
    for option in context.command.params:
        name = option.name or ""
        if is_stated(context, option):
            value = context.lookup_default(name)
            texts = [flag_of(option), *(value if isinstance(value, list) else [value])]
            if any(
                re.search(rf"(?<![\w-]){re.escape(str(text))}(?![\w-])", message) for text in texts
            ):
                yield flag_of(option)[2:]


def _options(command: click.Command) -> dict[str, click.Option]:
    options = [one for one in command.params if isinstance(one, click.Option)]
    return {flag[2:]: one for one in options for flag in one.opts if flag[:2] == "--"}


def _as_typed(name: str, value: Any, option: click.Option) -> Any:
    """Numbers as texts, which the types of options read."""
    if option.multiple:
        return [_text(name, one) for one in (value if isinstance(value, list) else [value])]
    return value if option.is_flag and isinstance(value, bool) else _text(name, value)


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str | int | float):
        raise UsageError(f"{config_path()}: {name} takes a text or a number, not {shown(value)}")
    return str(value)
