"""Kept caches take the memory that they are said to take."""

from __future__ import annotations

import gc
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import KVCache

from tokalign.runtime.mlx.layers import remember, remembered
from tokalign.serve.job import NOTHING, Held, Owner
from tokalign.serve.contexts import Contexts

OWNER: Owner = (("model", None, None), "key")
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
    contexts.keep(OWNER, Held([layer], list(range(43))))
    expected = np.array(filled(43, 3).keys[..., :43, :])
    del batch, layer
    gc.collect()
    assert contexts.nbytes == 2 * 43 * HEADS * WIDTH * 4
    assert mx.get_active_memory() - before <= contexts.nbytes + 4096
    held = contexts.fetch(OWNER, range(50), layers=1)
    assert held.ids == list(range(43))
    assert held.layers is not None
    assert np.array_equal(np.array(held.layers[0].keys), expected)


def test_room_for_further_positions_is_given_back_and_taken_again() -> None:
    contexts = Contexts(size=10, most_bytes=None)
    contexts.keep(OWNER, Held([filled(30, 1)], list(range(30))))
    assert contexts.nbytes == 2 * 30 * HEADS * WIDTH * 4
    held = contexts.fetch(OWNER, range(40), layers=1)
    assert held.layers is not None
    [layer] = held.layers
    more = filled(5, 2)
    keys, _ = layer.update_and_fetch(more.keys[..., :5, :], more.values[..., :5, :])
    expected = [filled(30, 1).keys[..., :30, :], more.keys[..., :5, :]]
    assert np.array_equal(np.array(keys), np.array(mx.concatenate(expected, axis=2)))


def test_the_draft_s_cache_is_kept_beside_the_target_s_and_knows_its_own_ids() -> None:
    contexts = Contexts(size=10, most_bytes=None)
    draft = [filled(12, 2)]
    remember(draft, range(100, 112))
    contexts.keep(OWNER, Held([filled(10, 1)], list(range(10)), draft))
    held = contexts.fetch(OWNER, [*range(8), 77], layers=1)
    assert held.ids == list(range(8))
    assert held.layers is not None
    assert held.layers[0].offset == 8
    assert remembered(held.draft) == list(range(100, 110))


def test_what_exceeds_the_bound_together_with_the_caches_in_use_is_dropped() -> None:
    contexts = Contexts(size=10, most_bytes=1 << 20)
    contexts.keep(OWNER, Held([filled(3, 1)], [1, 2, 3]))
    contexts.leave_room(1 << 20)
    assert contexts.fetch(OWNER, [1, 2, 3, 4], layers=1) == NOTHING
