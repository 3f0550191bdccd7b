"""What is kept of conversations: of each its latest turn, and no more memory than that takes."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.cache import ArraysCache, ChunkedKVCache, KVCache, RotatingKVCache

from tokalign.runtime.mlx.contexts import NOTHING, Chain, Contexts, Held
from tokalign.runtime.mlx.layers import expected_bytes, remember, remembered
from tokalign.runtime.mlx.window_cache import WindowCache
from tokalign.runtime.options import CacheOptions

OWNER = (("model", None, None), "key")
HEADS, WIDTH, BATCH, WINDOW = 4, 64, 8, 16


def filled(length: int, seed: int = 1, layer: Any = None) -> Any:
    layer = KVCache() if layer is None else layer
    shape = (1, HEADS, length, WIDTH)
    layer.update_and_fetch(*mx.random.normal((2, *shape), key=mx.random.key(seed)))
    return layer


def ring(length: int, seed: int = 1) -> Any:
    return filled(length, seed, RotatingKVCache(WINDOW))


def recurrent(length: int, seed: int = 1) -> Any:
    layer = ArraysCache(1)
    layer[0] = mx.full((1, HEADS), length + seed)
    return layer


def keep(
    contexts: Contexts, ids: Sequence[int], *, make: Any = filled, prompt: int = 0, at: Any = ()
) -> Chain:
    """Keep what a request leaves: its caches after `at` ids each, and after all of them."""
    chain = Chain(OWNER, prompt or len(ids))
    for length in (*at, len(ids)):
        contexts.keep(chain, Held([make(length)], list(ids[:length])))
    return chain


def test_a_cache_out_of_a_batch_keeps_nothing_of_the_others() -> None:
    contexts = Contexts(size=10, most_bytes=None)
    gc.collect()
    mx.clear_cache()
    before = mx.get_active_memory()
    batch = KVCache.merge([filled(40 + number, number) for number in range(BATCH)])
    mx.eval(batch.state)
    layer = batch.extract(3)
    contexts.keep(Chain(OWNER, 43), Held([layer], list(range(43))))
    expected = np.array(filled(43, 3).keys[..., :43, :])
    del batch, layer
    gc.collect()
    assert contexts.nbytes == 2 * 43 * HEADS * WIDTH * 4
    assert mx.get_active_memory() - before <= contexts.nbytes + 4096
    held = contexts.fetch(OWNER, range(50))
    assert held.ids == list(range(43))
    assert held.layers is not None
    assert np.array_equal(np.array(held.layers[0].keys), expected)


def test_a_long_context_is_kept_without_room_for_a_second_one() -> None:
    layers = [filled(3000, number) for number in range(8)]
    mx.eval([layer.state for layer in layers])
    held, size = mx.get_active_memory(), sum(layer.nbytes for layer in layers)
    mx.reset_peak_memory()
    Contexts(size=1, most_bytes=None).keep(Chain(OWNER, 3000), Held(layers, [1] * 3000))
    assert mx.get_peak_memory() - held < size / 4


def test_room_for_further_positions_is_given_back_and_taken_again() -> None:
    contexts = Contexts(size=10, most_bytes=None)
    keep(contexts, range(30))
    assert contexts.nbytes == 2 * 30 * HEADS * WIDTH * 4
    held = contexts.fetch(OWNER, range(40))
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
    contexts.keep(Chain(OWNER, 10), Held([filled(10, 1)], list(range(10)), draft))
    held = contexts.fetch(OWNER, [*range(8), 77])
    assert held.ids == list(range(8))
    assert held.layers is not None
    assert held.layers[0].offset == 8
    assert remembered(held.draft) == list(range(100, 110))


def test_what_exceeds_the_bound_together_with_the_caches_in_use_is_dropped() -> None:
    contexts = Contexts(size=10, most_bytes=1 << 20)
    keep(contexts, [1, 2, 3])
    contexts.leave_room(1 << 20)
    assert contexts.fetch(OWNER, [1, 2, 3, 4]) == NOTHING


def test_bytes_are_counted_while_another_thread_keeps_more() -> None:
    """As for `/metrics`."""
    chain = Chain(OWNER, 10)

    class Growing:
        @property
        def nbytes(self) -> int:
            chain.states[2] = chain.states[1]
            return 5

    growing: Any = Growing()
    chain.states[1] = growing
    assert chain.nbytes == 5


def test_what_a_cache_will_take_follows_its_kind() -> None:
    many, more = 10_000, 20_000
    plain = [filled(700), filled(30)]
    assert expected_bytes(plain, more) == pytest.approx(2 * expected_bytes(plain, many))
    per_id = expected_bytes(plain[:1], 1)
    assert expected_bytes(plain[:1], many) == pytest.approx(filled(many).nbytes, rel=0.03)
    bounded = [
        ring(30),
        filled(30, layer=WindowCache(WINDOW)),
        filled(30, layer=ChunkedKVCache(64)),
    ]
    for layer in bounded:
        assert per_id * WINDOW <= expected_bytes([layer], many) < per_id * 1000
        assert expected_bytes([layer], more) == expected_bytes([layer], many)
    single = WindowCache(WINDOW)
    for _ in range(900):
        filled(1, layer=single)
    assert single.nbytes <= expected_bytes([single], 900)
    state = recurrent(30)
    assert expected_bytes([state], many) == 2 * state.nbytes, "a round marks the one before it"


@pytest.mark.parametrize("read", [1, 300])
def test_a_cache_that_is_quantized_from_a_position_on_is_whole_before(read: int) -> None:
    few = {"group_size": 32, "bits": 4}
    options = CacheOptions(kv_bits=4, kv_group_size=32, quantized_kv_start=768)
    whole = {ids: filled(ids) for ids in (read, 512, 768, 1024, 9216)}
    for sample in (whole[read], whole[read].to_quantized(**few)):
        for ids, most in (
            (512, whole[512]),
            (1024, whole[768]),
            (9216, whole[9216].to_quantized(**few)),
        ):
            assert expected_bytes([sample], ids, options) == pytest.approx(most.nbytes, rel=0.01)


def test_the_conversation_that_was_used_last_is_dropped_last() -> None:
    contexts = Contexts(size=2, most_bytes=None)
    keep(contexts, [1] * 20)
    keep(contexts, [2] * 20)
    assert contexts.fetch(OWNER, [1] * 21).ids == [1] * 20
    keep(contexts, [3] * 20)
    kept = {token: contexts.fetch(OWNER, [token] * 21).ids != [] for token in (1, 2, 3)}
    assert kept == {1: True, 2: False, 3: True}


@pytest.mark.parametrize("make", [filled, ring, recurrent])
def test_a_chat_of_many_turns_takes_the_memory_of_its_last_one(make: Any) -> None:
    """Every turn's template drops what the answer before began with, a thought of 30 ids."""
    contexts = Contexts(size=10, most_bytes=None)
    prompt: list[int] = []
    sizes = []
    for turn in range(8):
        prompt = [*prompt, *range(1000 * turn, 1000 * turn + 100)]
        thought, answer = [5] * 30, [1000 * turn + 500 + i for i in range(10)]
        at = [len(prompt) - 4, len(prompt) - 1] if make is not filled else []
        ids = [*prompt, *thought, *answer]
        if turn:
            assert len(contexts.fetch(OWNER, prompt).ids) >= 100 * turn - 4
        keep(contexts, ids, make=make, prompt=len(prompt), at=at)
        sizes.append(contexts.nbytes / len(ids))
        prompt += answer
    assert sizes[-1] < 1.5 * sizes[0]


