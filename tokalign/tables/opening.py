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
from typing import NamedTuple, TypeVar

from tokalign.arguments import shown, shown_path
from tokalign.errors import BundleError, MissingAssetError
from tokalign.tables.alignment import Alignment
from tokalign.tables.backoff import KIND as BACKOFF
from tokalign.tables.backoff import BackoffTable
from tokalign.tables.bundle import (
    Bundle,
    open_bundle,
    read_vocabulary_size,
    require_fingerprint,
)
from tokalign.tables.dictionaries import Dictionaries
from tokalign.tables.dictionary import HOW_TO_BUILD, SOURCE, Dictionary
from tokalign.tables.dictspec import KIND as DICTSPEC
from tokalign.tables.dictspec import DictSpecTable
from tokalign.tables.finding import Note, find_tables
from tokalign.tables.logit_rows import KIND as LOGITS
from tokalign.tables.logit_rows import LogitRows, joined
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import DraftId, TargetId, Vocabulary

T = TypeVar("T")

FilePath = str | os.PathLike[str]

_REMEDY = "rebuild it with: tokalign build"

Align = Callable[[Vocabulary[DraftId], Vocabulary[TargetId]], Alignment]


def open_dictionary(
    target: Tokenizer[TargetId],
    *,
    files: Sequence[FilePath] = (),
    languages: Sequence[str] = (),
    beside: Path | None = None,
    note: Note = lambda _: None,
) -> Dictionary | None:
    """The dictionary of this tokenizer; `Dictionaries` where there are several, None for none.

    files: those that are named. languages: those to look for besides, each of which has to be found
    or be that of a named file. With neither, the dictionaries of every language are used. Of a
    language there may be several, such as a general one and one of a domain, told apart by their
    file names; of equal names the first folder's is used (see `finding`).
    beside: the model's own folder. `note` is told which are used, and which cannot be.
    Raises: BundleError for a damaged table; FingerprintError or MissingAssetError where `files` or
    `languages` cannot be honoured.
    """
    read = partial(_read_dictionary, target=target)
    named = {os.path.abspath(file): Path(file) for file in files}
    opened = [read(path) for path in named.values()]
    if languages or not files:
        found = _by_language(
            find_tables("dictionary", target=target.fingerprint, beside=beside, note=note), opened
        )
        for paths in _candidates(found, languages or list(found)):
            others = [path for path in paths if os.path.abspath(path) not in named]
            first = _first_usable("dictionary", others, read, note)
            opened += [] if first is None else [first]
    if len(opened) < 2:
        return opened[0].table if opened else None
    tables = _named(opened)
    if not languages and not files:
        note(
            f"several dictionaries fit this tokenizer ({', '.join(sorted(tables))}); each is asked "
            "only while it predicts the text; --language or --dictionary chooses among them"
        )
    return Dictionaries(tables)


def read_dictionary(bundle: Bundle, vocabulary_size: int | None = None) -> Dictionary:
    """The dictionary in a bundle, of whichever kind it is, with all ids in it checked.

    vocabulary_size: of the tokenizer in use; by default, what the header says is believed.
    Raises: BundleError.
    """
    kind = bundle.parameters.get("kind")
    said = read_vocabulary_size(bundle, vocabulary_size, name="the dictionary", remedy=_REMEDY)
    if kind == BACKOFF:
        return BackoffTable.from_bundle(bundle, said)
    if kind == DICTSPEC:
        return DictSpecTable.from_sections(bundle.sections, said)
    raise BundleError(
        f"the dictionary is of kind {shown(kind)}, neither {BACKOFF!r} nor {DICTSPEC!r}; {_REMEDY}"
    )


def open_logit_rows(
    target: Tokenizer[TargetId],
    *,
    languages: Sequence[str] = (),
    beside: Path | None = None,
    note: Note = lambda _: None,
) -> LogitRows | None:
    """What a model of this tokenizer was found to expect of a corpus; None where nothing is found.

    languages: of the corpora; every one by default. Of several tables, all rows are taken.
    beside, note: as in `open_dictionary`.
    """
    found: dict[str, list[Path]] = {}
    tables = find_tables(LOGITS, target=target.fingerprint, beside=beside, note=note)
    for path, bundle in tables:
        if not languages or _language(bundle) in languages:
            found.setdefault(path.name, []).append(path)

    def read(path: Path) -> LogitRows:
        with _errors_name(path):
            return LogitRows.from_bundle(_open_kind(path, LOGITS), len(target.vocabulary))

    opened = [_first_usable(LOGITS, paths, read, note) for paths in found.values()]
    rows = [one for one in opened if one is not None]
    return joined(rows) if rows else None


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
        "keep one with: tokalign build --alignment-only --draft DRAFT --target TARGET, or fetch "
        "one, if there is one, with: tokalign tables pull NAME"
    )
    return otherwise(draft.vocabulary, target.vocabulary)


