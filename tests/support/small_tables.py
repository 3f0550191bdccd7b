"""Tables for tiny models, written in milliseconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from written_tables import write_bundle

from tokalign.build.alignment import build_alignment
from tokalign.build.counting.ngram_tree import grow_tree
from tokalign.build.counting.windows import TokenNgrams
from tokalign.build.dictionary.backoff import make_table, pack
from tokalign.build.dictionary.pruning import Entries
from tokalign.runtime.remembered import OutputStore
from tokalign.tables.backoff import BackoffTable
from tokalign.tables.bundle import Bundle
from tokalign.tables.dictionary import SOURCE, Dictionaries
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import TargetId


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
    size = len(tokenizer.vocabulary)
    bundle = dictionary_bundle(entries, size, fingerprint or tokenizer.fingerprint, language)
    write_bundle(path, bundle)
    return path


def table_of(
    entries: Mapping[Any, tuple[Any, float]],
    vocabulary_size: int,
    p_min: float = 0.01,
    *,
    others: Mapping[Any, Sequence[int]] = MappingProxyType({}),
) -> BackoffTable:
    """A table in which each context is followed by these ids, each of them so probably.

    Ends of contexts are stored too, as they are in every table; what follows them alone has the
    probability 0 unless they are entries. others: the alternatives of a context.
    """
    answers: dict[tuple[int, ...], tuple[int, float]] = {}
    for context, (ids, probability) in entries.items():
        for taken, token in enumerate(ids):
            key = (*context, *ids[:taken])[-8:]
            if not taken or key not in answers:
                answers[key] = token, probability
    ends = {key[start:] for key in answers for start in range(len(key))}
    answers |= {end: (0, 0.0) for end in ends if end not in answers}
    parts = {
        key[i:j] for key in answers for i in range(len(key)) for j in range(i + 1, len(key) + 1)
    }
    orders, stored = [], []
    for length in range(1, max(map(len, answers), default=0) + 1):
        ngrams = sorted(part for part in parts if len(part) == length)
        orders.append(TokenNgrams(np.array(ngrams, dtype=np.uint32), np.ones(len(ngrams))))
        found = {i: answers[key] for i, key in enumerate(ngrams) if key in answers}
        stored.append(_entries(length, 0, found))
        for rank in (1, 2):
            known = {i: others.get(ngrams[i], ())[rank - 1 : rank] for i in found}
            stored.append(
                _entries(length, rank, {i: (ids[0], 0.1 / rank) for i, ids in known.items() if ids})
            )
    return pack(grow_tree(orders), stored, vocabulary_size=vocabulary_size, p_min=p_min)


def at_least(table: BackoffTable, p_min: float) -> BackoffTable:
    """The same table with another bound for a whole chain."""
    other = copy(table)
    other.parameters = replace(table.parameters, p_min=p_min)
    return other


def _entries(length: int, rank: int, answers: Mapping[int, tuple[int, float]]) -> Entries:
    ids, probabilities = zip(*answers.values(), strict=True) if answers else ((), ())
    return Entries(
        length=length,
        rank=rank,
        nodes=np.array(list(answers), dtype=np.int64),
        ids=np.array(ids, dtype=np.uint32),
        probabilities=np.array(probabilities, dtype=np.float32),
    )


def dictionary_bundle(
    entries: Mapping[Any, tuple[Any, float]],
    vocabulary_size: int,
    fingerprint: str,
    language: str | None = "pl",
    p_min: float = 0.01,
) -> Bundle:
    """The table of these entries (`table_of`) as a bundle."""
    table = table_of(entries, vocabulary_size, p_min)
    return bundle_of_table(table, vocabulary_size, fingerprint, language)


def bundle_of_table(
    table: BackoffTable, vocabulary_size: int, fingerprint: str, language: str | None = None
) -> Bundle:
    """A table as a bundle."""
    return Bundle(
        kind="dictionary",
        fingerprints={"target": fingerprint},
        parameters={
            "kind": "backoff",
            "vocabulary_size": vocabulary_size,
            **({} if language is None else {"language": language}),
            **table.parameters.to_header(),
        },
        statistics={"entries": len(table)},
        sections=table.to_sections(),
    )


def counted(
    text: Sequence[int], vocabulary_size: int = 100, max_bytes: int = 10_000
) -> BackoffTable:
    """The back-off table of a text of ids, with contexts of up to four."""
    orders = []
    for n in range(1, 6):
        windows = np.lib.stride_tricks.sliding_window_view(np.array(text, dtype=np.uint16), n)
        ids, counts = np.unique(windows, axis=0, return_counts=True)
        orders.append(TokenNgrams(ids, counts))
    levels = grow_tree(orders)
    return make_table(levels, vocabulary_size=vocabulary_size, max_bytes=max_bytes)


def write_alignment(path: Path, draft: Tokenizer[Any], target: Tokenizer[Any]) -> Path:
    """The alignment of a pair; returns the path."""
    write_bundle(path, build_alignment(draft, target))
    return path


def half_right(ids: Sequence[int], vocabulary_size: int) -> dict[str, Any]:
    """A dictionary and an earlier output, for `Drafting`, that know parts of an output.

    Some of what they propose is wrong.
    """
    known = [*ids[: 3 * len(ids) // 4], *ids[5:]]
    entries = {
        (known[i],): ((known[i + 1], known[i + 4]), 0.8) for i in range(0, len(known) - 4, 3)
    }
    store = OutputStore()
    store.add([TargetId(token) for token in ids[len(ids) // 3 : 2 * len(ids) // 3]])
    table = table_of(entries or {(1,): ((2,), 0.5)}, vocabulary_size)
    return {"dictionary": Dictionaries({SOURCE: table}), "outputs": (store.text,)}
