"""From encoded ids to n-gram counts of all orders: pure functions over shards and key ranges.

A *window* is a position of the text with the ids from there on, `max_order` of them. Every n-gram
of every order is the beginning of exactly one window. So one sort of the windows counts all orders:

    ids of a shard --sort_windows--> sorted run           one per shard
    some runs --merge_range--> partial counts             one run in place of several
    all runs --choose_cuts--> key ranges                  few enough windows in each for the memory
    a range of every run --count_range--> counts of all orders within the range
    counts of all ranges --join_ranges--> TokenNgrams

Example (Bielik): the lines "w Polsce" and "w Polskę" with max_order 3; a dot is a gap, which is
what windows hold from the end of their line on. The sort goes by ids, not by letters.

    ▁w ▁Pol sk      The first column counts the unigrams (`▁w` twice, `ce` once), the first two
    ▁w ▁Pol s       columns the bigrams (`▁w ▁Pol` twice), all three the trigrams. An n-gram that
    ce  ·   ·       runs into a gap is none.
    sk  ę   ·
    ▁Pol sk ę
    ▁Pol s ce
    s   ce  ·
    ę   ·   ·

The columns of a window are u16 or u32. They are sorted least significant digit first by numpy's
radix sort of 16-bit numbers: 12 ns per window and digit, where sorting packed u64 takes 55. A text
of n tokens needs 18 n (36 n) bytes of disk for its runs. The sizes of runs and ranges do not change
the result, and any process can make any of them. How they become files: `run_files.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

IdArray: TypeAlias = NDArray[np.uint16 | np.uint32]
"""Ids of a vocabulary, in as few bytes as it takes."""

Windows: TypeAlias = IdArray
"""u16 or u32 [m, max_order]: windows, or the first columns of windows."""

Keys = NDArray[np.uint64]
"""The first ids of a window as one number, as many as fit; in the same order as the windows."""

_SAMPLE = 1 << 12
_WORTH_NARROWING = 0.75  # windows that no longer count are removed once they are a quarter of all


@dataclass(frozen=True, slots=True)
class IdSpace:
    """How the ids of a vocabulary of `size` tokens are written."""

    size: int

    @property
    def bits(self) -> int:
        """Bits per id."""
        return self.size.bit_length()

    @property
    def gap(self) -> int:
        """The highest number of so many bits. It is no id, and stands for the end of a line."""
        return (1 << self.bits) - 1

    @property
    def dtype(self) -> np.dtype[np.uint16 | np.uint32]:
        """The type of an id in an array."""
        return np.dtype(np.uint16 if self.bits <= 16 else np.uint32)

    @property
    def in_key(self) -> int:
        """How many ids fit in a key."""
        return 64 // self.bits


@dataclass(frozen=True, slots=True)
class CountedWindows:
    """Windows in the order of their keys, with how often each occurs in the corpus.

    counts: i64[m], in thousandths, so that the weights of corpus files can be fractions.
    """

    windows: Windows
    counts: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.counts)


@dataclass(frozen=True, slots=True)
class TokenNgrams:
    """The kept n-grams of one order, with how often each occurs.

    ids: u16 or u32 [k, n], sorted lexicographically, no row twice.
    counts: i64[k], or f64[k] where a corpus file has a weight that is not a whole number.
    """

    ids: IdArray
    counts: NDArray[np.int64 | np.float64]

    @property
    def order(self) -> int:
        """How many ids an n-gram has."""
        return int(self.ids.shape[1])

    def __len__(self) -> int:
        return len(self.counts)

    def __getitem__(self, which: slice | NDArray[np.bool]) -> TokenNgrams:
        """Some of the n-grams, in the same order."""
        return TokenNgrams(self.ids[which], self.counts[which])


def nothing(order: int, space: IdSpace) -> TokenNgrams:
    """No n-grams of one order."""
    return TokenNgrams(np.zeros((0, order), dtype=space.dtype), np.zeros(0, dtype=np.int64))


def sort_windows(ids: IdArray, max_order: int, space: IdSpace) -> Windows:
    """The windows of a shard, sorted by their keys; after the end of a line they hold gaps.

    ids: the lines of the shard, each followed by a gap.
    """
    windows = _windows(ids, max_order, space)
    tokens = np.flatnonzero(ids != space.gap)
    return windows.take(_sorted(tokens, windows[:, : space.in_key], space), axis=0)


def sample_keys(run: Windows, space: IdSpace) -> Keys:
    """The key of every 4096th window of a run."""
    return _keys(run[::_SAMPLE], space)


def choose_cuts(samples: Sequence[Keys], range_windows: int) -> Keys:
    """Keys that cut all runs into ranges of about `range_windows` windows.

    A range has at least one whole key: all windows that begin with the same three or four ids.
    """
    ordered = np.sort(np.concatenate(samples))
    return np.unique(ordered[:: max(1, range_windows // _SAMPLE)][1:])


def locate_cuts(run: Windows, cuts: Keys, space: IdSpace) -> NDArray[np.int64]:
    """Where a run is cut: i64[len(cuts) + 2], beginning and end included."""
    inside = np.searchsorted(_keys(run, space), cuts)
    return np.concatenate([[0], inside, [len(run)]]).astype(np.int64)


def merge_range(slices: Sequence[CountedWindows], space: IdSpace) -> CountedWindows:
    """One key range of several runs as one: sorted, each window once, the counts added up.

    Cost: 0.2 us and 100 bytes per window.
    """
    windows, order, counts = _sort_together(slices, space)
    differs = np.zeros(len(order), dtype=bool)
    differs[:1] = True
    for column in _columns(windows):
        last = column.take(order)
        differs[1:] |= last[1:] != last[:-1]
    starts = np.flatnonzero(differs)
    added = np.add.reduceat(counts, starts) if len(starts) else counts
    return CountedWindows(windows.take(order[starts], axis=0), added)


def count_range(
    slices: Sequence[CountedWindows], *, min_count: int, space: IdSpace
) -> list[TokenNgrams]:
    """Count the n-grams of each order in one key range.

    slices: the range in each run. min_count: in the same unit as their counts.
    The first and the last n-gram of an order are kept whatever their counts, because the
    neighbouring range may have more of them.
    Cost: 0.2 us and 100 bytes per window.
    """
    windows, order, weight = _sort_together(slices, space)
    differs = np.zeros(len(order), dtype=bool)
    differs[:1] = True
    counted = []
    for n, column in enumerate(_columns(windows), 1):
        last = column.take(order)
        differs[1:] |= last[1:] != last[:-1]
        starts = np.flatnonzero(differs)
        counts = np.add.reduceat(weight, starts) if len(starts) else weight
        kept = counts >= min_count
        kept[:1] = kept[-1:] = True
        kept &= last[starts] != space.gap
        ids = windows.take(order[starts[kept]], axis=0)[:, :n]
        counted.append(TokenNgrams(np.ascontiguousarray(ids), counts[kept]))
        lengths = np.diff(starts, append=len(order))
        if lengths[kept].sum() < _WORTH_NARROWING * len(order):
            alive = np.flatnonzero(np.repeat(kept, lengths))
            order, weight, differs = (array.take(alive) for array in (order, weight, differs))
    return counted


def join_ranges(parts: Iterable[TokenNgrams]) -> Iterator[TokenNgrams]:
    """Join the counts of one order in all ranges, from the first to the last, without overlap.

    An n-gram that is shorter than a key may end one range and begin the next. Its counts are added
    up, and it stands only in the last of these ranges. A part may be empty.
    """
    held: TokenNgrams | None = None
    for part in parts:
        if held is not None and len(held):
            if not len(part):
                continue
            if (held.ids[-1] == part.ids[0]).all():
                counts = part.counts.copy()
                counts[0] += held.counts[-1]
                held, part = held[:-1], TokenNgrams(part.ids, counts)
            yield held
        held = part
    if held is not None:
        yield held


def _sort_together(
    slices: Sequence[CountedWindows], space: IdSpace
) -> tuple[Windows, NDArray[np.int64], NDArray[np.int64]]:
    """The windows of all slices, the order that sorts them, and their counts in that order."""
    windows = np.concatenate([part.windows for part in slices])
    counts = np.concatenate([part.counts for part in slices])
    order = _sorted(np.arange(len(windows)), windows, space)
    return windows, order, counts.take(order)


def _windows(ids: IdArray, max_order: int, space: IdSpace) -> Windows:
    """[tokens and gaps, max_order]: the window at each position; after a gap only gaps."""
    padded = np.append(ids, np.full(max_order - 1, space.gap, dtype=space.dtype))
    windows = np.lib.stride_tricks.sliding_window_view(padded, max_order).copy()
    gaps = np.flatnonzero(ids == space.gap)
    for back in range(1, max_order - 1):
        windows[gaps[gaps >= back] - back, back + 1 :] = space.gap
    return windows


def _sorted(order: NDArray[np.int64], windows: Windows, space: IdSpace) -> NDArray[np.int64]:
    """These windows in lexicographic order of all columns; equal ones keep their order."""
    for column in _columns(windows)[::-1]:
        for digit in _digits(column, space):
            order = order.take(np.argsort(digit.take(order), kind="stable"))
    return order


def _columns(windows: Windows) -> IdArray:
    return np.ascontiguousarray(windows.T)


def _digits(column: IdArray, space: IdSpace) -> Iterator[NDArray[np.uint16]]:
    """Ids as 16-bit digits, the lowest first."""
    yield column.astype(np.uint16)
    if space.bits > 16:
        yield (column >> 16).astype(np.uint16)


def _keys(windows: Windows, space: IdSpace) -> Keys:
    keys = np.zeros(len(windows), dtype=np.uint64)
    for column in windows.T[: space.in_key]:
        keys = keys << np.uint64(space.bits) | column
    return keys
