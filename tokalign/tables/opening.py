"""Opening the tables a run needs: named by the user, found in the catalogue, or computed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tokalign.errors import BundleError
from tokalign.tables.alignment import Alignment
from tokalign.tables.backoff import KIND as BACKOFF
from tokalign.tables.backoff import BackoffTable
from tokalign.tables.bundle import Bundle, open_bundle, require_fingerprint
from tokalign.tables.dictionary import Dictionary
from tokalign.tables.dictspec import KIND as DICTSPEC
from tokalign.tables.dictspec import Continuations
from tokalign.tables.finding import find_table
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import DraftId, TargetId, Vocabulary

Note = Callable[[str], None]
"""Told in one line what was found, or what is done instead."""

Align = Callable[[Vocabulary[DraftId], Vocabulary[TargetId]], Alignment]


def open_dictionary(
    target: Tokenizer[TargetId],
    *,
    file: Path | None = None,
    beside: Path | None = None,
    note: Note = lambda _: None,
) -> Dictionary | None:
    """The dictionary of a target: `file`, else the first one found for its tokenizer, else None.

    beside: the model's folder. Raises: BundleError, FingerprintError, MissingAssetError for `file`.
    """
    if file is not None:
        bundle = _open_named(file, "dictionary")
        require_fingerprint(
            bundle,
            target=target.fingerprint,
            name=str(file),
            remedy="tokalign build --dictionary-only --target TARGET CORPUS",
        )
        return read_dictionary(bundle)
    found = find_table("dictionary", target=target.fingerprint, beside=beside)
    if found is None:
        return None
    note(f"dictionary -> {found[0]}")
    return read_dictionary(found[1])


def read_dictionary(bundle: Bundle) -> Dictionary:
    """The dictionary in a bundle, of whichever kind it is. Raises: BundleError."""
    kind = bundle.parameters.get("kind", DICTSPEC)
    if kind == BACKOFF:
        return BackoffTable.from_bundle(bundle)
    if kind == DICTSPEC:
        return Continuations.from_sections(bundle.sections)
    raise BundleError(
        f"the table's kind of dictionary is {kind!r}, neither {BACKOFF!r} nor {DICTSPEC!r}; "
        "rebuild it with: tokalign build"
    )


def open_alignment(
    target: Tokenizer[TargetId],
    draft: Tokenizer[DraftId],
    *,
    otherwise: Align,
    file: Path | None = None,
    beside: Path | None = None,
    note: Note = lambda _: None,
) -> Alignment:
    """The tables of a pair: from `file`, else those found for it, else computed.

    otherwise: the builder, `build.alignment.align`; what it makes has no merge sites, so that
    masking also passes over guesses that only later text could have saved.
    Raises: BundleError, FingerprintError, MissingAssetError for `file`.
    """
    if file is not None:
        bundle = _open_named(file, "alignment")
        require_fingerprint(
            bundle,
            target=target.fingerprint,
            draft=draft.fingerprint,
            name=str(file),
            remedy="tokalign build --alignment-only --draft DRAFT --target TARGET",
        )
        return Alignment.from_sections(bundle.sections, draft.vocabulary.tokens)
    found = find_table(
        "alignment", target=target.fingerprint, draft=draft.fingerprint, beside=beside
    )
    if found is not None:
        note(f"alignment -> {found[0]}")
        return Alignment.from_sections(found[1].sections, draft.vocabulary.tokens)
    note(
        "alignment -> computed now, as no table of this pair was found; "
        "keep one with: tokalign build --alignment-only --draft DRAFT --target TARGET"
    )
    return otherwise(draft.vocabulary, target.vocabulary)


def _open_named(file: Path, kind: str) -> Bundle:
    bundle = open_bundle(file, verify=True)
    if bundle.kind != kind:
        raise BundleError(f"{file} is a table of kind {bundle.kind}; give a .{kind}.tok file")
    return bundle
