"""What the target itself found likely, kept for every verified row and looked up by the last ids.

A pass computes the target's distribution after every row of a proposal, and verification uses one
id of each. The store keeps the likeliest `KEPT` ids of every row, whether the row was accepted or
not, under the last one, two and three ids before it. A later round that meets these ids again finds
what the target expected there.

Probabilities are those of the raw logits: at temperature 1, before processors and filters. They do
not depend on the options of a request, so requests with different options may share a store; what
they are worth under a request's own options is learned (`mixing.py`).

The store is a hash table with a fixed number of slots, each of which keeps the latest row that
fell to it. So an update takes constant time, and memory is the same for every vocabulary.
Source: the adjacency matrix of Token Recycling (Luo et al., 2024) and the confidence matrix of
UniSpec, which are keyed by the last id alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from tokalign.tables.token_tree import TokenTree
from tokalign.tokenizer.vocabulary import TargetId

KEPT = 8
"""Ids kept of each row."""

LONGEST_KEY = 3
"""Ids in the longest key."""

SLOTS = 1 << 17
"""Slots of a store: 5.8 MB (44 bytes each: a check, eight ids and eight log-odds)."""

_WORD = (1 << 64) - 1
_MULTIPLIER = 0x9E3779B97F4A7C15
_CHECK = 0xFFFFFFFF

_STEP = 1 / 16
"""Log-odds are kept as multiples of this, from -8 up."""

LOG_ODDS = tuple([(code - 128) * _STEP for code in range(256)])
"""The log-odds that a byte stands for."""


class LogitStore:
    """The likeliest next ids after the ids that the target has read lately.

    It serves one conversation or one session, of one target. Several threads may use it: a slot
    that one of them reads while another writes can give a wrong guess, never a wrong output.
    slots: a power of two.
    """

    def __init__(self, *, slots: int = SLOTS) -> None:
        self._bits = 64 - (slots.bit_length() - 1)
        self._checks = np.zeros(slots, dtype=np.uint32)
        self._ids = np.zeros((slots, KEPT), dtype=np.uint32)
        self._codes = np.zeros((slots, KEPT), dtype=np.uint8)
        # Indexing a memoryview gives plain Python numbers, several times faster than an array.
        self._check_of = self._checks.data
        self._flat_ids = self._ids.reshape(-1).data
        self._flat_codes = self._codes.reshape(-1).data

    @property
    def width(self) -> int:
        """See `interfaces.RowStore`."""
        return KEPT

    @property
    def nbytes(self) -> int:
        """Bytes that the table takes."""
        return self._checks.nbytes + self._ids.nbytes + self._codes.nbytes

    def __len__(self) -> int:
        """How many slots are in use."""
        return int(np.count_nonzero(self._checks))

    def learn(
        self,
        ids: Sequence[TargetId],
        tree: TokenTree,
        likely: NDArray[Any],
        logprobs: NDArray[Any],
    ) -> None:
        """See `interfaces.RowStore`. Cost: about 60 µs for 16 rows."""
        order = np.argsort(-logprobs, axis=-1, kind="stable")
        likely = np.take_along_axis(likely, order, axis=-1)
        codes = _codes_of(np.take_along_axis(logprobs, order, axis=-1))
        tails = [list(ids[-LONGEST_KEY:])]
        for token, parent in zip(tree.ids, tree.parents, strict=True):
            tails.append([*tails[parent + 1], token][-LONGEST_KEY:])
        keys, rows = [], []
        for row, tail in enumerate(tails):
            for key in _keys(tail):
                keys.append(key)
                rows.append(row)
        hashed = np.array(keys, dtype=np.uint64)
        slots = (hashed >> np.uint64(self._bits)).astype(np.int64)
        self._ids[slots] = likely[rows]
        self._codes[slots] = codes[rows]
        self._checks[slots] = (hashed & np.uint64(_CHECK)).astype(np.uint32) | 1

    def after(self, key: Sequence[TargetId]) -> tuple[list[TargetId], Sequence[int]] | None:
        """What the target expected after exactly these ids. Cost: about 1 µs."""
        hashed = _hash(key)
        slot = hashed >> self._bits
        if self._check_of[slot] != (hashed & _CHECK) | 1:
            return None
        begin = slot * KEPT
        ids = self._flat_ids[begin : begin + KEPT].tolist()
        return cast("list[TargetId]", ids), self._flat_codes[begin : begin + KEPT]


def _hash(key: Sequence[TargetId]) -> int:
    state = len(key) * _MULTIPLIER & _WORD  # large, so that no id cancels it
    for token in key:
        state = (state ^ token) * _MULTIPLIER & _WORD
        state ^= state >> 29
    return state * _MULTIPLIER & _WORD


def _keys(tail: Sequence[TargetId]) -> Iterator[int]:
    for length in range(1, len(tail) + 1):
        yield _hash(tail[-length:])


def _codes_of(logprobs: NDArray[Any]) -> NDArray[np.uint8]:
    """Log-odds of probabilities as bytes."""
    p = np.clip(np.exp(logprobs.astype(np.float64)), 1e-12, 1 - 1e-12)
    odds = np.log(p) - np.log1p(-p)
    return np.asarray(np.clip(np.rint(odds / _STEP) + 128, 0, 255), dtype=np.uint8)
