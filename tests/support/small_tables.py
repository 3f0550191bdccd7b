"""Tables for tiny models, written in milliseconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tokalign.build.alignment.alignment_bundle import build_alignment
from tokalign.build.counting.windows import TokenNgrams
from tokalign.build.dictionary.backoff import make_table
from tokalign.build.dictionary.ngram_tree import grow_tree
from tokalign.tables.backoff import BackoffTable
from tokalign.tables.bundle import Bundle, write_bundle
from tokalign.tables.dictspec import DictSpecTable
from tokalign.tokenizer.tokenizer import Tokenizer


def bundle_of(sections: Mapping[str, bytes]) -> Bundle:
    """A bundle of these sections, as a table reads it."""
    return Bundle(kind="dictionary", fingerprints={"target": "ab" * 32}, sections=sections)


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


def counted(
    text: Sequence[int], vocabulary_size: int = 100, max_bytes: int = 10_000
) -> BackoffTable:
    """The back-off table of a text of ids, with contexts of up to four."""
    orders = []
    for n in range(1, 6):
        windows = np.lib.stride_tricks.sliding_window_view(np.array(text, dtype=np.uint16), n)
        ids, counts = np.unique(windows, axis=0, return_counts=True)
        orders.append(TokenNgrams(ids, counts))
    return make_table(grow_tree(orders), vocabulary_size=vocabulary_size, max_bytes=max_bytes)


def write_alignment(path: Path, draft: Tokenizer[Any], target: Tokenizer[Any]) -> Path:
    """The alignment of a pair; returns the path."""
    write_bundle(path, build_alignment(draft, target, []))
    return path
