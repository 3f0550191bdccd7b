"""Drafting for many requests at once, with NumPy, for engines that decode in batches.

`BatchDrafter` drafts a chain of ids for each request: at each position the surest source says which
id comes next, as long as all ids of the chain together are probable enough. Where one dictionary is
the only source, the chain is that of `BackoffTable.follow`. `BatchLookup` asks one dictionary about
many texts, and `ContextMatches` copies from the request's own text.

The hybrid of the MLX runtime mixes its sources and learns how far to trust them. Here no text is
kept from step to step, so nothing can be learned from it, and the mixture without learning proposed
more rows for the same tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokalign.errors import UsageError
from tokalign.runtime.draft.context_copy import AGREED, LATEST, ONLY, PRIORS
from tokalign.tables.backoff import BackoffTable
from tokalign.tables.binary_fuse import FINGERPRINT_WIDTH, fingerprints, mix
from tokalign.tables.dictionary import MAX_CONTEXT

P_MIN = 0.05
"""The least probability of a whole chain where there is no dictionary to say it."""

LONGEST_MATCH = 16
"""Longer matches count as this long: how often copies are right does not grow any further."""

NO_ID = -1
"""Where a text has no further id, and where no id is expected."""

_RIGHT = np.array(
    [
        [0.0, *(prior[min(length, len(prior)) - 1] for length in range(1, LONGEST_MATCH + 1))]
        for _, prior in sorted(PRIORS.items())
    ]
)
"""How often a copy is right, by the kind of its match and its length."""

Ids = NDArray[np.int64]
Floats = NDArray[np.float64]

Rows = NDArray[Any]
"""Token ids i[requests, longest context]; what is after the end of a request means nothing."""


class BatchDrafter:
    """Proposes a chain of ids for each of many requests.

    dictionaries: by the names of their sources. copies: whether contexts are copied from.
    max_tokens: the longest chain. p_min: the least probability of a whole chain; None for what the
    dictionaries say, the largest where they differ.
    Raises: UsageError if there is nothing to draft with.
    """

    def __init__(
        self,
        dictionaries: Mapping[str, BackoffTable],
        *,
        copies: bool = True,
        max_tokens: int,
        p_min: float | None = None,
    ) -> None:
        if not dictionaries and not copies:
            raise UsageError("there is nothing to draft with; allow copies or give a dictionary")
        self._tables = [BatchLookup(table) for table in dictionaries.values()]
        self._copies, self._max_tokens = copies, max_tokens
        own = [table.parameters.p_min for table in dictionaries.values()]
        self._p_min = p_min if p_min is not None else max(own, default=P_MIN)

    def propose(self, rows: Rows, lengths: Ids, limits: Ids) -> list[list[int]]:
        """The proposals of all requests, in their order.

        rows: i[requests, longest context], the ids of each request, which has `lengths` of them,
        i64[requests]. limits: i64[requests], the most ids to propose, 0 for a request to skip.
        Cost: see lab/results/vllm.md.
        """
        lengths = np.where(limits > 0, lengths, 0)
        limits = np.minimum(limits, self._max_tokens)
        endings = _last_ids(rows, lengths)
        matches = ContextMatches(rows, lengths) if self._copies else None
        drafted = np.full((len(lengths), self._max_tokens), NO_ID)
        together = np.ones(len(lengths))
        alive = np.flatnonzero(lengths)
        for depth in range(self._max_tokens):
            chosen, probability = self._surest(endings[alive], matches, alive)
            together[alive] *= probability
            taken = (chosen != NO_ID) & (together[alive] >= self._p_min) & (limits[alive] > depth)
            alive, chosen = alive[taken], chosen[taken]
            if not len(alive):
                break
            drafted[alive, depth] = chosen
            endings[alive, 1:] = endings[alive, :-1]
            endings[alive, 0] = chosen
            if matches is not None:
                matches.advance(drafted[:, depth])
        counts = (drafted != NO_ID).sum(axis=1)
        return [
            chain[:count] for chain, count in zip(drafted.tolist(), counts.tolist(), strict=True)
        ]

    def _surest(
        self, endings: Ids, matches: ContextMatches | None, alive: Ids
    ) -> tuple[Ids, Floats]:
        """The id that the surest source expects of each request (ties: copies first), NO_ID for
        none, and its probability. alive: the requests to which `endings` belong."""
        expected: list[tuple[Ids, Floats]] = []
        if matches is not None:
            copied, right = matches.expected()
            expected.append((copied[alive], right[alive]))
        expected += [table.predict(endings) for table in self._tables]
        ids, probabilities = (np.stack(part) for part in zip(*expected, strict=True))
        probabilities = np.where(ids == NO_ID, 0.0, probabilities)
        surest = probabilities.argmax(axis=0), np.arange(len(alive))
        return np.where(probabilities[surest] > 0, ids[surest], NO_ID), probabilities[surest]


def _last_ids(rows: Rows, lengths: Ids) -> Ids:
    """i64[texts, MAX_CONTEXT]: the last ids of texts, the very last one first, else NO_ID."""
    places = lengths[:, None] - 1 - np.arange(MAX_CONTEXT)
    ids = np.take_along_axis(rows[: len(lengths)], np.maximum(places, 0), axis=1)
    return np.where(places >= 0, ids, NO_ID).astype(np.int64)


class ContextMatches:
    """Earlier occurrences of the ends of all texts, followed as the texts are drafted on.

    `runtime/draft/context_copy.py` keeps a suffix automaton for every request. Here nothing is kept
    from step to step: vLLM hands over the ids of all requests and may move a request to another row
    at any time, and searching all rows anew by comparing arrays takes some ten microseconds. So
    nothing of one request can get into another.
    rows, lengths: the texts, i64[requests] ids long.
    Cost: about 1 ns for each id of the contexts, and 100 µs.
    """

    def __init__(self, rows: Rows, lengths: Ids) -> None:
        self._rows, self._text_lengths = rows, lengths
        self._row, self._next, self._lengths = _longest_matches(rows, lengths)

    def expected(self) -> tuple[Ids, Floats]:
        """What followed the latest occurrence. Returns: i64[requests] ids, NO_ID for none, and
        f64[requests], how often they are right."""
        count, row = len(self._text_lengths), self._row
        following = self._following()
        starts = np.flatnonzero(np.diff(row, prepend=NO_ID))
        ends = np.append(starts[1:], len(row))[: len(starts)] - 1
        found, latest = row[starts], following[ends]
        alike = following[starts] == latest
        kinds = np.where(starts == ends, ONLY, np.where(alike, AGREED, LATEST))
        ids, right = np.full(count, NO_ID), np.zeros(count)
        ids[found], right[found] = latest, _RIGHT[kinds, self._lengths[found]]
        return ids, right

    def advance(self, chosen: Ids) -> None:
        """The texts go on with these ids, i64[requests]; NO_ID for one that is not followed."""
        goes_on = self._following() == chosen[self._row]
        self._row, self._next = self._row[goes_on], self._next[goes_on] + 1
        self._lengths = np.minimum(self._lengths + 1, LONGEST_MATCH)

    def _following(self) -> Ids:
        """The id after each occurrence; NO_ID after one at the end of the text."""
        within = self._next < self._text_lengths[self._row]
        following = self._rows[self._row, np.where(within, self._next, 0)]
        return np.where(within, following, NO_ID).astype(np.int64)


def _longest_matches(rows: Rows, lengths: Ids) -> tuple[Ids, Ids, Ids]:
    """Where the longest suffix that occurred before did so, and how long it is.

    Returns: for each occurrence its request and the index of the id after it, both i64 and sorted;
    for each request the length of the match, i64[requests].
    """
    count = len(lengths)
    matched = np.zeros(count, dtype=np.int64)
    width = int(lengths.max(initial=0))
    if width < 2:
        return np.zeros(0, np.int64), np.zeros(0, np.int64), matched
    last = lengths - 1
    endings = rows[np.arange(count), np.maximum(last, 0)]
    row, end = np.nonzero(rows[:count, : width - 1] == endings[:, None])
    inside = end < last[row]
    row, end = row[inside], end[inside]
    done_row, done_end = [], []
    for length in range(1, LONGEST_MATCH + 1):
        matched[row] = length
        if not len(row) or length == LONGEST_MATCH:
            break
        goes_on = end >= length
        goes_on &= rows[row, np.maximum(end - length, 0)] == rows[row, last[row] - length]
        grows = np.zeros(count, dtype=np.bool_)
        grows[row[goes_on]] = True
        done = ~grows[row]
        done_row.append(row[done])
        done_end.append(end[done])
        row, end = row[goes_on], end[goes_on]
    row, end = np.concatenate([*done_row, row]), np.concatenate([*done_end, end])
    order = np.argsort(row, kind="stable")
    return row[order], end[order] + 1, matched


class BatchLookup:
    """A back-off table that is asked about many texts at once.

    A look-up in Python takes some microseconds, which is nothing for one request and a tenth of a
    pass for sixty-four. Here all suffixes of all texts are hashed, looked up and compared by the
    same few array operations, so a batch takes hardly longer than one text. The answers are those
    of `BackoffTable.predict`.
    """

    def __init__(self, table: BackoffTable) -> None:
        self._max_context = table.parameters.max_context
        self._shape = table.parameters.shape
        self._slots, self._ids, self._probabilities = table.arrays

    def predict(self, endings: Ids) -> tuple[Ids, Floats]:
        """The most probable next id of each text, and how probable it is.

        endings: i64[texts, n], the last ids of each text, the very last one first, NO_ID where a
            text has no more; n is at least the table's `max_context`.
        Returns: i64[texts], NO_ID for none; f64[texts], of no meaning where there is no id.
        Cost: about 50 µs, and 0.5 µs for each text.
        """
        if not len(self._ids):
            return np.full(len(endings), NO_ID), np.zeros(len(endings))
        reversed_ids = endings.T[: self._max_context]
        states = self._hash(reversed_ids)
        first, second, third = self._slots[self._shape.places(states)]
        values = first ^ second ^ third
        stored = values.astype(np.uint8) == fingerprints(states)
        stored &= reversed_ids >= 0
        lengths = np.logical_and.accumulate(stored, axis=0).sum(axis=0)
        longest = np.maximum(lengths - 1, 0), np.arange(len(endings))
        numbers = values[longest] >> FINGERPRINT_WIDTH
        known = (lengths > 0) & (numbers < len(self._ids))  # a larger number is noise
        numbers = np.where(known, numbers, 0)
        ids = np.where(known, self._ids[numbers].astype(np.int64), NO_ID)
        return ids, self._probabilities[numbers] / 255

    def _hash(self, reversed_ids: Ids) -> NDArray[np.uint64]:
        """u64[contexts, texts]: the hashes of the last id, of the last two, and so on."""
        states = np.empty(reversed_ids.shape, dtype=np.uint64)
        state = np.full(reversed_ids.shape[1], self._shape.start, dtype=np.uint64)
        for depth, ids in enumerate(reversed_ids.astype(np.uint64)):
            state = states[depth] = mix(state, ids)
        return states
