"""Counting n-grams the plain way, and small corpora and tokenizers to count with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_tokenizers import trained_tokenizer

from tokalign.build.counting import token_ngrams
from tokalign.build.counting.ngram_tree import walk_back
from tokalign.build.counting.token_ngrams import Counting
from tokalign.build.counting.windows import TokenNgrams
from tokalign.tokenizer.tokenizer import Tokenizer

Counts = dict[tuple[int, ...], float]


def small_tokenizer() -> Tokenizer[Any]:
    return trained_tokenizer(320)


def write_files(folder: Path, files: Mapping[str, Sequence[str]]) -> list[Path]:
    """Write files of lines; returns their paths."""
    for name, lines in files.items():
        (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return [folder / name for name in files]


@contextmanager
def cut_into(shard_characters: int, at_once: int, most_runs: int) -> Iterator[None]:
    """Cut the work of a count into small parts."""
    sizes = {"_SHARD": shard_characters, "_AT_ONCE": at_once, "_MOST_RUNS": most_runs}
    with pytest.MonkeyPatch.context() as patch:
        for name, size in sizes.items():
            patch.setattr(token_ngrams, name, size)
        yield


def count_plainly(
    tokenizer: Tokenizer[Any],
    weighted: Sequence[tuple[float, Sequence[str]]],
    *,
    max_order: int,
    min_count: float,
) -> list[Counts]:
    """As `counts_of`, by Counters. weighted: the weight and the lines of each file."""
    counters: list[Counter[tuple[int, ...]]] = [Counter() for _ in range(max_order)]
    for weight, lines in weighted:
        for line in lines:
            if line.isspace():
                continue
            ids = tokenizer.encode(line.removesuffix("\r"))
            for n, counter in enumerate(counters, 1):
                for start in range(len(ids) - n + 1):
                    counter[tuple(ids[start : start + n])] += weight  # type: ignore[assignment]
    kept = [{g: c for g, c in counter.items() if c >= min_count} for counter in counters]
    return [*takewhile(bool, kept)]


def as_dict(ngrams: TokenNgrams) -> Counts:
    """n-gram -> count."""
    return {
        tuple(ids): count
        for ids, count in zip(ngrams.ids.tolist(), ngrams.counts.tolist(), strict=True)
    }


def counts_of(counting: Counting, **options: Any) -> list[Counts]:
    """The counts of each order up to the first that has none, in the order of their ids."""
    levels = token_ngrams.count_corpus(counting, **options).levels
    orders = []
    for order, level in enumerate(levels, 1):
        backwards = [*walk_back(levels, order, np.arange(len(level)))]
        ids = np.stack(backwards[::-1], axis=1)
        assert ids.tolist() == sorted(ids.tolist())
        orders.append(as_dict(TokenNgrams(ids.astype(np.uint32), level.counts)))
    return orders
