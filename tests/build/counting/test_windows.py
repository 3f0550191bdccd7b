"""Windows sorted and counted in ranges: the worked example, and the whole from its parts."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from counted import as_dict
from hypothesis import given, settings
from hypothesis import strategies as st

from tokalign.build.counting.windows import (
    CountedWindows,
    IdSpace,
    Windows,
    count_range,
    join_ranges,
    merge_range,
    sort_windows,
)
from tokalign.tokenizer.tokenizer import Tokenizer


def once(windows: Windows) -> CountedWindows:
    return CountedWindows(windows, np.ones(len(windows), dtype=np.int64))


def test_the_example_of_the_module(bielik: Tokenizer[Any]) -> None:
    tokens = bielik.vocabulary.tokens
    space = IdSpace(len(tokens))
    lines = [bielik.encode(line) for line in ("w Polsce", "w Polskę")]
    ids = np.array([i for line in lines for i in (*line, space.gap)], dtype=space.dtype)
    windows = sort_windows(ids, 3, space)

    def spell(row: list[int]) -> str:
        spelled = ("·" if i == space.gap else tokens[i].decode().replace(" ", "▁") for i in row)
        return " ".join(spelled)

    assert [spell(row) for row in windows.tolist()] == [
        *("▁w ▁Pol sk", "▁w ▁Pol s", "ce · ·", "sk ę ·"),
        *("▁Pol sk ę", "▁Pol s ce", "s ce ·", "ę · ·"),
    ]
    orders = count_range([once(windows)], min_count=1, space=space)
    counts = {spell(list(ngram)): c for order in orders for ngram, c in as_dict(order).items()}
    assert {ngram: c for ngram, c in counts.items() if c > 1} == {
        "▁w": 2,
        "▁Pol": 2,
        "▁w ▁Pol": 2,
    }
    assert not any("·" in ngram for ngram in counts)


@given(
    lines=st.lists(st.lists(st.integers(0, 3), max_size=12), min_size=1, max_size=12),
    size=st.sampled_from([4, 40_000, 1 << 17]),
    cuts=st.lists(st.integers(0, 12), max_size=4),
    min_count=st.integers(1, 5),
)
@settings(max_examples=200)
def test_ranges_cut_between_any_keys_join_to_the_whole(
    lines: list[list[int]], size: int, cuts: list[int], min_count: int
) -> None:
    """A short n-gram may stand in several ranges: it is pruned when they are joined."""
    space, max_order = IdSpace(size), 6
    ids = np.array([i for line in lines for i in (*line, space.gap)], dtype=space.dtype)
    run = sort_windows(ids, max_order, space)
    whole = count_range([once(run)], min_count=min_count, space=space)
    bounds = sorted({0, len(run), *(cut * len(run) // 12 for cut in cuts)})
    bounds = [
        b for b in bounds if b in (0, len(run)) or (run[b - 1] != run[b])[: space.in_key].any()
    ]
    parts = [
        count_range([once(run[begin:end])], min_count=min_count, space=space)
        for begin, end in zip(bounds, [*bounds[1:], len(run)], strict=True)
    ]
    for n in range(max_order):
        joined = list(join_ranges(part[n] for part in parts))
        assert sum(map(len, joined)) == len({gram for part in joined for gram in as_dict(part)})
        kept = [as_dict(part[part.counts >= min_count]) for part in (*joined, whole[n])]
        assert {gram: c for part in kept[:-1] for gram, c in part.items()} == kept[-1]


@given(
    shards=st.lists(
        st.lists(st.lists(st.integers(0, 2), max_size=8), min_size=1, max_size=4),
        min_size=1,
        max_size=5,
    ),
    size=st.sampled_from([4, 1 << 17]),
    max_order=st.integers(1, 6),
)
def test_merged_windows_count_like_those_that_they_were_merged_from(
    shards: list[list[list[int]]], size: int, max_order: int
) -> None:
    space = IdSpace(size)
    runs = []
    for lines in shards:
        ids = np.array([i for line in lines for i in (*line, space.gap)], dtype=space.dtype)
        runs.append(once(sort_windows(ids, max_order, space)))
    merged = merge_range(runs, space)
    rows = merged.windows.tolist()
    assert all(row < next_ for row, next_ in pairwise(rows))
    assert merged.counts.sum() == sum(map(len, runs))
    apart, together = (
        [as_dict(ngrams) for ngrams in count_range(some, min_count=1, space=space)]
        for some in (runs, [merge_range(runs[:2], space), *runs[2:]])
    )
    assert (
        apart
        == together
        == [as_dict(ngrams) for ngrams in count_range([merged], min_count=1, space=space)]
    )
