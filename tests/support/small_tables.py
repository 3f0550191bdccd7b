"""Tables for tiny models, written in milliseconds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokalign.build.alignment.alignment_bundle import build_alignment
from tokalign.tables.bundle import Bundle, write_bundle
from tokalign.tables.dictspec import DictSpecTable
from tokalign.tokenizer.tokenizer import Tokenizer


def write_dictionary(
    path: Path,
    tokenizer: Tokenizer[Any],
    text: str = " gęślą jaźń",
    fingerprint: str | None = None,
    language: str = "pl",
) -> Path:
    """A dictionary that knows how `text` goes on after its first tokens; returns the path."""
    ids = tuple(tokenizer.encode(text))
    entries = {ids[:n]: (ids[n : n + 2], 0.5) for n in range(1, 4)}
    bundle = Bundle(
        kind="dictionary",
        fingerprints={"target": fingerprint or tokenizer.fingerprint},
        parameters={
            "kind": "dictspec",
            "language": language,
            "vocabulary_size": len(tokenizer.vocabulary),
        },
        sections=DictSpecTable.from_entries(entries, len(tokenizer.vocabulary)).to_sections(),
    )
    write_bundle(path, bundle)
    return path


def write_alignment(path: Path, draft: Tokenizer[Any], target: Tokenizer[Any]) -> Path:
    """The alignment of a pair; returns the path."""
    write_bundle(path, build_alignment(draft, target, []))
    return path