@pytest.mark.parametrize("make", [ring, recurrent])
def test_a_cache_that_forgets_serves_a_prompt_again_and_one_that_begins_like_it(make: Any) -> None:
    contexts = Contexts(size=10, most_bytes=None)
    keep(contexts, range(150), make=make, prompt=100, at=(40, 99))
    assert contexts.fetch(OWNER, range(100)).ids == list(range(99))
    assert contexts.fetch(OWNER, [*range(70), *[7] * 50]).ids == list(range(40))
    assert contexts.fetch(OWNER, range(200)).ids == list(range(150))
    assert contexts.fetch(OWNER, [*range(30), 7]) == NOTHING
    for _ in range(3):  # the answer is made again, from the 99 ids on
        keep(contexts, range(150), make=make, prompt=100)
    for length in (40, 99, 150):
        assert contexts.fetch(OWNER, [*range(length), 7]).ids == list(range(length))


def test_the_beginning_that_chats_share_outlives_the_turns_of_one() -> None:
    contexts = Contexts(size=10, most_bytes=None)
    chain = Chain(OWNER, 100)
    contexts.keep(chain, Held([ring(40)], list(range(40))), is_shared=True)
    contexts.keep(chain, Held([ring(130)], list(range(130))))
    for length in (200, 300, 400):
        keep(contexts, range(length), make=ring, prompt=length - 30, at=(length - 31,))
    assert contexts.fetch(OWNER, [*range(40), 7, 7]).ids == list(range(40))
    assert len(contexts._chains) == 1


def test_another_chat_with_the_same_system_message_is_kept_beside_it() -> None:
    contexts = Contexts(size=10, most_bytes=None)
    keep(contexts, [*range(80), *[1] * 60], prompt=120)
    keep(contexts, [*range(80), *[2] * 90], prompt=150)
    assert len(contexts.fetch(OWNER, [*range(80), *[1] * 70]).ids) == 140
    assert len(contexts.fetch(OWNER, [*range(80), *[2] * 95]).ids) == 170
