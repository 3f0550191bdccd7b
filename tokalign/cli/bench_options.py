"""What `tokalign bench` is given: options, and texts or prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any

import click

from tokalign.build.sources import require_regular
from tokalign.build.text_files import TextFile
from tokalign.cli.command import AT_LEAST_1, FROM_0, NAME, PATH, FiniteRange, Option
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
    with_conditions,
)
from tokalign.errors import CorpusError, UsageError
from tokalign.evaluate.measurements import Block
from tokalign.runtime.methods import (
    AUTO,
    METHODS,
    TRANSLATIONS,
    check_translation,
    read_draft_tokens,
)
from tokalign.runtime.options import DraftingOptions, take
from tokalign.storage import ENGLISH, prompts


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
    with_conditions(DRAFTER, excludes="--text"),
    Option("--text", "FILEs are texts that play the target's output.", is_flag=True),
    with_conditions(IGNORE_CHAT_TEMPLATE, needs="FILE", excludes="--text"),
    Option(
        "--prompt-tokens",
        "How much of each text is the prompt. Default: all; with --text, 12.",
        type=FROM_0,
        needs=("--text", "--ignore-chat-template"),
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
    Option(
        "-m --max-tokens",
        "Tokens to generate at most.",
        type=AT_LEAST_1,
        default=64,
        excludes="--text",
    ),
    Option(
        "--temp",
        "Sampling temperature; 0 is greedy.",
        type=FiniteRange(min=0),
        default=0.0,
        excludes="--text",
    ),
    Option(
        "--seed",
        "Seed of sampling.",
        type=click.IntRange(0, 0xFFFFFFFF),
        default=0,
        excludes="--text",
    ),
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
        needs="--text",
    ),
    click.Argument(["files"], nargs=-1, type=PATH, metavar="[FILE]..."),
)


_OWN_TURNS, _OWN_WINDOWS = ("instructions.txt", "questions.txt"), ("encyclopedic.txt",)


def read_texts(path: Path, *, field: str = "text", limit: int | None = None) -> list[str]:
    """The first `limit` texts of a file that are not blank, with the line breaks inside them.

    Raises: CorpusError for a file that is missing, not a regular file, empty or damaged, and for a
        line that cannot be read.
    """
    require_regular(path)
    texts = (text.removesuffix("\r") for text in TextFile(path, field=field).texts())
    found = list(islice((text for text in texts if text.strip()), limit))
    if not found:
        raise CorpusError("there is no text in it; give a file with text", path=str(path))
    return found


@dataclass(frozen=True, slots=True)
class PromptText:
    """A prompt as written in a file. window: a text to continue, not a user's message."""

    block: Block
    text: str
    window: bool


def read_prompts(
    turns: Sequence[Path],
    windows: Sequence[Path],
    *,
    field: str,
    limit: int | None,
    language: str | None = None,
) -> list[PromptText]:
    """Read every prompt of every file.

    If no file is given, those in `language` that come with tokalign, in English by default. A set
    is named after its file.
    Raises: UsageError, CorpusError.
    """
    if not turns and not windows:
        folder = prompts(language or ENGLISH)
        turns = [folder / name for name in _OWN_TURNS]
        windows = [folder / name for name in _OWN_WINDOWS]
    sets = [(path, True) for path in windows] + [(path, False) for path in turns]
    if len({path.stem for path, _ in sets}) < len(sets):
        raise UsageError("two files of prompts have the same name; rename one")
    texts = {path: read_texts(path, field=field, limit=limit) for path, _ in sets}
    return [
        PromptText(Block(path.stem, number, _digest(text)), text, window)
        for path, window in sets
        for number, text in enumerate(texts[path], start=1)
    ]


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()[:8]
