"""A back-off table from counted token n-grams: smooth, predict, prune, pack.

The reader, and what a back-off table is: `tables/backoff.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tokalign.build.counting.windows import IdArray
from tokalign.build.dictionary.binary_fuse import assign, find_shape
from tokalign.build.dictionary.ngram_tree import Floats, Level, walk_back
from tokalign.build.dictionary.pruning import ROW_COST, Mask, best_predictions, gains, keep_best
from tokalign.build.dictionary.smoothing import in_other_text, smooth
from tokalign.tables.backoff import BackoffParameters, BackoffTable
from tokalign.tables.binary_fuse import FuseShape, Hashes, fingerprints, mix

P_MIN = ROW_COST
"""A chain is proposed as long as it is right with this probability: as long as its next row saves
more than it costs."""

MAX_PREDICTIONS = 1 << 16
"""The most different predictions. Their numbers are u16."""

_BYTES_PER_SLOT = 3
_FINEST = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Entries:
    """The contexts of one length that are to be stored, with their predictions.

    nodes: indices into the level of their n-grams. ids: of the next token. probabilities: f32.
    """

    nodes: NDArray[np.int64]
    ids: IdArray
    probabilities: Floats


def make_table(
    levels: list[Level],
    *,
    vocabulary_size: int,
    max_bytes: int,
    p_min: float = P_MIN,
) -> BackoffTable:
    """The table that saves the most passes, among those whose sections take at most `max_bytes`.

    levels: from `grow_tree`. p_min: see `P_MIN`.
    Cost: about 3 µs and 60 bytes per n-gram, and 4 µs per entry.
    """
    room = entries_within(max_bytes, id_width=_width(vocabulary_size))
    entries = select(levels, room, p_min)
    return pack(levels, entries, vocabulary_size=vocabulary_size, p_min=p_min)


def select(levels: Sequence[Level], entries: int, p_min: float) -> list[Entries]:
    """The best `entries` contexts with their predictions, by length from 1 on."""
    if len(levels) < 2:
        return []
    smoothed, weights = smooth(levels)
    probabilities = [in_other_text(values) for values in smoothed]
    predictions = best_predictions(levels, probabilities)
    gained = gains(levels, probabilities, weights, predictions, p_min=p_min)
    return [
        _entries(mask, own.ids, own.probabilities)
        for mask, own in zip(keep_best(levels, gained, entries), predictions, strict=True)
    ]


def _entries(mask: Mask, ids: IdArray, probabilities: Floats) -> Entries:
    nodes = np.flatnonzero(mask)
    likely = probabilities[nodes]
    known = np.where(likely > 0, ids[nodes], 0)  # where nothing is known, the id means nothing
    return Entries(nodes=nodes, ids=known, probabilities=likely)


def entries_within(max_bytes: int, *, id_width: int) -> int:
    """How many entries are sure to fit into so many bytes, whatever their predictions are."""
    low, high = 0, max(0, max_bytes) // _BYTES_PER_SLOT
    while low < high:
        middle = (low + high + 1) // 2
        predictions = min(middle, MAX_PREDICTIONS) * (id_width + 1)
        slots = FuseShape.holding(middle, seed=0).slots
        if slots * _BYTES_PER_SLOT + predictions <= max_bytes:
            low = middle
        else:
            high = middle - 1
    return low


def pack(
    levels: list[Level], entries: Sequence[Entries], *, vocabulary_size: int, p_min: float
) -> BackoffTable:
    """Pack entries into a table. Equal entries give equal tables."""
    width = _width(vocabulary_size)
    lengths = [length for length, some in enumerate(entries, start=1) if len(some.nodes)]
    ids = np.concatenate([some.ids for some in entries] or [np.zeros(0, dtype=np.uint16)])
    likely = np.concatenate([some.probabilities for some in entries] or [np.zeros(0, np.float32)])
    numbers, predicted, quantized = number_predictions(ids, likely)

    def hash_contexts(start: int) -> Hashes:
        hashed = [_hash(levels, n, entries[n - 1].nodes, start) for n in lengths]
        return np.concatenate(hashed) if hashed else np.zeros(0, dtype=np.uint64)

    shape, hashes, places, rounds = find_shape(len(ids), hash_contexts)
    return BackoffTable(
        BackoffParameters(shape=shape, max_context=max(lengths, default=0), p_min=p_min),
        entries=len(hashes),
        fingerprints=assign(places, rounds, fingerprints(hashes), shape.slots).astype(np.uint8),
        numbers=assign(places, rounds, numbers, shape.slots).astype(np.uint16),
        ids=predicted.astype(f"u{width}"),
        probabilities=quantized,
    )


def number_predictions(
    ids: IdArray, probabilities: Floats
) -> tuple[NDArray[np.uint16], NDArray[np.int64], NDArray[np.uint8]]:
    """Number the different predictions: the number of each entry, and the ids and the probabilities
    (in 1/255) by number.

    The probabilities of one id are put into bins of equal width, and an entry gets the mean of its
    bin. The bins are as narrow as 65,536 predictions allow. If even one bin per id is too many, the
    rarest ids share one prediction, which is never proposed.
    """
    for bins in range(_FINEST, 0, -1):
        level = np.minimum((probabilities * bins).astype(np.int64), bins - 1)
        keys = ids.astype(np.int64) * bins + level
        occurrences = np.bincount(keys)
        pairs = np.flatnonzero(occurrences)
        if len(pairs) <= MAX_PREDICTIONS:
            break
    counts = occurrences[pairs]
    ranks = np.zeros(len(occurrences), dtype=np.int64)
    ranks[pairs] = np.arange(len(pairs))
    numbers = ranks[keys]
    means = np.bincount(numbers, weights=probabilities, minlength=len(pairs)) / counts
    if len(pairs) > MAX_PREDICTIONS:
        rare = np.argsort(-counts, kind="stable")[MAX_PREDICTIONS - 1 :]
        means[rare] = 0
        numbers = np.where(np.isin(numbers, rare), rare[0], numbers)
        used, numbers = np.unique(numbers, return_inverse=True)
        pairs, means = pairs[used], means[used]
    return numbers.astype(np.uint16), pairs // bins, np.rint(means * 255).astype(np.uint8)


def _hash(levels: list[Level], length: int, nodes: NDArray[np.int64], start: int) -> Hashes:
    hashes = np.full(len(nodes), start, dtype=np.uint64)
    for ids in walk_back(levels, length, nodes):
        hashes = mix(hashes, ids)
    return hashes


def _width(vocabulary_size: int) -> int:
    """Bytes per id."""
    return 2 if vocabulary_size <= 1 << 16 else 4
