"""What `tokalign bench` is given: options, and texts or prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from tokalign.cli.command import AT_LEAST_1, FROM_0, NAME, PATH, Option
from tokalign.cli.options import (
    ALIGNMENT,
    DICTIONARY,
    DRAFT,
    DRAFTER,
    DTYPE,
    FIELD,
    IGNORE_CHAT_TEMPLATE,
    LANGUAGE,
    LIMIT,
    TEMP,
)
from tokalign.errors import UsageError
from tokalign.runtime.options import (
    AUTO,
    METHODS,
    TRANSLATIONS,
    DraftingOptions,
    check_translation,
    read_draft_tokens,
    take,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The command line, as typed."""

    target: str
    draft: str | None
    files: tuple[Path, ...]
    text: bool
    ignore_chat_template: bool
    prompt_tokens: int | None
    field: str
    limit: int | None
    methods: tuple[str, ...]
    lengths: Sequence[int | str]
    max_tokens: int
    temp: float
    seed: int
    dtype: str | None
    drafting: DraftingOptions
    curves: tuple[str, ...]


def read_options(given: dict[str, Any]) -> Options:
    """The command line from what click has parsed.

    Raises: UsageError for a condition that there is not, or not without a draft model.
    """
    # The hybrid uses every source; each condition has a method of its own.
    options = Options(drafting=replace(take(DraftingOptions, given), method="hybrid"), **given)
    for name in options.methods:
        try:
            check_translation(None if name in METHODS else name)
        except UsageError as error:
            raise UsageError(
                f"there is no condition {name!r}; choose a method ({', '.join(METHODS)}) or a "
                f"translation ({', '.join(TRANSLATIONS)})"
            ) from error
        if options.draft is None and (name == "draft" or name not in METHODS):
            raise UsageError(f"--method {name} needs a draft model; give --draft NAME")
    return options


def _read_lengths(_context: click.Context, _option: click.Parameter, value: str) -> list[int | str]:
    """Draft lengths in the order typed; one of them may be "auto". Raises: UsageError."""
    lengths = [read_draft_tokens(part.strip()) for part in value.split(",")]
    return list(dict.fromkeys(AUTO if k is None else k for k in lengths))


OPTIONS = (
    Option(
        "--target --model target",
        "The model; with --text, its tokenizer is enough.",
        type=NAME,
        required=True,
    ),
    DRAFT,
    DRAFTER,
    Option("--text", "FILEs are texts that play the target's output.", is_flag=True),
    IGNORE_CHAT_TEMPLATE,
    Option(
        "--prompt-tokens",
        "How much of each text is the prompt. Default: all; with --text, 12.",
        type=FROM_0,
    ),
    FIELD,
    LIMIT,
    Option(
        "--method methods",
        "Measure only this method or translation; repeatable.",
        multiple=True,
        metavar="NAME",
    ),
    Option(
        "-k --num-draft-tokens lengths",
        "Tokens drafted in a round: numbers, auto, or both.",
        default="2,4",
        callback=_read_lengths,
        metavar="N,N,...",
    ),
    Option("-m --max-tokens", "Tokens to generate at most.", type=AT_LEAST_1, default=64),
    TEMP,
    Option("--seed", "Seed of sampling.", type=click.IntRange(0, 0xFFFFFFFF), default=0),
    DTYPE,
    DICTIONARY,
    LANGUAGE,
    ALIGNMENT,
    Option(
        "--cost curves",
        "Also estimate the speed under this shipped or measured curve; repeatable.",
        type=NAME,
        multiple=True,
        metavar="CURVE",
    ),
    click.Argument(["files"], nargs=-1, type=PATH, metavar="[FILE]..."),
)