def verify_table(path: Path) -> None:
    """Check every byte of a table file, and that the tables in it can be read.

    Raises: BundleError, MissingAssetError.
    """
    check_tables(open_bundle(path, verify=True), shown_path(path))


def check_tables(bundle: Bundle, name: str) -> None:
    """Check that the tables in a verified bundle can be read. Raises: BundleError with `name`."""
    with _errors_name(name):
        if bundle.kind == "dictionary":
            read_dictionary(bundle)
        elif bundle.kind == "alignment":
            Alignment.from_sections(bundle.sections)
        elif bundle.kind == LOGITS:
            LogitRows.from_bundle(bundle)
        else:
            raise BundleError(
                f"unknown kind {bundle.kind!r}; update tokalign or rebuild the table with: "
                "tokalign build"
            )


class _Opened(NamedTuple):
    """A dictionary that was read, with its file and language."""

    path: Path
    language: str
    table: Dictionary


def _read_dictionary(path: Path, *, target: Tokenizer[TargetId]) -> _Opened:
    bundle = _open_kind(path, "dictionary")
    name = shown_path(path)
    require_fingerprint(bundle, target=target.fingerprint, name=name, remedy=HOW_TO_BUILD)
    with _errors_name(path):
        return _Opened(path, _language(bundle), read_dictionary(bundle, len(target.vocabulary)))


def _named(opened: Sequence[_Opened]) -> dict[str, Dictionary]:
    """Several dictionaries by source: by their languages, or by file names where these are equal.

    Example: pl.dictionary.tok and crh.dictionary.tok are `dictionary:pl` and `dictionary:crh`, and
    so are pl.dictionary.tok and law.dictionary.tok, both Polish, `dictionary:pl`, `dictionary:law`.
    """
    labels = [one.language for one in opened]
    if len(set(labels)) < len(labels):
        names = (shown_path(one.path.name) for one in opened)
        labels = [name.removesuffix(".tok").removesuffix(".dictionary") for name in names]
    if len(set(labels)) < len(labels):
        labels = [f"{label}-{number}" for number, label in enumerate(labels, 1)]
    tables = (one.table for one in opened)
    return {f"{SOURCE}:{label}": table for label, table in zip(labels, tables, strict=True)}


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


def _language(bundle: Bundle) -> str:
    return str(bundle.parameters.get("language", "unnamed"))


def _by_language(
    found: Iterable[tuple[Path, Bundle]], opened: Iterable[_Opened]
) -> dict[str, dict[str, list[Path]]]:
    """The files found in each language, by name; a language that was opened is there too."""
    paths: dict[str, dict[str, list[Path]]] = {one.language: {} for one in opened}
    for path, bundle in found:
        paths.setdefault(_language(bundle), {}).setdefault(path.name, []).append(path)
    return paths


def _candidates(
    found: Mapping[str, Mapping[str, list[Path]]], wanted: Sequence[str]
) -> list[list[Path]]:
    """For each dictionary of the wanted languages, its files.

    Raises: MissingAssetError if there is none of a language.
    """
    for language in wanted:
        if language not in found:
            how = HOW_TO_BUILD.replace("CODE", language)
            raise MissingAssetError(
                f"no dictionary of language {language} fits this tokenizer; those that fit are of "
                f"language: {', '.join(sorted(found)) or 'none'}; build one with: {how}"
            )
    return [files for language in dict.fromkeys(wanted) for files in found[language].values()]


def _open_kind(path: Path, kind: str) -> Bundle:
    """A table file whose every byte was checked. Raises: BundleError if it is of another kind."""
    bundle = open_bundle(path, verify=True)
    if bundle.kind != kind:
        raise BundleError(
            f"{shown_path(path)} is a table of kind {bundle.kind}; give a .{kind}.tok file"
        )
    return bundle


@contextmanager
def _errors_name(path: Path | str) -> Iterator[None]:
    """Have an error in reading tables say which file they are in."""
    try:
        yield
    except BundleError as error:
        raise BundleError(f"{shown_path(path)}: {error}") from error
