"""Opening the tables that a run needs: named by the user, found by fingerprint, or computed.

Every byte of a table is checked before it is used. A table that was found and cannot be used is
skipped with a note; one that was named is an error. A table is read once for a tokenizer, unless
its file changes. `finding` says where tables are looked for, `bundle` is the file format.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar, cast
from weakref import WeakKeyDictionary

from tokalign.errors import BundleError, MissingAssetError, shown_path
from tokalign.storage import FilePath, FileState, file_state
from tokalign.tables.alignment import Alignment
from tokalign.tables.backoff import BackoffTable
from tokalign.tables.bundle import Bundle, read_bundle, read_header
from tokalign.tables.dictionary import HOW_TO_BUILD, SOURCE, Dictionaries, Dictionary
from tokalign.tables.finding import Detail, Note, find_tables, no_note
from tokalign.tables.header import Header
from tokalign.tables.logit_rows import KIND as LOGITS
from tokalign.tables.logit_rows import LogitRows, joined
from tokalign.tables.pack import Pack
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import DraftId, TargetId, Vocabulary

T = TypeVar("T")


def open_dictionary(
    target: Tokenizer[TargetId],
    *,
    files: Sequence[FilePath] = (),
    languages: Sequence[str] = (),
    model_folder: Path | None = None,
    note: Note = no_note,
) -> Dictionaries | None:
    """The dictionaries of this tokenizer; None for none.

    files: those that are named. languages: those to look for besides, each of which has to be found
    or be that of a named file. With neither, the dictionaries of every language are used. A
    language may have several of different file names, such as a general one and one of a domain.
    Raises: BundleError for a damaged table; FingerprintError or MissingAssetError where `files` or
    `languages` cannot be honoured.
    """
    make = partial(BackoffTable.from_bundle, vocabulary_size=len(target.vocabulary))
    read = _reader("dictionary", make, target, remedy=HOW_TO_BUILD)
    named = {os.path.abspath(file): Path(file) for file in files}
    opened = [_Opened(path, read_header(path).language, read(path)) for path in named.values()]
    if languages or not files:
        found = find_tables(
            "dictionary", target=target.fingerprint, model_folder=model_folder, note=note
        )
        known = {table.language for table in opened} | {header.language for _, header in found}
        _require_languages(languages, known)
        others = [table for table in found if os.path.abspath(table[0]) not in named]
        opened += _usable("dictionary", others, languages, read, note)
    tables = _by_source(opened)
    return Dictionaries(tables, target.vocabulary.tokens) if tables else None


def open_logit_rows(
    target: Tokenizer[TargetId],
    *,
    languages: Sequence[str] = (),
    model_folder: Path | None = None,
    note: Note = no_note,
) -> LogitRows | None:
    """What a model of this tokenizer expects of corpora in these languages, joined; None where
    nothing is found."""
    make = partial(LogitRows.from_bundle, vocabulary_size=len(target.vocabulary))
    read = _reader(LOGITS, make, target, remedy="tokalign build --from-model")
    found = find_tables(LOGITS, target=target.fingerprint, model_folder=model_folder, note=note)
    rows = [opened.table for opened in _usable(LOGITS, found, languages, read, note)]
    return joined(rows) if len(rows) > 1 else rows[0] if rows else None


def open_alignment(
    target: Tokenizer[TargetId],
    draft: Tokenizer[DraftId],
    *,
    otherwise: Callable[[Vocabulary[DraftId], Vocabulary[TargetId]], Alignment],
    file: FilePath | None = None,
    model_folder: Path | None = None,
    note: Note = no_note,
) -> Alignment:
    """The tables of a pair: from `file`, else those found for it, else computed.

    otherwise: the builder, `build.alignment.align`. What it makes has no merge sites; masking then
    also rules out proposals that only later text could have made possible.
    Raises: BundleError for a damaged table; FingerprintError or MissingAssetError for `file`.
    """
    build = "tokalign build --alignment-only --draft DRAFT --target TARGET"
    make = partial(
        Alignment.from_bundle,
        draft=draft.vocabulary.tokens,
        target_size=len(target.vocabulary),
    )
    read = _reader("alignment", make, target, draft, remedy=build)
    if file is not None:
        return read(Path(file))
    found = find_tables(
        "alignment",
        target=target.fingerprint,
        draft=draft.fingerprint,
        model_folder=model_folder,
        note=note,
    )
    for opened in _usable("alignment", found, (), read, note):
        return opened.table
    note(
        "alignment -> computed now, because no table of this pair was found; "
        f"keep one with: {build}, or fetch one, if there is one, with: tokalign tables pull NAME"
    )
    return otherwise(draft.vocabulary, target.vocabulary)


_tables: WeakKeyDictionary[Tokenizer[Any], dict[Hashable, tuple[FileState | None, object]]]
_tables = WeakKeyDictionary()


def _reader(
    kind: str,
    make: Callable[[Bundle], T],
    target: Tokenizer[TargetId],
    draft: Tokenizer[DraftId] | None = None,
    *,
    remedy: str,
) -> Callable[[Path], T]:
    """Reads table files of this kind and these tokenizers. What is made of one is kept as long as
    there is the target's tokenizer and the file is the same. It raises: BundleError,
    FingerprintError."""
    theirs = None if draft is None else draft.fingerprint

    def read(path: Path) -> T:
        tables, state = _tables.setdefault(target, {}), file_state(path)
        known = tables.get((kind, theirs, path))
        if known is None or known[0] != state:
            bundle = read_bundle(path)
            bundle.require_kind(kind)
            bundle.require(target=target.fingerprint, draft=theirs, remedy=remedy)
            known = tables[kind, theirs, path] = state, make(bundle)
        return cast("T", known[1])

    return read


_READERS: Mapping[str, Callable[[Bundle], object]] = {
    "dictionary": BackoffTable.from_bundle,
    "alignment": Alignment.from_bundle,
    LOGITS: LogitRows.from_bundle,
    "pack": Pack.from_bundle,
}
"""What reads each of `KINDS`."""


def verify_table(path: Path) -> None:
    """Check every byte of a table file, and that it can be read. Raises: as `read_bundle`."""
    verify_bundle(read_bundle(path))


def verify_bundle(bundle: Bundle) -> None:
    """Check that the tables in a bundle can be read. Raises: BundleError."""
    if bundle.kind not in _READERS:
        raise BundleError(
            f"{bundle.name}: unknown kind {bundle.kind!r}; update tokalign or rebuild the table "
            "with: tokalign build"
        )
    _READERS[bundle.kind](bundle)


class _Opened(NamedTuple, Generic[T]):
    """A table that was read, with its file and language."""

    path: Path
    language: str
    table: T


def _usable(
    kind: str,
    found: Sequence[tuple[Path, Header]],
    languages: Sequence[str],
    read: Callable[[Path], T],
    note: Note,
) -> Iterator[_Opened[T]]:
    """For each language and file name, the first usable table; all languages if none is named."""
    same: dict[tuple[str, str], list[Path]] = {}
    for path, header in found:
        same.setdefault((header.language, path.name), []).append(path)
    chosen = [key for language in languages for key in same if key[0] == language]
    for key in dict.fromkeys(chosen) if languages else same:
        for path in same[key]:
            try:
                opened = _Opened(path, key[0], read(path))
            except (BundleError, MissingAssetError) as error:
                note(f"{error}; it is not used")
                continue
            note(Detail(f"{kind} -> {shown_path(path)}"))
            yield opened
            break


def _require_languages(wanted: Sequence[str], known: set[str]) -> None:
    for language in wanted:
        if language not in known:
            raise MissingAssetError(
                f"no dictionary of language {language} fits this tokenizer; those that fit are of "
                f"language: {', '.join(sorted(known)) or 'none'}; build one with: "
                f"{HOW_TO_BUILD.replace('CODE', language)}"
            )


def _by_source(opened: Sequence[_Opened[BackoffTable]]) -> dict[str, Dictionary]:
    """Dictionaries by source: by their languages, or by file names where these are equal. A single
    one needs no name.

    Example: pl.dictionary.tok and crh.dictionary.tok are `dictionary:pl` and `dictionary:crh`, and
    so are pl.dictionary.tok and law.dictionary.tok, both Polish, `dictionary:pl`, `dictionary:law`.
    """
    if len(opened) == 1:
        return {SOURCE: opened[0].table}
    labels = [table.language for table in opened]
    if len(set(labels)) < len(labels):
        names = (shown_path(table.path.name) for table in opened)
        labels = [name.removesuffix(".tok").removesuffix(".dictionary") for name in names]
    if len(set(labels)) < len(labels):
        labels = [f"{label}-{number}" for number, label in enumerate(labels, 1)]
    return {f"{SOURCE}:{label}": own.table for label, own in zip(labels, opened, strict=True)}
