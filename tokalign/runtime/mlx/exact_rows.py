"""Up to how many rows a pass of a loaded model gives the logits of single rows, bit for bit.

Matrix products of other shapes may add their terms in another order, so that the last bits of a row
depend on how many rows are computed with it. From how many on depends on the model, the number
format, the chip and its libraries, so it is tried out; with several texts, as rounding often hides
the difference.

Texts are read one row at a time, as plain decoding does, and again with several rows in a pass: as
a chain, and as a tree in which every second id is a wrong one. After each such pass one more row is
read on its own, so that what the pass has left in the cache is compared as well.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import replace
from time import perf_counter
from typing import Any

from tokalign.runtime.cost import find_curve, store_curve
from tokalign.runtime.mlx.session import TargetModelSession
from tokalign.runtime.mlx.weights import machine_of, vocabulary_size
from tokalign.runtime.rounds import Array
from tokalign.tables.finding import Note
from tokalign.tables.token_tree import TokenTree
from tokalign.tokenizer.vocabulary import TargetId

COUNTS = (2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 14, 16, 17, 24, 32, 33)
"""Rows that are tried. Kernels are not known to change between others."""

_CONTEXTS = (5, 130, 1030)
"""Ids that come before: attention has other kernels for long caches."""

_SEEDS = (0, 1, 2)
_READING_SHARE = 0.2


def known_exact_rows(model: Any, note: Note) -> int:
    """Up to how many rows a pass is exact, as it was measured before, or else is now.

    `note` is told. It is kept with the model's cost curve, if there is one.
    """
    curve = find_curve(machine_of(model))
    rows = None if curve is None else curve.exact_rows
    if rows is None:
        note(
            "trying for seconds up to how many rows a pass gives the last bits of single rows; "
            "tokalign calibrate keeps the answer"
        )
        rows = exact_rows(model) or 1
        if curve is not None:
            store_curve(replace(curve, exact_rows=rows))
    note(
        "--exact: a pass over two rows gives other last bits here, so decoding is plain"
        if rows == 1
        else f"--exact: passes have at most {rows} rows, which changes no bit of their logits"
    )
    return rows


def exact_rows(
    model: Any,
    *,
    budget: float = 15.0,
    limit: float = math.inf,
    clock: Callable[[], float] = perf_counter,
) -> int | None:
    """The highest of `COUNTS` up to which all passes were equal; 1 if two rows differ already.

    model: an mlx-lm model. budget: seconds after which no higher count is tried. A context that
    takes more than a fifth of them to read is left out. limit: seconds after which it ends in any
    case, with None if two rows could not be tried.
    """
    began = clock()

    def require_time() -> None:
        if clock() - began > limit:
            raise _OutOfTimeError

    equal = None
    try:
        texts = list(_texts(model, budget, clock, require_time))
        for rows in COUNTS:
            if equal is not None and clock() - began > budget:
                break
            if not all(text.agrees(rows) for text in texts):
                return equal or 1
            equal = rows
    except _OutOfTimeError:
        pass
    return equal


class _OutOfTimeError(Exception):
    pass


def _texts(
    model: Any, budget: float, clock: Callable[[], float], before_pass: Callable[[], None]
) -> Iterator[_Text]:
    """Texts of every context, as far as reading them is affordable; the first one in any case."""
    longest = TargetModelSession(model).context_length - COUNTS[-1] - 1
    reading = 0.0  # seconds per id
    for context in _CONTEXTS:
        if reading and (context > longest or context * reading > _READING_SHARE * budget):
            break
        for seed in _SEEDS:
            began = clock()
            yield _Text(model, max(2, min(context, longest)), seed, before_pass)
            reading = (clock() - began) / context


class _Text:
    """A text of arbitrary ids, which is read one row at a time and several at once."""

    def __init__(
        self, model: Any, context: int, seed: int, before_pass: Callable[[], None]
    ) -> None:
        before_pass()
        self._before_pass = before_pass
        self._context, self._size = context, vocabulary_size(model)
        self._ids = [
            TargetId((7919 * i + 104729 * seed) % self._size)
            for i in range(context + COUNTS[-1] + 1)
        ]
        self._several, self._singly = TargetModelSession(model), TargetModelSession(model)
        read = self._ids[: context - 1]
        self._several.read(self._several.logits(read).argmax(axis=-1))
        self._singly.adopt(deepcopy(self._several.layers), read)
        self._rows: list[Array] = []

    def agrees(self, rows: int) -> bool:
        """Whether passes of so many rows give the logits of single rows."""
        ids, begin = self._ids, self._context
        self._before_pass()
        chain = self._several.logits(ids[: begin + rows - 1], last=rows)
        if not all(self._equal(row, at) for at, row in enumerate(chain)):
            return False
        if not self._equal(self._several.logits(ids[: begin + rows])[0], rows):
            return False
        if not self._several.can_branch:
            return True
        # Row 0 is that of the context; then come a wrong id and the right one, in turns.
        right = (rows - 1) // 2
        proposed = [
            token
            for at in range(begin, begin + right + 1)
            for token in (TargetId((ids[at] + 1) % self._size), ids[at])
        ][: rows - 1]
        parents = [2 * (at // 2) - 1 for at in range(rows - 1)]
        tree = TokenTree(tuple(proposed), tuple(parents), ("",) * (rows - 1))
        self._before_pass()
        logits = self._several.tree(ids[:begin], tree)
        if not all(self._equal(logits[2 * at], at) for at in range(right + 1)):
            return False
        return self._equal(self._several.logits(ids[: begin + right + 1])[0], right + 1)

    def _equal(self, row: Array, at: int) -> bool:
        """Whether a row equals the one that was read on its own after `at` ids of the rest."""
        while len(self._rows) <= at:
            self._before_pass()
            (single,) = self._singly.logits(self._ids[: self._context + len(self._rows)])
            self._rows.append(single)
        return bool((row == self._rows[at]).all())
