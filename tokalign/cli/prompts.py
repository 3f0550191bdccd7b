"""Prompts to measure with: sets read from files, or the ones that come with tokalign."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from tokalign.cli.texts import read_texts
from tokalign.errors import UsageError
from tokalign.evaluate.measurements import Block
from tokalign.shipped import PROMPTS, shipped

_OWN_TURNS, _OWN_WINDOWS = ("instructions.txt", "questions.txt"), ("encyclopedic.txt",)


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
    repeats: int = 1,
) -> list[PromptText]:
    """Read every prompt of every file, once per repeat; tokalign's own prompts if no file is given.

    A set is named after its file. Raises: UsageError, CorpusError.
    """
    if not turns and not windows:
        turns = [shipped(PROMPTS) / name for name in _OWN_TURNS]
        windows = [shipped(PROMPTS) / name for name in _OWN_WINDOWS]
    sets = [(path, True) for path in windows] + [(path, False) for path in turns]
    if len({path.stem for path, _ in sets}) < len(sets):
        raise UsageError("two files of prompts have the same name; rename one")
    texts = {path: read_texts(path, field=field, limit=limit) for path, _ in sets}
    return [
        PromptText(Block(path.stem, number, _digest(text), repeat), text, window)
        for repeat in range(1, repeats + 1)
        for path, window in sets
        for number, text in enumerate(texts[path], start=1)
    ]


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()[:8]
