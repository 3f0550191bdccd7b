"""Texts that a target writes itself: sampled, several at once, after openings of one length.

A caller sees every pass, as it may want more of it than ids. Where ids are all that is wanted,
mlx-lm's own batches write more quickly (`own_texts.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import make_prompt_cache

from tokalign.runtime.rounds import Array

_STEPS_PER_LOOK = 32
"""After how many ids it is looked whether any text still goes on."""


def sample(logits: Array, temperature: float, key: Array) -> Array:
    """An id u32[rows] for each row of logits f[rows, vocabulary]."""
    scaled = logits.astype(mx.float32) / temperature
    return mx.random.categorical(scaled, key=key).astype(mx.uint32)


def write(
    model: Callable[..., Array],
    openings: Sequence[Sequence[int]],
    key: Array,
    *,
    length: int,
    temperature: float,
    stop_ids: Collection[int],
    least: int = 1,
) -> Iterator[Array]:
    """Yield the next id u32[texts] of each text, lazy, `length` times or until all have ended.

    A text ends at its first stop id; what is yielded for it afterwards says nothing.
    openings: all of one length. model: called as an mlx-lm model, once between two yields.
    least: ids that are yielded even if all texts have ended.
    """
    cache: list[Any] = make_prompt_cache(model)
    unread, written = mx.array(np.array(openings), mx.uint32), list[Array]()
    for step, step_key in enumerate(mx.random.split(key, length), start=1):
        logits = model(unread, cache=cache)[:, -1]
        written.append(sample(logits, temperature, step_key))
        mx.async_eval(written[-1])  # type: ignore[no-untyped-call]
        yield written[-1]
        unread = written[-1][:, None]
        if step % _STEPS_PER_LOOK == 0 and step >= least and _have_ended(written, stop_ids):
            break


def before_stop(ids: Any, stop_ids: Collection[int]) -> Any:
    """Where the ids i[texts, steps] lie before the first stop id of their text, bool."""
    return np.logical_and.accumulate(~np.isin(ids, sorted(stop_ids)), axis=1)


def _have_ended(written: Sequence[Array], stop_ids: Collection[int]) -> bool:
    """Whether every text has ended; reading it waits for the device."""
    ids = np.array(mx.stack(list(written), axis=1))
    return not before_stop(ids, stop_ids)[:, -1].any()
