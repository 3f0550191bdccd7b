"""Kept caches take the memory that they are said to take."""

from __future__ import annotations

import gc
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import KVCache

from tokalign.serve.contexts import NOTHING, Contexts, Held, Key

MODELS: Key = ("model", None, None)
HEADS, WIDTH, BATCH = 4, 64, 8


def filled(length: int, seed: int) -> Any:
    layer = KVCache()
    shape = (1, HEADS, length, WIDTH)
    layer.update_and_fetch(*mx.random.normal((2, *shape), key=mx.random.key(seed)))
    return layer


def test_a_cache_out_of_a_batch_keeps_nothing_of_the_others() -> None:
    contexts = Contexts(size=10, most_bytes=None)
    gc.collect()
    mx.clear_cache()
    before = mx.get_active_memory()
    batch = KVCache.merge([filled(40 + number, number) for number in range(BATCH)])
    mx.eval(batch.state)
    layer = batch.extract(3)
    contexts.keep_target(MODELS, "", Held([layer], list(range(43))))
    expected = np.array(filled(43, 3).keys[..., :43, :])
    del batch, layer
    gc.collect()
    assert contexts.nbytes == 2 * 43 * HEADS * WIDTH * 4
    assert mx.get_active_memory() - before <= contexts.nbytes + 4096
    held = contexts.target(MODELS, "", range(50))
    assert held.ids == list(range(43))
    assert held.layers is not None
    assert np.array_equal(np.array(held.layers[0].keys), expected)


def test_room_for_further_positions_is_given_back_and_taken_again() -> None:
    contexts = Contexts(size=10, most_bytes=None)
    contexts.keep_draft(MODELS, "", Held([filled(30, 1)], list(range(30))))
    assert contexts.nbytes == 2 * 30 * HEADS * WIDTH * 4
    held = contexts.draft(MODELS, "", range(40))
    assert held.layers is not None
    [layer] = held.layers
    more = filled(5, 2)
    keys, _ = layer.update_and_fetch(more.keys[..., :5, :], more.values[..., :5, :])
    expected = [filled(30, 1).keys[..., :30, :], more.keys[..., :5, :]]
    assert np.array_equal(np.array(keys), np.array(mx.concatenate(expected, axis=2)))


def test_of_a_key_whose_caches_are_gone_nothing_is_kept() -> None:
    contexts = Contexts(size=1, most_bytes=None)
    for number in range(10):
        contexts.keep_target(MODELS, f"key {number}", Held([filled(3, number)], [1, 2, 3]))
    assert len(contexts._caches._trie._trie) == len(contexts._caches) == 2
    contexts = Contexts(size=10, most_bytes=1 << 20)
    contexts.keep_target(MODELS, "key", Held([filled(3, 1)], [1, 2, 3]))
    contexts.leave_room(1 << 20)
    assert not contexts._caches._trie._trie
    assert contexts.target(MODELS, "key", [1, 2, 3, 4]) == NOTHING
