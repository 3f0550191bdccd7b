"""Trees of guesses: a linear tree equals a chain, and a tree's rows equal those of its chains."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.cache import KVCache, RotatingKVCache, make_prompt_cache
from random_models import WildDrafter, random_model, rounds_of
from trees import tree_of
from zoo import make_model

from tokalign.runtime.drafting import NoDrafter
from tokalign.runtime.loop import Limits
from tokalign.runtime.mlx.session import TargetModelSession
from tokalign.runtime.mlx.tree_attention import (
    RowPositions,
    keep_rows,
    lay_out,
    tree_masks,
    with_row_positions,
)
from tokalign.runtime.options import CacheOptions
from tokalign.runtime.rounds import Context, Proposal
from tokalign.tables.token_tree import TokenTree
from tokalign.tokenizer.vocabulary import TargetId


@pytest.mark.parametrize("length", range(1, 7))
def test_a_linear_tree_is_laid_out_as_a_chain(length: int) -> None:
    chain = TokenTree.chain([TargetId(1)] * length, "test")
    assert lay_out(5, length + 2, chain)[0] == list(range(5, length + 7))


def test_the_masks_of_a_long_context_make_no_object_of_each_position() -> None:
    cache, tree = [KVCache()], tree_of([1, 2, 3], [-1, 0, -1])
    cache[0].offset = 200_000
    tracemalloc.start()
    with tree_masks(cache, 4, tree) as positions:
        most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert positions == [200_000, 200_001, 200_002, 200_001]
    assert most < 30 * 200_000


def test_rows_are_moved_without_copying_the_cache() -> None:
    cache = KVCache()
    cache.update_and_fetch(*mx.random.normal((2, 1, 2, 4100, 32)))
    expected = np.array(cache.keys)
    expected[..., 4001:4003, :] = expected[..., [4002, 4005], :]
    mx.eval(cache.state)
    held = mx.get_active_memory()
    mx.reset_peak_memory()
    keep_rows([cache], 4000, [0, 2, 5])
    mx.eval(cache.state)
    assert mx.get_peak_memory() - held < cache.nbytes / 4
    np.testing.assert_array_equal(np.array(cache.keys), expected)


def test_rows_of_a_tree_are_right_in_the_pass_that_quantizes_the_cache() -> None:
    """The layers are replaced then, and the mask belongs to the new ones."""
    model, context = random_model(vocabulary=32, seed=3, heads=1), [1, 2, 3, 8, 8, 2]
    options = CacheOptions(kv_bits=8, kv_group_size=32, quantized_kv_start=5)
    tree = tree_of([4, 5, 6, 9, 7, 5], [-1, 0, 1, -1, 3, 0])

    def read() -> TargetModelSession:
        session = TargetModelSession(model, options)
        session.logits(context[:5])
        return session

    rows = np.array(read().tree(context, tree))
    for index in range(-1, len(tree.ids)):
        path = [tree.ids[i] for i in tree.path_to(index)]
        chain = np.array(read().logits([*context, *path], last=1 + len(path)))
        np.testing.assert_allclose(rows[index + 1], chain[-1], atol=2e-5)


@pytest.mark.parametrize("bits", [None, 8])
@pytest.mark.parametrize("following", [[9, 6], [9, 7, 3, 6], [4, 5, 6], [4, 6], [8, 8], [], [4]])
def test_the_path_that_is_gone_along_is_kept(following: list[int], bits: int | None) -> None:
    """What was accepted is not computed again, on whichever branch it lies."""
    model = random_model(vocabulary=32, seed=4, heads=1)
    options = CacheOptions(kv_bits=bits, kv_group_size=32, quantized_kv_start=0)
    session = TargetModelSession(model, options)
    tree = tree_of([4, 5, 9, 7, 3, 8], [-1, 0, -1, 2, 3, 2])
    mx.eval(session.logits([1, 2, 3]))
    mx.eval(session.tree([1, 2, 3], tree))
    context, rows = [1, 2, 3, *map(TargetId, following)], session.rows
    fresh = TargetModelSession(model, options)
    expected = np.array(fresh.logits(context))
    found = np.array(session.logits(context))
    np.testing.assert_allclose(found, expected, atol=2e-5 if bits is None else 0.2)
    on_path = len(tree.path_of(following))
    assert session.rows - rows == max(1, len(following) - on_path)


class Waiting(WildDrafter):
    """No pass of it runs ahead, whose row another proposal would make useless."""

    def propose(self, context: Context, limit: int) -> Proposal:
        return replace(super().propose(context, limit), run_ahead=False)


@pytest.mark.parametrize("seed", range(5))
def test_no_accepted_id_is_computed_twice(seed: int) -> None:
    """Every row of a long generation with wild trees is a proposal or the last id of a round."""
    model, prompt, limits = random_model(vocabulary=6, seed=seed), (1, 2), Limits(max_tokens=60)
    plain, _ = rounds_of(NoDrafter(), TargetModelSession(model), prompt=prompt, limits=limits)
    session, wild = TargetModelSession(model), Waiting(plain, trees=True, ids=6)
    emitted, rounds = rounds_of(wild, session, prompt=prompt, limits=limits)
    assert emitted == plain
    assert any(one.path and one.path[-1] >= one.tree.chain_length for one in rounds)
    assert [one.rows for one in rounds[1:]] == [1 + len(one.tree) for one in rounds[1:]]
    assert session.rows == sum(1 + len(one.tree) for one in rounds) + len(prompt) - 1


def test_a_cache_that_keeps_its_first_positions_cannot_branch_and_a_window_can() -> None:
    model = random_model(vocabulary=32, seed=3)
    assert TargetModelSession(model).can_branch
    windows = [RotatingKVCache(max_size=64) for _ in model.layers]
    assert TargetModelSession(model, cache=windows).can_branch
    rotating = [RotatingKVCache(max_size=64, keep=4) for _ in model.layers]
    assert not TargetModelSession(model, cache=rotating).can_branch


def test_passes_that_overlap_leave_each_other_and_the_model_alone() -> None:
    model = random_model(vocabulary=32, seed=6)
    before = [module for _, module in model.named_modules()]
    tree = tree_of([4, 5, 9], [-1, 0, -1])
    expected = np.array(TargetModelSession(model).tree([1, 2, 3], tree))
    one, two = make_prompt_cache(model), make_prompt_cache(model)
    ids = mx.array([[1, 2, 3, *tree.ids]])
    positions = RowPositions()
    with tree_masks(two, 6, tree):
        with tree_masks(one, 6, tree) as places:
            positions.now = mx.array(places)
            rows = np.array(with_row_positions(model, positions)(ids, cache=one))[0]
        np.testing.assert_allclose(rows[-4:], expected, atol=2e-5)
        plain = np.array(model(ids, cache=make_prompt_cache(model)))
    np.testing.assert_array_equal(np.array(model(ids, cache=make_prompt_cache(model))), plain)
    after = [module for _, module in model.named_modules()]
    assert len(after) == len(before)
    assert all(now is then for now, then in zip(after, before, strict=True))


def test_every_kind_of_rotary_embedding_of_a_llama_takes_a_tree() -> None:
    scaling = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    for rope_scaling in (None, scaling, {"type": "linear", "factor": 2.0}):
        model = make_model("llama", rope_scaling=rope_scaling)
        assert TargetModelSession(model).can_branch
        tree = tree_of([4, 5, 9], [-1, 0, -1])
        rows = np.array(TargetModelSession(model).tree([1, 2, 3], tree))
        alone = np.array(TargetModelSession(model).logits([1, 2, 3, 9]))[0]
        np.testing.assert_allclose(rows[3], alone, atol=2e-5)


def test_a_single_row_of_a_tree_is_read_where_a_model_chooses_its_keys() -> None:
    """DeepSeek V3.2 chooses 48 of them here. A draft model adds ids to its tree one by one."""
    model, ids = make_model("deepseek_v32"), [TargetId(i * 7 % 50) for i in range(60)]
    session = TargetModelSession(model)
    session.tree(ids, tree_of([5, 6], [-1, -1]))
    row = session.tree(ids, tree_of([5, 6, 9], [-1, -1, 1]), computed=2)
    expected = TargetModelSession(model).logits([*ids, TargetId(6), TargetId(9)])
    assert mx.allclose(row, expected, atol=1e-3)
