"""Caches: taking positions back by their kind, and notes of which ids they hold."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.cache import (
    CacheList,
    ChunkedKVCache,
    ConcatenateKVCache,
    KVCache,
    QuantizedKVCache,
    RotatingKVCache,
    make_prompt_cache,
    trim_prompt_cache,
)
from random_models import random_model
from zoo import WINDOW, zoo_model

from tokalign.runtime.mlx.layers import Layers, least_positions, remember, remembered
from tokalign.runtime.mlx.session import TargetModelSession
from tokalign.tokenizer.vocabulary import TargetId


def test_a_cache_with_chunks_is_rewound_within_its_chunk_only() -> None:
    chunks = ChunkedKVCache(8)
    for rows in (6, 6):
        chunks.maybe_trim_front()
        part = mx.zeros((1, 1, rows, 4))
        chunks.update_and_fetch(part, part)
    assert (chunks.offset, chunks.start_position) == (12, 0)
    chunks.maybe_trim_front()
    assert chunks.start_position == 4
    layers = Layers([chunks])
    assert layers.take_back(5, held=12) is None, "position 7 sees its chunk from 0 on"
    assert layers.take_back(4, held=12) == 8


def test_a_cache_that_concatenates_is_rewound() -> None:
    """mlx-lm's ConcatenateKVCache keeps what it was told to trim."""
    model = random_model()
    cache = [ConcatenateKVCache() for _ in model.layers]
    session = TargetModelSession(model, cache=cache)
    mx.eval(session.logits([TargetId(i) for i in (5, 6, 7, 8, 9)]))
    found = np.array(session.logits([TargetId(i) for i in (5, 6, 1, 2)]))
    session.settle([TargetId(i) for i in (5, 6, 1, 2)])
    fresh = np.array(TargetModelSession(model).logits([TargetId(i) for i in (5, 6, 1, 2)]))
    np.testing.assert_allclose(found, fresh, atol=2e-5)
    trim_prompt_cache(cache, 2)
    again = TargetModelSession(model, cache=cache)
    found = np.array(again.logits([TargetId(i) for i in (5, 6, 1, 2)]))
    np.testing.assert_allclose(found, fresh, atol=2e-5)


@pytest.mark.parametrize("taken_back", [0, 1, 2])
def test_a_full_ring_is_handed_over_full(taken_back: int) -> None:
    """mlx-lm's own functions go on with it, whatever was taken back of it before."""
    model = zoo_model("gemma3_text")
    ids = [TargetId(i % 60) for i in range(WINDOW + 40)]
    first = TargetModelSession(model)
    first.logits(ids)
    first.settle(ids)
    assert first.layers[0].keys.shape[2] == WINDOW
    again = TargetModelSession(model, cache=first.layers)
    again.logits(ids)
    left = ids[: len(ids) - taken_back]
    again.settle(left)
    assert again.held == left
    logits = [model(mx.array([[token]]), cache=again.layers)[0, -1] for token in (7, 8, 9)]
    expected = TargetModelSession(model).logits([*left, *map(TargetId, (7, 8, 9))], last=3)
    np.testing.assert_allclose(np.array(mx.stack(logits)), np.array(expected), atol=2e-4)


IDS = [3, 1, 4, 1, 5]
ALL_KINDS = ["llama", "lfm2", "mamba2", "falcon_h1"]
TRIMMABLE = {
    "KVCache": KVCache,
    "QuantizedKVCache": lambda: QuantizedKVCache(group_size=32, bits=8),
    "RotatingKVCache": lambda: RotatingKVCache(max_size=64),
    "ChunkedKVCache": lambda: ChunkedKVCache(64),
    "ConcatenateKVCache": ConcatenateKVCache,
    "CacheList": lambda: CacheList(KVCache(), KVCache()),
}


def filled(architecture: str) -> list[Any]:
    """The cache of IDS, by mlx-lm alone."""
    model = zoo_model(architecture)
    layers = make_prompt_cache(model)
    mx.eval(model(mx.array([IDS]), cache=layers))
    return layers


def read(layers: list[Any], ids: list[int]) -> None:
    """Have every layer read these ids, as a pass of a model would."""
    for number, layer in enumerate(layers):
        for cache in getattr(layer, "caches", [layer]):
            embedding = mx.random.normal((8, 2, 32), key=mx.random.key(number))
            rows = embedding[mx.array(ids)].swapaxes(0, 1)[None]
            mx.eval(cache.update_and_fetch(rows, -rows))


@pytest.mark.parametrize("architecture", ALL_KINDS)
def test_a_note_goes_with_a_copy_and_not_with_a_cache_that_has_read_on(architecture: str) -> None:
    layers = filled(architecture)
    assert remembered(layers) is None
    assert least_positions(layers)
    remember(layers, IDS)
    for some in (layers, deepcopy(layers)):
        assert remembered(some) == IDS
    zoo_model(architecture)(mx.array([[9]]), cache=layers)
    assert remembered(layers) is None


@pytest.mark.parametrize("after_a_copy", [False, True])
@pytest.mark.parametrize("kind", TRIMMABLE)
def test_what_was_trimmed_is_left_out_and_a_cache_that_has_read_more_is_not_known(
    kind: str, after_a_copy: bool
) -> None:
    layers = [TRIMMABLE[kind](), TRIMMABLE[kind]()]
    read(layers, IDS)
    remember(layers, IDS)
    untouched, layers = (layers, deepcopy(layers)) if after_a_copy else (deepcopy(layers), layers)
    trim_prompt_cache(layers, 2)
    assert remembered(layers) == IDS[:3]
    read(layers, [2, 6, 1])
    assert remembered(layers) is None
    assert remembered(untouched) == IDS
