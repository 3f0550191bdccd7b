"""Counting in shards, runs and ranges equals a Counter over tuples."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from counted import (
    Counts,
    as_dict,
    count_plainly,
    counts_of,
    cut_into,
    small_tokenizer,
    write_files,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from polish import SENTENCES, texts

from tokalign.build.corpus import Corpus
from tokalign.build.counting.runs import is_whole, merge_runs, stretches, write_run
from tokalign.build.counting.token_ngrams import Counting
from tokalign.build.counting.windows import (
    IdSpace,
    TokenNgrams,
    Windows,
    count_ngrams,
    join,
    sort_windows,
)

# Few words, so that n-grams repeat; each sentence also as it stands.
paragraphs = st.lists(
    st.one_of(
        st.lists(st.sampled_from(["Ala", "ma", "kota,", "i", "psa."]), max_size=12).map(" ".join),
        texts.map(lambda text: text.replace("\n", " ")),
    ),
    max_size=10,
)


@given(
    files=st.lists(paragraphs, min_size=1, max_size=3).filter(
        lambda files: any(line and not line.isspace() for lines in files for line in lines)
    ),
    shard_characters=st.sampled_from([1, 30, 1 << 20]),
    at_once=st.sampled_from([1, 50, 1 << 18]),
    most_runs=st.sampled_from([2, 3, 512]),
    max_order=st.integers(1, 9),
    min_count=st.integers(1, 4),
)
@settings(max_examples=60, deadline=None)
@pytest.mark.slow
def test_counts_equal_a_counter_whatever_the_chunks(
    files: list[list[str]],
    shard_characters: int,
    at_once: int,
    most_runs: int,
    max_order: int,
    min_count: int,
) -> None:
    with TemporaryDirectory() as folder:
        named = {f"{i}.txt": lines for i, lines in enumerate(files)}
        counting = Counting(
            Corpus(write_files(Path(folder), named)),
            small_tokenizer(),
            max_order=max_order,
            min_count=min_count,
        )
        with cut_into(shard_characters, at_once, most_runs):
            counted = counts_of(counting)
    expected = count_plainly(
        small_tokenizer(),
        [(1, lines) for lines in files],
        max_order=max_order,
        min_count=min_count,
    )
    assert counted == expected


@pytest.mark.parametrize(("old", "new"), [(0.25, 1.5), (3, 2)])
def test_weights_multiply_the_counts_of_a_file(tmp_path: Path, old: float, new: float) -> None:
    files = {"dawne.txt": SENTENCES[:2] * 2, "nowe.txt": [*SENTENCES[:1], SENTENCES[3]]}
    weights, tokenizer = {"dawne.txt": old, "nowe.txt": new}, small_tokenizer()
    corpus = Corpus(write_files(tmp_path, files), weights=weights)
    weighted = [(weights[name], lines) for name, lines in files.items()]
    expected = count_plainly(tokenizer, weighted, max_order=9, min_count=2 * old)
    with cut_into(40, 1, 2):
        assert counts_of(Counting(corpus, tokenizer, min_count=2 * old)) == expected
    assert [file["weight"] for file in corpus.stamp["files"]] == [old, new]


@pytest.mark.parametrize("max_ngrams", [0, 1, 20, 150, 10_000])
def test_the_least_count_is_raised_until_the_result_is_small_enough(
    tmp_path: Path, max_ngrams: int
) -> None:
    corpus = Corpus(write_files(tmp_path, {"a.txt": SENTENCES[:3] * 5 + SENTENCES * 2}))

    def count(**limits: int) -> list[Counts]:
        return counts_of(Counting(corpus, small_tokenizer(), max_order=3, **limits))

    kept = count(max_ngrams=max_ngrams)
    assert sum(map(len, kept)) <= max_ngrams
    all_counts = {c for order in count(min_count=1) for c in order.values()}
    raised = min((c for n in kept for c in n.values()), default=int(max(all_counts)) + 1)
    if raised > 2:
        assert kept == count(min_count=int(raised))
        assert sum(map(len, count(min_count=max(c for c in all_counts if c < raised)))) > max_ngrams


def sorted_windows(lines: list[list[int]], max_order: int, space: IdSpace) -> Windows:
    ids = np.array([i for line in lines for i in (*line, space.gap)], dtype=space.dtype)
    return sort_windows(ids, max_order, space, weight=1)


def ngrams_of(rows: list[list[int]], n: int, space: IdSpace) -> Counter[tuple[int, ...]]:
    """The n-grams of one order in these windows, counted one by one."""
    return Counter(tuple(row[:n]) for row in rows if space.gap not in row[:n])


lines_of_ids = st.lists(st.lists(st.integers(0, 3), max_size=12), min_size=1, max_size=6)


@pytest.mark.slow
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
            whole, held = join(held, count_ngrams(None, part, space, [least] * max_order)[n - 1])
            found.append(whole)
        kept = [as_dict(some[some.counts >= least]) for some in (*found, held)]
        counted = {gram: count for some in kept for gram, count in some.items()}
        expected = ngrams_of(rows, n, space)
        assert counted == {gram: count for gram, count in expected.items() if count >= least}
        assert sum(map(len, kept)) == len(counted)
