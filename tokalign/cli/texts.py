"""Texts and prompts to measure with: read from files, or the prompts that come with tokalign."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import islice
from pathlib import Path

from tokalign.build.sources import require_regular
from tokalign.build.text_files import TextFile
from tokalign.errors import CorpusError, UsageError
from tokalign.evaluate.measurements import Block
from tokalign.shipped import POLISH, prompts

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
    repeats: int = 1,
    language: str = POLISH,
) -> list[PromptText]:
    """Read every prompt of every file, once per repeat.

    If no file is given, those in `language` that come with tokalign. A set is named after its file.
    Raises: UsageError, CorpusError.
    """
    if not turns and not windows:
        folder = prompts(language)
        turns = [folder / name for name in _OWN_TURNS]
        windows = [folder / name for name in _OWN_WINDOWS]
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
