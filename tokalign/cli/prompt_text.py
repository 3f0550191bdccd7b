"""Texts on the command line, and the prompt: a text, `-` for stdin, or `@FILE`."""

from __future__ import annotations

import sys
from typing import Any

import click

from tokalign.arguments import as_path
from tokalign.cli.command import Option
from tokalign.cli.streams import reading_stdin
from tokalign.errors import UsageError


def read_text(_context: click.Context, option: click.Parameter, value: Any) -> Any:
    """One text or several, as typed. Raises: UsageError for one that is not UTF-8.

    Other bytes reach a command as halves of surrogate pairs, which no tokenizer takes.
    """
    try:
        "".join(value or "").encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"{option.opts[-1]} is not UTF-8; give it text in UTF-8") from error
    return value


PROMPT = Option(
    "-p --prompt",
    "The prompt; - reads stdin, @FILE a file, @@ begins one with an @.",
    required=True,
    metavar="TEXT",
    callback=read_text,
)


def read_prompt(given: str) -> str:
    """The text that `--prompt` stands for. Raises: UsageError for what cannot be read as UTF-8."""
    if given == "-":
        return _read_stdin()
    if not given.startswith("@"):
        return given
    if given.startswith("@@"):
        return given[1:]
    try:
        return as_path(given[1:]).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8"
        raise UsageError(
            f"the prompt file {given[1:]} cannot be read ({reason}); give a text file, or write "
            f"@{given} for a prompt that begins with an @"
        ) from error


def _read_stdin() -> str:
    try:
        with reading_stdin("give the prompt with --prompt TEXT"):
            text = sys.stdin.read()
        text.encode()
        return text
    except UnicodeError as error:
        raise UsageError("the prompt on stdin is not UTF-8; give it in UTF-8") from error
