"""Windows sorted and counted: the worked example, and the whole from its parts."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from counted import as_dict
from hypothesis import given, settings
from hypothesis import strategies as st

from tokalign.build.counting.runs import is_whole, merge_runs, stretches, write_run
from tokalign.build.counting.windows import (
    IdSpace,
    TokenNgrams,
    Windows,
    count_ngrams,
    join,
    sort_windows,
)
from tokalign.tokenizer.tokenizer import Tokenizer


def sorted_windows(lines: list[list[int]], max_order: int, space: IdSpace) -> Windows:
    ids = np.array([i for line in lines for i in (*line, space.gap)], dtype=space.dtype)
    return sort_windows(ids, max_order, space, weight=1)


def test_the_example_of_the_module(bielik: Tokenizer[Any]) -> None:
    tokens = bielik.vocabulary.tokens
    space = IdSpace(len(tokens))
    lines = [bielik.encode(line) for line in ("w Polsce", "w Polskę")]
    windows = sorted_windows(lines, 3, space)

    def spell(row: list[int]) -> str:
        spelled = ("·" if i == space.gap else tokens[i].decode().replace(" ", "▁") for i in row)
        return " ".join(spelled)

    assert [spell(row) for row in windows["ids"].tolist()] == [
        *("▁w ▁Pol sk", "▁w ▁Pol s", "ce · ·", "sk ę ·"),
        *("▁Pol sk ę", "▁Pol s ce", "s ce ·", "ę · ·"),
    ]
    orders = count_ngrams(windows, space, least=[1] * 3)
    counts = {spell(list(ngram)): c for order in orders for ngram, c in as_dict(order).items()}
    assert {ngram: c for ngram, c in counts.items() if c > 1} == {
        "▁w": 2,
        "▁Pol": 2,
        "▁w ▁Pol": 2,
    }
    assert not any("·" in ngram for ngram in counts)


def ngrams_of(rows: list[list[int]], n: int, space: IdSpace) -> Counter[tuple[int, ...]]:
    """Of these windows, the n-grams of one order, counted one by one."""
    return Counter(tuple(row[:n]) for row in rows if space.gap not in row[:n])


lines_of_ids = st.lists(st.lists(st.integers(0, 3), max_size=12), min_size=1, max_size=6)


@given(
    shards=st.lists(lines_of_ids, min_size=1, max_size=5),
    size=st.sampled_from([4, 40_000, 1 << 17]),
    max_order=st.integers(1, 6),
    at_once=st.sampled_from([1, 7, 100]),
    least=st.integers(1, 5),
)
@settings(max_examples=200, deadline=None)
def test_stretches_of_runs_count_what_the_whole_has(
    shards: list[list[list[int]]], size: int, max_order: int, at_once: int, least: int
) -> None:
    """However small the stretches are: a short n-gram may stand in several of them."""
    space = IdSpace(size)
    with TemporaryDirectory() as folder:
        runs, rows = [], []
        for number, lines in enumerate(shards):
            windows = sorted_windows(lines, max_order, space)
            runs.append(Path(folder) / f"{number}.run")
            write_run(runs[-1], [windows])
            for ids, count in windows.tolist():
                rows += [list(ids)] * count
        parts = list(stretches(runs, space.windows(max_order), at_once))
        merged = Path(folder) / "merged"
        merge_runs(None, merged, runs, space.windows(max_order), at_once)
        assert is_whole(merged)
        [*again] = stretches([merged], space.windows(max_order), 10**6)
    assert [tuple(row) for part in again for row in part["ids"].tolist()] == sorted(
        {tuple(row) for row in rows}
    )
    for one, other in pairwise(part["ids"].tolist() for part in parts):
        assert max(one) < min(other)
    for n in range(1, max_order + 1):
        found: list[TokenNgrams] = []
        held = TokenNgrams(np.zeros((0, n), dtype=space.dtype), np.zeros(0, dtype=np.int64))
        for part in parts:
            whole, held = join(held, count_ngrams(part, space, least=[least] * max_order)[n - 1])
            found.append(whole)
        kept = [as_dict(some[some.counts >= least]) for some in (*found, held)]
        counted = {gram: count for some in kept for gram, count in some.items()}
        expected = ngrams_of(rows, n, space)
        assert counted == {gram: count for gram, count in expected.items() if count >= least}
        assert sum(map(len, kept)) == len(counted)
