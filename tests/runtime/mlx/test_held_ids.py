"""A note of the ids that a cache holds is believed as far as the cache proves it."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import mlx.core as mx
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
from zoo import zoo_model

from tokalign.runtime.mlx.layers import least_positions, positions, remember, remembered

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
def test_a_note_goes_with_a_copy(architecture: str) -> None:
    layers = filled(architecture)
    assert remembered(layers) is None
    assert least_positions(layers)
    remember(layers, IDS)
    for some in (layers, deepcopy(layers)):
        assert remembered(some) == IDS


@pytest.mark.parametrize("architecture", ALL_KINDS)
def test_a_cache_that_has_read_on_holds_unknown_ids(architecture: str) -> None:
    layers = filled(architecture)
    remember(layers, IDS)
    zoo_model(architecture)(mx.array([[9]]), cache=layers)
    assert remembered(layers) is None


@pytest.mark.parametrize("kind", TRIMMABLE)
def test_what_was_trimmed_is_left_out(kind: str) -> None:
    layers = [TRIMMABLE[kind](), TRIMMABLE[kind]()]
    read(layers, IDS)
    remember(layers, IDS)
    trim_prompt_cache(layers, 2)
    assert remembered(layers) == IDS[:3]


@pytest.mark.parametrize("after_a_copy", [False, True])
@pytest.mark.parametrize("kind", TRIMMABLE)
@pytest.mark.parametrize("others", [[2, 6], [2], [7, 5]], ids=str)
def test_ids_that_were_replaced_are_not_known(
    kind: str, others: list[int], after_a_copy: bool
) -> None:
    """Not even where as many were read as were trimmed, or where the last one is the same."""
    layers = [TRIMMABLE[kind](), TRIMMABLE[kind]()]
    read(layers, IDS)
    remember(layers, IDS)
    untouched, layers = (layers, deepcopy(layers)) if after_a_copy else (deepcopy(layers), layers)
    trim_prompt_cache(layers, 2)
    read(layers, others)
    assert remembered(layers) is None
    assert remembered(untouched) == IDS


@pytest.mark.parametrize("architecture", ALL_KINDS)
def test_a_new_cache_holds_nothing(architecture: str) -> None:
    layers = make_prompt_cache(zoo_model(architecture))
    assert remembered(layers) is None
    assert not least_positions(layers)
    assert not positions(layers)
