"""Opening the tables that a run needs: named by the user, found by fingerprint, or computed.

Every byte of a table is checked before it is used, because look-ups in a damaged trie can leave its
memory. To read on: `finding` for where tables are looked for, `bundle` for the file format.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tokalign.errors import BundleError, MissingAssetError, UsageError
from tokalign.tables.alignment import Alignment
from tokalign.tables.backoff import KIND as BACKOFF
from tokalign.tables.backoff import BackoffTable
from tokalign.tables.bundle import Bundle, open_bundle, require_fingerprint
from tokalign.tables.dictionary import Dictionary
from tokalign.tables.dictspec import KIND as DICTSPEC
from tokalign.tables.dictspec import DictSpecTable
from tokalign.tables.finding import find_tables
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import DraftId, TargetId, Vocabulary

FilePath = str | os.PathLike[str]

Note = Callable[[str], None]
"""Receives one line that says what was found, or what is done instead."""

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
    found = find_tables("dictionary", target=target.fingerprint, beside=beside)
    path = _choose(_by_language(found), language, note)
    if path is None:
        return None
    note(f"dictionary -> {path}")
    bundle = open_bundle(path, verify=True)
    with _errors_name(path):
        return read_dictionary(bundle)


def read_dictionary(bundle: Bundle) -> Dictionary:
    """The dictionary in a bundle, of whichever kind it is. Raises: BundleError."""
    kind = bundle.parameters.get("kind", DICTSPEC)
    if kind == BACKOFF:
        return BackoffTable.from_bundle(bundle)
    if kind == DICTSPEC:
        return DictSpecTable.from_sections(bundle.sections)
    raise BundleError(
        f"the dictionary is of kind {kind!r}, neither {BACKOFF!r} nor {DICTSPEC!r}; "
        "rebuild it with: tokalign build"
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
    found = find_tables(
        "alignment", target=target.fingerprint, draft=draft.fingerprint, beside=beside
    )
    path = next((path for path, _ in found), None) if file is None else Path(file)
    if path is None:
        note(
            "alignment -> computed now, because no table of this pair was found; "
            "keep one with: tokalign build --alignment-only --draft DRAFT --target TARGET"
        )
        return otherwise(draft.vocabulary, target.vocabulary)
    bundle = _open_kind(path, "alignment")
    require_fingerprint(
        bundle,
        target=target.fingerprint,
        draft=draft.fingerprint,
        name=str(path),
        remedy="tokalign build --alignment-only --draft DRAFT --target TARGET",
    )
    if file is None:
        note(f"alignment -> {path}")
    with _errors_name(path):
        return Alignment.from_sections(bundle.sections, draft.vocabulary.tokens)


def verify_table(path: Path) -> None:
    """Check every byte of a table file, and that the tables in it can be read.

    Raises: BundleError, MissingAssetError.
    """
    bundle = open_bundle(path, verify=True)
    with _errors_name(path):
        if bundle.kind == "dictionary":
            read_dictionary(bundle)
        elif bundle.kind == "alignment":
            Alignment.from_sections(bundle.sections, draft=())
        else:
            raise BundleError(
                f"unknown kind {bundle.kind!r}; update tokalign or rebuild the table with: "
                "tokalign build"
            )


def _open_named_dictionary(
    path: Path, target: Tokenizer[TargetId], language: str | None
) -> Dictionary:
    bundle = _open_kind(path, "dictionary")
    require_fingerprint(
        bundle,
        target=target.fingerprint,
        name=str(path),
        remedy="tokalign build --dictionary-only --target TARGET CORPUS",
    )
    found = bundle.parameters.get("language", language)
    if language not in (None, found):
        raise UsageError(
            f"{path} is a dictionary of language {found}, not {language}; name the language or the "
            "file, not both"
        )
    with _errors_name(path):
        return read_dictionary(bundle)


def _by_language(found: Iterator[tuple[Path, Bundle]]) -> dict[str, Path]:
    """The first dictionary of each language."""
    first: dict[str, Path] = {}
    for path, bundle in found:
        first.setdefault(str(bundle.parameters.get("language", "unnamed")), path)
    return first


def _choose(first: Mapping[str, Path], language: str | None, note: Note) -> Path | None:
    """The dictionary of a language; without one the only dictionary, or None."""
    names = ", ".join(sorted(first))
    if language is not None:
        if language not in first:
            raise MissingAssetError(
                f"no dictionary of language {language} fits this tokenizer; those that fit are of "
                f"language: {names or 'none'}; build one with: tokalign build --dictionary-only "
                f"--language {language}"
            )
        return first[language]
    if len(first) > 1:
        note(
            f"dictionaries of several languages fit this tokenizer ({names}), and none is used; "
            "choose one with --language"
        )
        return None
    return next(iter(first.values()), None)


def _open_kind(path: Path, kind: str) -> Bundle:
    """A table file whose every byte was checked. Raises: BundleError if it is of another kind."""
    bundle = open_bundle(path, verify=True)
    if bundle.kind != kind:
        raise BundleError(f"{path} is a table of kind {bundle.kind}; give a .{kind}.tok file")
    return bundle


@contextmanager
def _errors_name(path: Path) -> Iterator[None]:
    """Have an error in reading tables say which file they are in."""
    try:
        yield
    except BundleError as error:
        raise BundleError(f"{path}: {error}") from error
