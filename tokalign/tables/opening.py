"""Opening the tables that a run needs: named by the user, found by fingerprint, or computed.

Every byte of a table is checked before it is used: that it arrived as it was made, and that all ids
in it are those of the tokenizers. A table that was found and cannot be used is skipped with a note;
one that was named is an error.
To read on: `finding` for where tables are looked for, `bundle` for the file format.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

from tokalign.arguments import shown, shown_path
from tokalign.errors import BundleError, MissingAssetError, UsageError
from tokalign.tables.alignment import Alignment
from tokalign.tables.backoff import KIND as BACKOFF
from tokalign.tables.backoff import BackoffTable
from tokalign.tables.bundle import Bundle, open_bundle, require_fingerprint
from tokalign.tables.dictionary import Dictionary
from tokalign.tables.dictspec import KIND as DICTSPEC
from tokalign.tables.dictspec import DictSpecTable
from tokalign.tables.finding import Note, find_tables
from tokalign.tables.header import HeaderError, read_parameter
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import DraftId, TargetId, Vocabulary

T = TypeVar("T")

FilePath = str | os.PathLike[str]

_REMEDY = "rebuild it with: tokalign build"

Align = Callable[[Vocabulary[DraftId], Vocabulary[TargetId]], Alignment]


def open_dictionary(
    target: Tokenizer[TargetId],
    *,
    file: FilePath | None = None,
    beside: Path | None = None,
    language: str | None = None,
    note: Note = lambda _: None,
) -> Dictionary | None:
    """The dictionary in `file`, else the one found for this tokenizer, else None.

    beside: the model's own folder. language: which one to use where dictionaries of several
    languages are found; without it none of them is used, and `note` says how to choose. In each
    language the first folder's dictionary is used (see `finding`).
    Raises: BundleError for a damaged table; FingerprintError, MissingAssetError or UsageError where
    `file` or `language` cannot be honoured.
    """
    if file is not None:
        return _open_named_dictionary(Path(file), target, language)
    found = find_tables("dictionary", target=target.fingerprint, beside=beside, note=note)
    paths = _choose(_by_language(found), language, note)
    return _first_usable("dictionary", paths, partial(_read_dictionary, target=target), note)


def read_dictionary(bundle: Bundle, vocabulary_size: int | None = None) -> Dictionary:
    """The dictionary in a bundle, of whichever kind it is, with all ids in it checked.

    vocabulary_size: of the tokenizer in use; by default, what the header says is believed.
    Raises: BundleError.
    """
    kind = bundle.parameters.get("kind")
    try:
        said = read_parameter(bundle.parameters, "vocabulary_size", int, least=1, most=1 << 32)
    except HeaderError as error:
        raise BundleError(f"the dictionary's header is wrong: {error}; {_REMEDY}") from error
    if vocabulary_size not in (None, said):
        raise BundleError(
            f"the dictionary is for a vocabulary of {said} ids, not {vocabulary_size}; {_REMEDY}"
        )
    if kind == BACKOFF:
        return BackoffTable.from_bundle(bundle, said)
    if kind == DICTSPEC:
        return DictSpecTable.from_sections(bundle.sections, said)
    raise BundleError(
        f"the dictionary is of kind {shown(kind)}, neither {BACKOFF!r} nor {DICTSPEC!r}; {_REMEDY}"
    )


def open_alignment(
    target: Tokenizer[TargetId],
    draft: Tokenizer[DraftId],
    *,
    otherwise: Align,
    file: FilePath | None = None,
    beside: Path | None = None,
    note: Note = lambda _: None,
) -> Alignment:
    """The tables of a pair: from `file`, else those found for it, else computed.

    otherwise: the builder, `build.alignment.alignment_bundle.align`. What it makes has no merge
    sites; masking then also rules out proposals that only later text could have made possible.
    Raises: BundleError for a damaged table; FingerprintError or MissingAssetError for `file`.
    """
    read = partial(_read_alignment, target=target, draft=draft)
    if file is not None:
        return read(Path(file))
    found = find_tables(
        "alignment", target=target.fingerprint, draft=draft.fingerprint, beside=beside, note=note
    )
    alignment = _first_usable("alignment", [path for path, _ in found], read, note)
    if alignment is not None:
        return alignment
    note(
        "alignment -> computed now, because no table of this pair was found; "
        "keep one with: tokalign build --alignment-only --draft DRAFT --target TARGET"
    )
    return otherwise(draft.vocabulary, target.vocabulary)


def verify_table(path: Path) -> None:
    """Check every byte of a table file, and that the tables in it can be read.

    Raises: BundleError, MissingAssetError.
    """
    bundle = open_bundle(path, verify=True)
    with _errors_name(path):
        if bundle.kind == "dictionary":
            read_dictionary(bundle)
        elif bundle.kind == "alignment":
            Alignment.from_sections(bundle.sections)
        else:
            raise BundleError(
                f"unknown kind {bundle.kind!r}; update tokalign or rebuild the table with: "
                "tokalign build"
            )


def _open_named_dictionary(
    path: Path, target: Tokenizer[TargetId], language: str | None
) -> Dictionary:
    found = open_bundle(path).parameters.get("language", language)
    if language not in (None, found):
        raise UsageError(
            f"{shown_path(path)} is a dictionary of language {found}, not {language}; name the "
            "language or the file, not both"
        )
    return _read_dictionary(path, target=target)


def _read_dictionary(path: Path, *, target: Tokenizer[TargetId]) -> Dictionary:
    bundle = _open_kind(path, "dictionary")
    remedy = "tokalign build --dictionary-only --target TARGET CORPUS"
    require_fingerprint(bundle, target=target.fingerprint, name=shown_path(path), remedy=remedy)
    with _errors_name(path):
        return read_dictionary(bundle, len(target.vocabulary))


def _read_alignment(
    path: Path, *, target: Tokenizer[TargetId], draft: Tokenizer[DraftId]
) -> Alignment:
    bundle = _open_kind(path, "alignment")
    require_fingerprint(
        bundle,
        target=target.fingerprint,
        draft=draft.fingerprint,
        name=shown_path(path),
        remedy="tokalign build --alignment-only --draft DRAFT --target TARGET",
    )
    with _errors_name(path):
        return Alignment.from_sections(
            bundle.sections, draft=draft.vocabulary.tokens, target_size=len(target.vocabulary)
        )


def _first_usable(
    kind: str, paths: Sequence[Path], read: Callable[[Path], T], note: Note
) -> T | None:
    """What is in the first of these files that can be used; `note` is told which, and of others."""
    for path in paths:
        try:
            table = read(path)
        except (BundleError, MissingAssetError) as error:
            note(f"{error}; it is not used")
            continue
        note(f"{kind} -> {shown_path(path)}")
        return table
    return None


def _by_language(found: Iterable[tuple[Path, Bundle]]) -> dict[str, list[Path]]:
    """The dictionaries of each language."""
    paths: dict[str, list[Path]] = {}
    for path, bundle in found:
        paths.setdefault(bundle.parameters.get("language", "unnamed"), []).append(path)
    return paths


def _choose(found: Mapping[str, list[Path]], language: str | None, note: Note) -> list[Path]:
    """The dictionaries of a language; without one those of the only language, or none."""
    names = ", ".join(sorted(found))
    if language is not None:
        if language not in found:
            raise MissingAssetError(
                f"no dictionary of language {language} fits this tokenizer; those that fit are of "
                f"language: {names or 'none'}; build one with: tokalign build --dictionary-only "
                f"--language {language}"
            )
        return found[language]
    if len(found) > 1:
        note(
            f"dictionaries of several languages fit this tokenizer ({names}), and none is used; "
            "choose one with --language"
        )
        return []
    return next(iter(found.values()), [])


def _open_kind(path: Path, kind: str) -> Bundle:
    """A table file whose every byte was checked. Raises: BundleError if it is of another kind."""
    bundle = open_bundle(path, verify=True)
    if bundle.kind != kind:
        raise BundleError(
            f"{shown_path(path)} is a table of kind {bundle.kind}; give a .{kind}.tok file"
        )
    return bundle


@contextmanager
def _errors_name(path: Path) -> Iterator[None]:
    """Have an error in reading tables say which file they are in."""
    try:
        yield
    except BundleError as error:
        raise BundleError(f"{shown_path(path)}: {error}") from error
