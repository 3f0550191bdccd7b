"""Which n-grams are frequent enough, found out by shares that each see a block of the key ranges.

`max_ngrams` bounds how many n-grams of all orders together are kept, so no share can decide alone:
each tells how many n-grams it has of which count (`summarize`), and from all summaries every share
computes the same least count (`least_count`). The first and the last n-gram of a block may go on
in the neighbouring block. A summary has them apart, so that they are counted once, joined.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokalign.build.counting.shares import WEIGHT_UNIT, Counting
from tokalign.build.counting.windows import IdArray, TokenNgrams, join_ranges, nothing

Summary = Mapping[str, Any]
"""Of one order in one block, as it stands in a record: how many n-grams have which count, and the
ids and counts of the first and the last one."""

_MOST_RAISED = 1 << 16


def summarize(block: Iterable[TokenNgrams], order: int, counting: Counting) -> dict[str, Any]:
    """Summarize the n-grams of one order in a block of key ranges, which come range by range."""
    steps = np.zeros(_MOST_RAISED + 2, dtype=np.int64)
    first = last = nothing(order, counting.space)
    for ngrams in block:
        if len(ngrams):
            steps += _steps(ngrams, counting.least)
            first, last = first if len(first) else ngrams[:1], ngrams[-1:]
    one = len(first) and (first.ids == last.ids).all()
    ends = [last] if one else [first, last]
    for end in ends:
        steps -= _steps(end, counting.least)
    used = np.flatnonzero(steps)
    return {
        "steps": [used.tolist(), steps[used].tolist()],
        "ids": b"".join(end.ids.tobytes() for end in ends),
        "counts": b"".join(end.counts.tobytes() for end in ends),
    }


def _steps(ngrams: TokenNgrams, least: int) -> NDArray[np.int64]:
    """How many n-grams are left out only when the least count is raised by so many units.

    The first number is that of n-grams below the least count itself.
    """
    above = (ngrams.counts - least) // WEIGHT_UNIT + 1
    return np.bincount(np.clip(above, 0, _MOST_RAISED + 1), minlength=_MOST_RAISED + 2)


def is_kept(
    ngrams: TokenNgrams, summary: Summary, least: int, counting: Counting
) -> NDArray[np.bool]:
    """Which n-grams of a block are frequent enough, or its first or last one."""
    kept: NDArray[np.bool] = ngrams.counts >= least
    ends = _ends(summary, ngrams.order, counting).ids
    for at in (0, -1) if len(ngrams) else ():  # no other row can be the first or the last
        kept[at] |= (ngrams.ids[at] == ends).all(axis=1).any()
    return kept


def least_count(counting: Counting, blocks: Sequence[Sequence[Summary]]) -> int:
    """The least count of a kept n-gram, in thousandths.

    blocks: for each block the summaries of all orders, the shortest first.
    """
    steps = np.zeros(_MOST_RAISED + 2, dtype=np.int64)
    for summary in (summary for block in blocks for summary in block):
        at, numbers = summary["steps"]
        steps[np.array(at, dtype=np.int64)] += np.array(numbers, dtype=np.int64)
    for order in range(1, counting.max_order + 1):
        for ends in join_ranges(_ends(block[order - 1], order, counting) for block in blocks):
            steps += _steps(ends, counting.least)
    kept = np.append(steps[:0:-1].cumsum()[::-1], 0)
    return counting.least + int(np.argmax(kept <= counting.max_ngrams)) * WEIGHT_UNIT


def _ends(summary: Summary, order: int, counting: Counting) -> TokenNgrams:
    ids: IdArray = np.frombuffer(summary["ids"], dtype=counting.space.dtype).reshape(-1, order)
    return TokenNgrams(ids, np.frombuffer(summary["counts"], dtype=np.int64))
