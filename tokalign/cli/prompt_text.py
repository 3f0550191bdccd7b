"""The prompt on the command line: a text, `-` for stdin, or `@FILE`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import click
from click.decorators import FC

from tokalign.errors import UsageError

HELP = "The prompt; - reads it from stdin, @FILE from a file, @@ begins one with an @."


def prompt_option(*, required: bool = True) -> Callable[[FC], FC]:
    """`--prompt`, as typed. Read it with `read_prompt` when the models have been found."""
    return click.option("-p", "--prompt", required=required, help=HELP)


def read_prompt(given: str) -> str:
    """The text that `--prompt` stands for. Raises: UsageError for what cannot be read as UTF-8."""
    if given == "-":
        return sys.stdin.read()
    if not given.startswith("@"):
        return given
    if given.startswith("@@"):
        return given[1:]
    try:
        return Path(given[1:]).expanduser().read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8"
        raise UsageError(
            f"the prompt file {given[1:]} cannot be read ({reason}); give a text file, or write "
            f"@{given} for a prompt that begins with an @"
        ) from error
