"""From encoded ids to n-gram counts of all orders.

A *window* is a position of the text with the ids from there on, `max_order` of them. Every n-gram
of every order is the beginning of exactly one window, so sorted windows count all orders:

    ids of a shard --sort_windows--> a sorted run, each different window once with its count
    a stretch of several runs --count_ngrams--> n-grams of all orders in that stretch
    n-grams of one stretch after the other --join--> n-grams of the corpus

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

Columns are sorted least significant digit first by numpy's radix sort of 16-bit numbers: 12 ns per
window and digit. How runs become files: `runs.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

IdArray: TypeAlias = NDArray[np.uint16 | np.uint32]
"""Ids of a vocabulary, in as few bytes as it takes."""

Windows: TypeAlias = NDArray[np.void]
"""Rows of `IdSpace.windows`: ids, and how often the window occurs, in thousandths."""

WEIGHT_UNIT = 1000  # weights and counts are kept in thousandths
_WORTH_NARROWING = 0.75  # windows that no longer count are removed once they are a quarter of all


@dataclass(frozen=True, slots=True)
class IdSpace:
    """How the ids of a vocabulary of this size are written."""

    size: int

    @property
    def gap(self) -> int:
        """Stands for the end of a line: the highest number of as many bits, which is no id."""
        return (1 << self.size.bit_length()) - 1

    @property
    def dtype(self) -> np.dtype[np.uint16 | np.uint32]:
        return np.dtype(np.uint16 if self.gap < 1 << 16 else np.uint32)

    def windows(self, max_order: int) -> np.dtype[np.void]:
        """The type of a window in an array. Counts are i64, so that weights can be fractions."""
        return np.dtype([("ids", self.dtype, (max_order,)), ("count", np.int64)])


@dataclass(frozen=True, slots=True)
class TokenNgrams:
    """N-grams of one order. ids: u16 or u32 [k, n], sorted lexicographically, no row twice. counts:
    i64[k], or f64[k] where a file's weight is not a whole number."""

    ids: IdArray
    counts: NDArray[np.int64 | np.float64]

    def __len__(self) -> int:
        return len(self.counts)

    def __getitem__(self, which: slice | NDArray[np.bool]) -> TokenNgrams:
        return TokenNgrams(self.ids[which], self.counts[which])


def sortable(rows: IdArray) -> NDArray[np.bytes_]:
    """Rows of ids [k, n] as byte strings that sort like them: their ids in big-endian order."""
    big_endian = np.ascontiguousarray(rows.astype(rows.dtype.newbyteorder(">")))
    return big_endian.view(f"S{rows.itemsize * rows.shape[1]}").ravel()


def sort_windows(ids: IdArray, max_order: int, space: IdSpace, *, weight: int) -> Windows:
    """The different windows of a shard, sorted. ids: its lines, each followed by a gap. weight:
    thousandths."""
    padded = np.append(ids, np.full(max_order - 1, space.gap, dtype=space.dtype))
    windows = np.lib.stride_tricks.sliding_window_view(padded, max_order).copy()
    gaps = np.flatnonzero(ids == space.gap)
    for back in range(1, max_order - 1):
        windows[gaps[gaps >= back] - back, back + 1 :] = space.gap
    windows = windows[ids != space.gap]
    rows = np.zeros(len(windows), dtype=space.windows(max_order))
    rows["ids"], rows["count"] = windows, weight
    return merge_windows(rows)


def merge_windows(windows: Windows) -> Windows:
    """Windows in any order, sorted, each once with its counts added up."""
    columns = np.ascontiguousarray(windows["ids"].T)
    order = _sorted(columns)
    differs = np.zeros(len(order), dtype=bool)
    differs[:1] = True
    for column in columns:
        ordered = column.take(order)
        differs[1:] |= ordered[1:] != ordered[:-1]
    starts = np.flatnonzero(differs)
    merged = windows.take(order.take(starts))
    if len(starts):
        merged["count"] = np.add.reduceat(windows["count"].take(order), starts)
    return merged


def count_ngrams(
    _: object, windows: Windows, space: IdSpace, least: Sequence[int]
) -> list[TokenNgrams]:
    """Count the n-grams of each order in a stretch of windows, in any order.

    The first argument is the state of the process. least: the least count of each order, in
    thousandths, never falling. The first and the last n-gram are kept in any case: the neighbouring
    stretch may have more.
    Cost: 0.2 us and 100 bytes per window.
    """
    ids = np.ascontiguousarray(windows["ids"])
    columns = np.ascontiguousarray(ids.T)
    order = _sorted(columns)
    weight = windows["count"].take(order)
    differs = np.zeros(len(order), dtype=bool)
    differs[:1] = True
    counted = []
    for n, (column, rare) in enumerate(zip(columns, least, strict=True), 1):
        last = column.take(order)
        differs[1:] |= last[1:] != last[:-1]
        starts = np.flatnonzero(differs)
        counts = np.add.reduceat(weight, starts) if len(starts) else weight
        kept = counts >= rare
        kept[:1] = kept[-1:] = True
        kept &= last[starts] != space.gap
        ngrams = ids.take(order[starts[kept]], axis=0)[:, :n]
        counted.append(TokenNgrams(np.ascontiguousarray(ngrams), counts[kept]))
        lengths = np.diff(starts, append=len(order))
        if lengths[kept].sum() < _WORTH_NARROWING * len(order):
            alive = np.flatnonzero(np.repeat(kept, lengths))
            order, weight, differs = (array.take(alive) for array in (order, weight, differs))
    return counted


def join(held: TokenNgrams, part: TokenNgrams) -> tuple[TokenNgrams, TokenNgrams]:
    """Join the n-grams of neighbouring stretches. held: the last n-gram so far. Returns those whose
    counts are known, and the last."""
    if not len(part):
        return part, held
    if len(held) and (held.ids[-1] == part.ids[0]).all():
        counts = part.counts.copy()
        counts[0] += held.counts[-1]
        held, part = held[:0], TokenNgrams(part.ids, counts)
    whole = part[:-1]
    if len(held):
        whole = TokenNgrams(
            np.concatenate([held.ids, whole.ids]), np.concatenate([held.counts, whole.counts])
        )
    return whole, part[-1:]


def _sorted(columns: IdArray) -> NDArray[np.int64]:
    """The order that sorts windows with these columns; equal ones keep their order."""
    return np.lexsort([digit for column in columns[::-1] for digit in _digits(column)])


def _digits(column: IdArray) -> Iterator[NDArray[np.uint16]]:
    """Ids as 16-bit digits, the lowest first."""
    yield column.astype(np.uint16)
    if column.itemsize > 2:
        yield (column >> 16).astype(np.uint16)
