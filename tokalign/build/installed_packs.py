"""Packs that lie about: which language is wanted, and compiling its pack when that is first needed.

The language is the one that is named, else that of the prompt, else that of the user's locale.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from math import log
from pathlib import Path

from tokalign.arguments import shown_path
from tokalign.atomic_file import require_writable
from tokalign.build.compile_pack import compile_pack
from tokalign.build.corpus import Progress
from tokalign.build.counting.word_list import words_of
from tokalign.errors import TokalignError
from tokalign.tables.bundle import OUTPUT_REMEDY, read_bundle, write_bundle
from tokalign.tables.finding import Note, find_packs, find_tables, table_folder
from tokalign.tables.pack import word_counts
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import TargetId

_MOST_WORDS = 200
_UNKNOWN = 1e-8  # the probability of a word that a pack does not know
_FEWEST_KNOWN = 0.5  # of the words of a text; of one in another language far fewer are known


def compile_missing(
    target: Tokenizer[TargetId],
    languages: Sequence[str],
    *,
    text: str = "",
    model_folder: Path | None = None,
    note: Note = lambda _: None,
) -> None:
    """Compile the packs of these languages that have no dictionary of this tokenizer yet.

    With no languages, that of `text`, a prompt, or else of the user (`_user_language`); none if
    $TOKALIGN_PACKS is "named". What is compiled is kept in the table folder, under the fingerprint
    of the tokenizer. `note` is told of each, and of packs that could be compiled; one that cannot
    be is left out.
    """
    every = dict[str, Path]()
    for path, header in find_packs(model_folder=model_folder, note=note):
        every.setdefault(header.language, path)
    known = find_tables("dictionary", target=target.fingerprint, model_folder=model_folder)
    packs = every.copy()
    for _, header in known if packs else ():
        packs.pop(header.language, None)
    wanted = set(languages)
    if packs and not wanted and os.environ.get("TOKALIGN_PACKS") != "named":
        wanted = {language_of_text(text, every) or _user_language()}
    if (others := packs.keys() - wanted) and not languages:
        note(
            f"packs -> of {', '.join(sorted(others))}: --language CODE compiles one for this "
            "tokenizer, once"
        )
    for language in packs.keys() & wanted:
        path = packs[language]
        note(f"{shown_path(path)} -> compiled for this tokenizer now, once; about a minute")

        @contextmanager
        def told(_total: int, label: str) -> Iterator[Progress]:
            note(f"  {label}")
            yield lambda _: None

        made = table_folder() / target.fingerprint[:16] / f"{language}.dictionary.tok"
        try:
            require_writable(made, parents=True, remedy=OUTPUT_REMEDY)
            write_bundle(made, compile_pack(target, read_bundle(path), stage=told))
        except TokalignError as error:
            note(f"{error}; the pack is not used")


def _user_language() -> str:
    """By the locale of the environment: pl for pl_PL.UTF-8."""
    names = (os.environ.get(name) for name in ("LC_ALL", "LC_MESSAGES", "LANG"))
    return next((name for name in names if name), "").partition(".")[0].partition("_")[0]


def language_of_text(text: str, packs: Mapping[str, Path]) -> str | None:
    """The language whose pack makes the words of a text most probable.

    packs: by language. Returns: None if no pack knows half of the words, or there are none.
    Cost: 0.1 s for the largest shipped pack.
    """
    words = [word.strip() for word in words_of(text.splitlines())]
    words = list(islice((word for word in words if any(map(str.isalpha, word))), _MOST_WORDS))
    spelled = {word: _spellings(word) for word in words}
    best: tuple[float, str] | None = None
    for language, path in packs.items():
        try:
            counts = word_counts(read_bundle(path), set().union(*spelled.values()))
        except TokalignError:
            continue  # who compiles it is told
        found = [sum(counts.get(one, 0) for one in spelled[word]) for word in words]
        if words and sum(map(bool, found)) >= _FEWEST_KNOWN * len(words):
            score = sum(log(count / counts[""] if count else _UNKNOWN) for count in found)
            best = max(best or (score, language), (score, language))
    return None if best is None else best[1]


def _spellings(word: str) -> set[str]:
    """How a word may stand in a pack: within a line or at its beginning, with and without capital
    letters."""
    return {before + one for before in " \n" for one in (word, word.lower(), word.capitalize())}
