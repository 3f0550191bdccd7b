"""Texts that a target writes itself: sampled, several at once, after openings of any lengths.

Many texts cost little more than one, because a pass over 32 of them reads the weights once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import make_prompt_cache

from tokalign.errors import IncompatibleError
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
    model: called as an mlx-lm model; between two yields it is called once, if all openings have
        the same length. least: ids that are yielded even if all texts have ended.
    Raises: IncompatibleError for openings of different lengths and a cache that is not merged.
    """
    cache, logits = _read(model, openings)
    written: list[Array] = []
    for step, step_key in enumerate(mx.random.split(key, length), start=1):
        if step > 1:
            logits = model(written[-1][:, None], cache=cache)[:, -1]
        written.append(sample(logits, temperature, step_key))
        mx.async_eval(written[-1])  # type: ignore[no-untyped-call]
        yield written[-1]
        if step % _STEPS_PER_LOOK == 0 and step >= least and _have_ended(written, stop_ids):
            break


def before_stop(ids: Any, stop_ids: Collection[int]) -> Any:
    """Where the ids i[texts, steps] lie before the first stop id of their text, bool."""
    return np.logical_and.accumulate(~np.isin(ids, sorted(stop_ids)), axis=1)


def _have_ended(written: Sequence[Array], stop_ids: Collection[int]) -> bool:
    """Whether every text has ended; reading it waits for the device."""
    ids = np.array(mx.stack(list(written), axis=1))
    return not before_stop(ids, stop_ids)[:, -1].any()


def _read(
    model: Callable[..., Array], openings: Sequence[Sequence[int]]
) -> tuple[list[Any], Array]:
    """The cache of all openings, and the logits after each f[texts, vocabulary].

    Openings of different lengths are read one by one, so that no padding is needed.
    """
    if len(set(map(len, openings))) == 1:
        cache = make_prompt_cache(model)
        return cache, model(mx.array(np.array(openings), mx.uint32), cache=cache)[:, -1]
    caches, logits = list[list[Any]](), list[Array]()
    for opening in openings:
        caches.append(make_prompt_cache(model))
        logits.append(model(mx.array([[*opening]], mx.uint32), cache=caches[-1])[:, -1])
        mx.eval(logits[-1])
    try:
        merged = [type(layers[0]).merge(layers) for layers in zip(*caches, strict=True)]
    except (AttributeError, NotImplementedError) as error:
        raise IncompatibleError(
            "the caches of this model cannot be joined, so it does not answer several prompts at "
            "once; give a corpus of text instead of --prompts"
        ) from error
    return merged, mx.concatenate(logits)
