"""Logits processors, as mlx-lm takes them, applied to the rows of a pass.

Each row has a history of its own: the context and the proposed ids before it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import mlx.core as mx

from tokalign.runtime.proposal import Array
from tokalign.tokenizer.vocabulary import TargetId

LogitsProcessor: TypeAlias = Callable[[Array, Array], Array]
"""mlx-lm's: (ids so far i[n], logits f[1, vocabulary]) -> logits f[1, vocabulary]."""


def at_width(processors: Sequence[LogitsProcessor], width: int) -> tuple[LogitsProcessor]:
    """All processors as one for rows f[1, any width], which it widens or cuts to `width` for them.

    Ids that a row lacks are impossible. A processor may name any id of the target, or add a mask
    over all of them, where a draft has a row of a few ids only.
    """

    def process(ids: Array, logits: Array) -> Array:
        own = logits.shape[-1]
        missing = [(0, 0), (0, max(0, width - own))]
        row = mx.pad(logits[:, :width], missing, constant_values=-mx.inf)
        for processor in processors:
            row = processor(ids, row)
        return row[:, :own]

    return (process,)


def logprobs_of(
    logits: Array,
    processors: Sequence[LogitsProcessor],
    *,
    position: int,
    ids: Sequence[TargetId] | Array,
    mask: Array | None = None,
) -> Array:
    """Log-probabilities f[rows, vocabulary] of the processed logits; row i is for `position + i`.

    mask: bool[rows, vocabulary], which ids a grammar allows. It has the last word.

    Choices are made on these and not on the logits, as in mlx-lm: rounding may make two of them
    equal.
    """
    if processors:
        logits = apply_processors(processors, logits, position=position, ids=ids)
    if mask is not None:
        logits = mx.where(mask, logits, -mx.inf)
    return logits - mx.logsumexp(logits, axis=-1, keepdims=True)


def apply_processors(
    processors: Sequence[LogitsProcessor],
    logits: Array,
    *,
    position: int,
    ids: Sequence[TargetId] | Array,
) -> Array:
    """Process every row with its own history: the context and the proposed ids before it."""
    history = ids if isinstance(ids, mx.array) else mx.array(list(ids), dtype=mx.uint32)
    rows = []
    for row in range(logits.shape[0]):
        processed = logits[row : row + 1]
        for processor in processors:
            processed = processor(history[: position + row], processed)
        rows.append(processed)
    return mx.concatenate(rows)
