"""A back-off table (`tables/backoff.py`) from counted n-grams: smooth, predict, prune, pack."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokalign.build.counting.ngram_tree import Floats, NgramLevel, walk_back
from tokalign.build.counting.windows import IdArray
from tokalign.build.dictionary.pruning import ROW_COST, ContextCandidates, Entries
from tokalign.tables.backoff import ALTERNATIVE, BackoffParameters, BackoffTable
from tokalign.tables.binary_fuse import FuseShape, Hashes, assign, find_shape, fingerprints, mix

P_MIN = ROW_COST
"""A chain is proposed as long as its next row saves more than it costs."""

MAX_PREDICTIONS = 1 << 16  # different ones: their numbers are u16
_BYTES_PER_SLOT = 3
_MARGINS = 1.05, 1.2, 1.4  # by how much more entries may raise the number of predictions
_MOST_BINS = 8  # of the probabilities of one id
_LEAST_ODDS, _MOST_ODDS = -3.5, 4.5  # where the first bin begins and the last one ends
_PRECISION = 1e-3  # relative, of the price of a prediction


def make_table(
    levels: list[NgramLevel], *, vocabulary_size: int, max_bytes: int, p_min: float = P_MIN
) -> BackoffTable:
    """The table that saves the most passes, among those whose sections take at most `max_bytes`.
    Cost: about 5 µs and 80 bytes per n-gram, and 4 µs per entry."""
    width = _width(vocabulary_size)
    candidates = ContextCandidates(levels, p_min)
    entries = candidates.best(entries_within(max_bytes, id_width=width))
    # There are far fewer different predictions than there may be: room for more entries.
    used = len(number_predictions(*_answers(entries)).ids)
    for margin in _MARGINS:
        different = round(margin * used)
        more = candidates.best(entries_within(max_bytes, id_width=width, predictions=different))
        if len(number_predictions(*_answers(more)).ids) <= different:
            entries = more
            break
    return pack(levels, entries, vocabulary_size=vocabulary_size, p_min=p_min)


def _answers(entries: Sequence[Entries]) -> tuple[IdArray, Floats]:
    ids = [np.zeros(0, dtype=np.uint16), *[some.ids for some in entries]]
    likely = [np.zeros(0, dtype=np.float32), *[some.probabilities for some in entries]]
    return np.concatenate(ids), np.concatenate(likely)


def entries_within(max_bytes: int, *, id_width: int, predictions: int = MAX_PREDICTIONS) -> int:
    """How many entries with this many different predictions are sure to fit into `max_bytes`."""

    def size(entries: int) -> int:
        slots = FuseShape.holding(entries, seed=0).slots
        return slots * _BYTES_PER_SLOT + min(entries, predictions) * (id_width + 1)

    most = max(0, max_bytes) // _BYTES_PER_SLOT
    return max(0, bisect_right(range(most + 1), max_bytes, key=size) - 1)


def pack(
    levels: list[NgramLevel], entries: Sequence[Entries], *, vocabulary_size: int, p_min: float
) -> BackoffTable:
    """Pack entries into a table. Equal entries give equal tables."""
    width = _width(vocabulary_size)
    stored = [some for some in entries if len(some.nodes)]
    numbered = number_predictions(*_answers(stored))

    def hash_keys(start: int) -> Hashes:
        hashed = [_hash(levels, some, start) for some in stored]
        return np.concatenate(hashed) if hashed else np.zeros(0, dtype=np.uint64)

    shape, hashes, places, rounds = find_shape(len(numbered.numbers), hash_keys)
    return BackoffTable(
        BackoffParameters(
            shape=shape,
            max_context=max((some.length for some in stored), default=0),
            p_min=p_min,
            alternatives=max((some.rank for some in stored), default=0),
        ),
        entries=sum(len(some.nodes) for some in stored if some.rank == 0),
        fingerprints=assign(places, rounds, fingerprints(hashes), shape.slots).astype(np.uint8),
        numbers=assign(places, rounds, numbered.numbers, shape.slots).astype(np.uint16),
        ids=numbered.ids.astype(f"u{width}"),
        probabilities=numbered.probabilities,
    )


class NumberedPredictions(NamedTuple):
    """The different predictions of some entries. numbers: of each. probabilities: in 1/255."""

    numbers: NDArray[np.uint16]
    ids: NDArray[np.int64]
    probabilities: NDArray[np.uint8]


def number_predictions(ids: IdArray, probabilities: Floats) -> NumberedPredictions:
    """Number the different predictions of entries with these ids and probabilities.

    The probabilities of one id are put into bins of equal width in log-odds, and an entry gets the
    mean of its bin. If 65,536 predictions require it, bins of some ids are joined two by two: where
    that moves the log-odds of entries least, and so of rare ids first. If even one bin per id is
    too many, the rarest ids share one prediction, which is never proposed.
    """
    with np.errstate(divide="ignore"):
        # Rounding may have taken them beyond. Of 32 bits, logarithms depend on the processor.
        likely = np.clip(probabilities.astype(np.float64), 0, 1)
        odds = np.clip(np.log(likely) - np.log1p(-likely), _LEAST_ODDS, _MOST_ODDS)
    place = (odds - _LEAST_ODDS) / (_MOST_ODDS - _LEAST_ODDS)
    level = np.minimum((place * _MOST_BINS).astype(np.int64), _MOST_BINS - 1)
    wide = ids.astype(np.int64)
    keys = wide * _MOST_BINS + (level >> _joined(wide, level, odds)[wide])
    occurrences = np.bincount(keys)
    pairs = np.flatnonzero(occurrences)
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
    return NumberedPredictions(
        numbers.astype(np.uint16), pairs // _MOST_BINS, np.rint(means * 255).astype(np.uint8)
    )


def _joined(ids: NDArray[np.int64], level: NDArray[np.int64], odds: Floats) -> NDArray[np.int64]:
    """How often the bins of each id are joined two by two, so that `MAX_PREDICTIONS` are enough.

    The squared errors that joining adds are smallest, for a price of a prediction that is searched
    for (Lagrange's method).
    """
    size = int(ids.max(initial=-1)) + 1
    if np.count_nonzero(np.bincount(ids * _MOST_BINS + level)) <= MAX_PREDICTIONS:
        return np.zeros(size, dtype=np.int64)
    predictions, errors = list[Floats](), list[Floats]()  # of each id, by how often it is joined
    for times in range(_MOST_BINS.bit_length()):
        bins = ids * _MOST_BINS + (level >> times)
        count, total, squares = (
            np.bincount(bins, weights=of, minlength=size * _MOST_BINS).reshape(size, _MOST_BINS)
            for of in (None, odds, odds * odds)
        )
        predictions.append(np.count_nonzero(count, axis=1))
        errors.append((squares - total * total / np.maximum(count, 1)).sum(axis=1))
    used, error = np.array(predictions), np.array(errors)

    def best(price: float) -> NDArray[np.int64]:
        return np.asarray(np.argmin(error + price * used, axis=0))

    low, high = 0.0, float(error.max()) + 1.0
    while high - low > _PRECISION * high:
        price = (low + high) / 2
        fits = used[best(price), np.arange(size)].sum() <= MAX_PREDICTIONS
        low, high = (low, price) if fits else (price, high)
    return best(high)


def _hash(levels: list[NgramLevel], entries: Entries, start: int) -> Hashes:
    nodes = entries.nodes
    hashes = np.full(len(nodes), start, dtype=np.uint64)
    for ids in walk_back(levels, entries.length, nodes):
        hashes = mix(hashes, ids)
    for _ in range(entries.rank):
        hashes = mix(hashes, np.full(len(nodes), ALTERNATIVE, dtype=np.uint64))
    return hashes


def _width(vocabulary_size: int) -> int:
    return 2 if vocabulary_size <= 1 << 16 else 4
