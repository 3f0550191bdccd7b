"""Counting the token n-grams of a corpus, order by order.

An n-gram that occurs `min_count` times has a prefix that does. So each order looks only at the
positions whose (n-1)-gram was kept, and an n-gram is one number: the rank of its prefix among the
kept ones, then its last id.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokalign.build.corpus import Corpus
from tokalign.build.stages import Stage, silent
from tokalign.tokenizers import Tokenizer
from tokalign.vocab import TargetId

MAX_ORDER = 9
MIN_COUNT = 2
MEMORY = 2 << 30


@dataclass(frozen=True, slots=True)
class TokenNgrams:
    """The kept n-grams of one order, with how often each occurs.

    ids: u16 or u32 [k, n], sorted lexicographically, no row twice.
    counts: i64[k], or f64[k] where a corpus file has a weight that is not a whole number.
    """

    ids: NDArray[Any]
    counts: NDArray[Any]

    @property
    def order(self) -> int:
        return int(self.ids.shape[1])

    def __len__(self) -> int:
        return len(self.counts)


def count_token_ngrams(
    corpus: Corpus,
    tokenizer: Tokenizer[TargetId],
    *,
    max_order: int = MAX_ORDER,
    min_count: float = MIN_COUNT,
    memory: int = MEMORY,
    jobs: int | None = None,
    workspace: Path | None = None,
    stage: Stage = silent,
) -> Iterator[TokenNgrams]:
    """Count the n-grams of order 1 to `max_order` in each line, as `tokenizer.encode` has it.

    Yields one `TokenNgrams` per order, the shortest first; an order may be empty. An n-gram never
    crosses the end of a line. Its count is the sum, over the corpus files, of its occurrences times
    the weight of the file; those with a count under `min_count` are left out. Prefix and suffix
    of a kept n-gram are kept too. The result does not depend on `memory`, `jobs` or `workspace`.

    memory: how many bytes all processes together may hold at once.
    jobs: how many processes count; default: one per core.
    workspace: a folder for finished runs, from which a killed count resumes; it is deleted at the
        end. Default: a temporary folder.
    stage: shows two steps, in bytes of text.
    """
    lines = tokenizer.encode_batch(list(corpus.lines()))
    gap = len(tokenizer.vocabulary)
    text = np.fromiter((i for line in lines for i in (*line, gap)), dtype=np.uint32)
    starts = np.arange(len(text))
    parents, prefixes = np.zeros(len(text), dtype=np.int64), np.zeros((1, 0), dtype=np.uint32)
    for order in range(1, max_order + 1):
        last = starts + order - 1
        inside = text[last] != gap
        starts, parents, last = starts[inside], parents[inside], last[inside]
        keys, ranks, counts = np.unique(
            parents * (gap + 1) + text[last], return_inverse=True, return_counts=True
        )
        kept = counts >= min_count
        prefixes = np.column_stack(
            [prefixes[keys[kept] // (gap + 1)], (keys[kept] % (gap + 1)).astype(np.uint32)]
        )
        yield TokenNgrams(prefixes, counts[kept])
        survive = kept[ranks]
        starts, parents = starts[survive], (np.cumsum(kept) - 1)[ranks[survive]]
