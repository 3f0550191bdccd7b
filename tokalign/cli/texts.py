"""Texts and prompts that commands read: from files, or those of tokalign that suit a model."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from tokalign.build.text_files import TextFile
from tokalign.errors import CorpusError, UsageError
from tokalign.storage import ENGLISH, LANGUAGES, prompts
from tokalign.tables.dictionary import CHAT, CODE

if TYPE_CHECKING:
    from tokalign.evaluate.comparison import PromptBlock

_OWN_TURNS, _OWN_WINDOWS = ("instructions.txt", "questions.txt"), "encyclopedic.txt"


def read_texts(path: Path, *, field: str = "text", limit: int | None = None) -> list[str]:
    """The first `limit` texts of a file that are not blank. Raises: CorpusError."""
    texts = (text.removesuffix("\r") for text in TextFile(path, field=field).texts())
    chosen = list(islice((text for text in texts if text.strip()), limit))
    if not chosen:
        raise CorpusError("there is no text in it; give a file with text", path=str(path))
    return chosen


@dataclass(frozen=True, slots=True)
class PromptText:
    """A prompt as written in a file. window: a text to continue, not a user's message."""

    block: PromptBlock
    text: str
    window: bool


def read_prompts(
    files: Sequence[Path], *, field: str, limit: int | None, language: str | None = None
) -> list[PromptText]:
    """Every prompt of every file, in sets named after the files; without files, those of `language`
    that come along."""
    from tokalign.evaluate.comparison import PromptBlock

    sets = [(file, False) for file in files]
    if not files:
        folder = prompts(language or ENGLISH)
        sets = [(folder / name, name == _OWN_WINDOWS) for name in (_OWN_WINDOWS, *_OWN_TURNS)]
    if len({path.stem for path, _ in sets}) < len(sets):
        raise UsageError("two files of prompts have the same name; rename one")
    return [
        PromptText(
            PromptBlock(path.stem, number, sha256(text.encode()).hexdigest()[:8]), text, window
        )
        for path, window in sets
        for number, text in enumerate(read_texts(path, field=field, limit=limit), start=1)
    ]


_DECLARED = re.compile(r"^language:(.*(?:\n *- .*)*)", re.MULTILINE)


def language_of_prompts(dictionaries: Sequence[str]) -> str | None:
    """The first language in which prompts come, else the first of all; None if none is named."""
    named = [name for name in dictionaries if name not in (CODE, CHAT)]
    return next((name for name in named if name in LANGUAGES), next(iter(named), None))


def language_of_model(target: str, folder: Path | None) -> str:
    """The one that the model's page declares, else that of its dictionaries, first without samples
    and those of packs, which one English prompt adds; else English. A page or dictionaries in
    several of `LANGUAGES` do not tell. target: fingerprint of the tokenizer."""
    from tokalign.tables.finding import compiled_folder, find_tables

    tables = find_tables("dictionary", target=target, model_folder=folder)
    compiled = compiled_folder(target).name
    built = {
        header.language
        for path, header in tables
        if path.parent.name != compiled and not header.is_of_sample
    }
    for languages in (_declared(folder), built, {header.language for _, header in tables}):
        fitting = languages.intersection(LANGUAGES)
        if len(fitting) == 1:
            return fitting.pop()
    return ENGLISH


def _declared(folder: Path | None) -> set[str]:
    try:
        page = "" if folder is None else (folder / "README.md").read_text("utf-8")
    except (OSError, UnicodeDecodeError):
        return set()
    matter = page.split("\n---", 1)[0] if page.startswith("---") else ""
    found = _DECLARED.search(matter)
    return set(re.findall(r"[a-z]{2,3}", found[1])) if found else set()
