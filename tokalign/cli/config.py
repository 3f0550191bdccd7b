"""The user's defaults of options: `~/.config/tokalign.toml`, with the names that options have.

A name at the top holds for every command that has this option, one in the table of a command for
that command:

    target = "bielik"

    [decode]
    max-tokens = 512
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from tokalign.cli.conflicts import flag_of
from tokalign.errors import UsageError


def config_path() -> Path:
    """`$TOKALIGN_CONFIG`, else `tokalign.toml` in `$XDG_CONFIG_HOME` or in `~/.config`."""
    named = os.environ.get("TOKALIGN_CONFIG")
    folder = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    return Path(named) if named else folder / "tokalign.toml"


def read_config() -> dict[str, Any]:
    """The tables of the file; empty if there is none. Raises: UsageError for what is no TOML."""
    path = config_path()
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read ({error}); correct it or remove it") from error


def defaults(config: dict[str, Any], command: click.Command) -> dict[str, Any]:
    """The defaults of a command, by the names of click. Raises: UsageError for an option that the
    command does not have, in its own table."""
    options = {flag: option for option in command.params for flag in _names(option)}
    own = config.get(command.name or "", {})
    if unknown := next((name for name in own if name not in options), None):
        raise UsageError(
            f"{config_path()}: {command.name} has no option --{unknown}; "
            f"tokalign {command.name} --help-all lists them"
        )
    stated = {name: value for name, value in config.items() if name in options} | own
    return {str(options[name].name): _as_typed(value) for name, value in stated.items()}


def _names(option: click.Parameter) -> Iterator[str]:
    if isinstance(option, click.Option):
        yield from {flag_of(option)[2:], *(flag[2:] for flag in option.opts if flag[:2] == "--")}


def _as_typed(value: Any) -> Any:
    """Numbers as texts, which the types of options read."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return str(value) if is_number else value
