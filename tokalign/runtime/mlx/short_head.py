"""A head without the ids that no text in the user's languages has, for what drafts.

In every pass a draft model reads a row of its head for each of its ids: 21 % of all weights of
Llama 3.2 1B, 63 % of Gemma 3 270M; a drafter of one layer may read more of its target's head than
of itself. Nothing is lost where such a row is left out, as its id would not be drafted, and what
the target emits is its own in any case. So a pass computes the logits of frequent ids and of those
that the text has had; those of all others are -inf. A text in a language that was not counted has
many others; the whole head reads on from there. Which ids are frequent is told by the alignment,
or, for those with the target's ids, by what its dictionaries expect anywhere.
Source: FR-Spec (Zhao et al., 2025), which has a fixed list, of the target's ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from numpy.typing import NDArray

from tokalign.runtime.mlx.hidden_states import as_head, find_head
from tokalign.runtime.mlx.twins import mixed_in, twin_of
from tokalign.runtime.mlx.weights import once_per_model
from tokalign.runtime.rounds import Array

_ROWS_OF_IDS = (nn.Linear, nn.Embedding, nn.QuantizedLinear, nn.QuantizedEmbedding)
"""Modules whose arrays all have a row for each id."""

_LATEST, _FEWEST = 128, 32
"""Ids by which a text is judged, the latest ones, and how many it takes to judge it."""

_MOST_OTHERS = 0.08
"""The share of ids that are not frequent where the whole head pays. Texts in languages that were
counted have up to 0.06, others from 0.15 on, but for close relatives (Slovak beside Czech)."""


class FrequentRows:
    """The rows of a head for the frequent ids, which all sessions of a model share.

    ids: u32[n], each once, of the head's.
    """

    def __init__(self, head: Any, ids: NDArray[np.uint32]) -> None:
        self.head, self.ids = head, frozenset(ids.tolist())
        self.columns = mx.array(ids)
        self.rows = rows_of(head, self.columns)
        mx.eval(self.rows.parameters())


def frequent_rows(model: Any, ids: NDArray[np.uint32]) -> FrequentRows | None:
    """Those of a model, kept until others are asked for; None where its head has no row for each
    id, where there are none, as in a dictionary without entries, or where they are more than half
    of it: then a pass is 10 % shorter, and what is drafted 2 % worse."""
    head = find_head(model)
    if type(head) not in _ROWS_OF_IDS or not 0 < 2 * len(ids) <= head.weight.shape[0]:
        return None
    made, key = _rows_of_model(model), ids.tobytes()
    if (rows := made.get(key)) is None:  # looked up once, as another thread may ask for others
        rows = FrequentRows(head, ids[ids < head.weight.shape[0]])
        made.clear()
        made[key] = rows
    return rows


@once_per_model
def _rows_of_model(_model: Any) -> dict[bytes, FrequentRows]:
    return {}


class ShortHead:
    """The head of one text. columns: the ids whose logits the latest call gave; None for all."""

    columns: Array | None = None

    def __init__(self, frequent: FrequentRows) -> None:
        self._frequent = frequent
        self._others: dict[int, None] = {}  # of the text, as they came
        self._known: Array = frequent.columns
        self._rows: Any = None
        self._trials = self._misses = 0.0
        self._followed = 0

    def follow(self, ids: Sequence[int]) -> None:
        """Read what is new in a text that only grows."""
        self.read(ids[self._followed :])
        self._followed = len(ids)

    def read(self, ids: Sequence[int]) -> None:
        """The text goes on with these ids."""
        for token in ids:
            self._trials *= 1 - 1 / _LATEST
            self._misses *= 1 - 1 / _LATEST
            self._trials += 1
            if token not in self._frequent.ids:
                self._misses += 1
                self._others[token] = None

    def __call__(self, x: Array) -> Array:
        """f[..., width] -> f[..., vocabulary]."""
        frequent = self._frequent
        if self._misses > max(self._trials, _FEWEST) * _MOST_OTHERS:
            self.columns = None
            return as_head(frequent.head)(x)
        if len(self._known) != len(frequent.ids) + len(self._others):
            ids = mx.array([*self._others], dtype=mx.uint32)
            self._known = mx.concatenate([frequent.columns, ids])
            self._rows = rows_of(frequent.head, ids)
        logits = as_head(frequent.rows)(x)
        if self._rows is not None:
            logits = mx.concatenate([logits, as_head(self._rows)(x)], axis=-1)
        self.columns = self._known
        return among_all(logits, self._known, frequent.head.weight.shape[0])

    def in_place_of_head(self, model: Any) -> Any:
        whole = self._frequent.head

        def replace(module: Any) -> Any:
            return mixed_in(_Shortened, module, _short=self) if module is whole else None

        return twin_of(model, replace)


def rows_of(head: Any, ids: Array) -> Any:
    """A head of the ids i[n] alone."""
    part = copy(head)
    for name, array in head.items():
        part[name] = array[ids]
    return part


def among_all(logits: Array, ids: Array, size: int) -> Array:
    """f[..., n] of the ids i[..., n] -> f[..., size], -inf for all other ids."""
    everything = mx.full((*logits.shape[:-1], size), -mx.inf, logits.dtype)
    return mx.put_along_axis(everything, mx.broadcast_to(ids, logits.shape), logits, axis=-1)


class _Shortened:
    """Mixed into the class of a head, or of the embedding that is one."""

    _short: ShortHead

    def __call__(self, x: Array) -> Array:
        """As the module's own; an embedding is called with ids, too."""
        if mx.issubdtype(x.dtype, mx.floating):
            return self._short(x)
        return super().__call__(x)  # type: ignore[misc]

    def as_linear(self, x: Array) -> Array:
        return self._short(x)
