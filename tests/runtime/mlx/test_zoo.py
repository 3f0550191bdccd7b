"""Every architecture of mlx-lm: what is emitted with drafts is what mlx-lm emits without."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
import zoo
from mlx_lm.generate import generate_step
from mlx_lm.models.cache import RotatingKVCache, make_prompt_cache

from tokalign.runtime.context import Context
from tokalign.runtime.limits import Limits
from tokalign.runtime.loop import decode
from tokalign.runtime.mlx.cache import CacheOptions
from tokalign.runtime.mlx.layers import leaves_of
from tokalign.runtime.mlx.sampling import Sampling
from tokalign.runtime.mlx.target_session import TargetModelSession
from tokalign.runtime.verify import TargetVerifier
from tokalign.tables.token_tree import TokenTree
from tokalign.tokenizer.vocabulary import TargetId

REPRESENTATIVES = (
    "llama",  # windows
    "gemma3_text",
    "gemma3n",  # layers that share keys
    "gpt_oss",
    "qwen3_next",  # gated delta
    "mamba2",
    "falcon_h1",  # both in one layer
    "lfm2",  # convolutions
    "recurrent_gemma",  # a recurrence and windows
    "rwkv7",
    "deepseek_v32",  # latent attention with an index
    "llama4",  # chunks
    "gpt2",  # learned positions
)

PLAIN_ONLY = {"deepseek_v41"}
"""Architectures with caches of a kind of their own."""

CHAINS_ONLY = {
    "gpt2": "learned positions",
    "gpt_bigcode": "learned positions",
    "llama4": "chunks",
    "ministral3": "queries are scaled by position",
    "mistral4": "queries are scaled by position",
    "minimax_m3_vl": "blocks of columns",
    "nanochat": "rotates without a module",
    "talkie": "rotates without a module",
}
"""Architectures without a recurrent state that cannot take trees all the same, and why."""

PROMPT = tuple((i * 7 + 3) % zoo.VOCABULARY for i in range(200))


@cache
def mlx_lm_emits(name: str, prompt: int, tokens: int, **options: Any) -> list[int]:
    """What mlx-lm itself emits after the first `prompt` ids of PROMPT."""
    ids = mx.array(PROMPT[:prompt])
    steps = generate_step(ids, zoo.zoo_model(name), max_tokens=tokens, **options)
    return [token for token, _ in steps]


def emitted_with_drafts(
    name: str, prompt: int, tokens: int, *, trees: bool = True, **options: Any
) -> list[int]:
    """The same with wild drafts, half of which are right."""
    session = TargetModelSession(zoo.zoo_model(name), CacheOptions(**options))
    right = mlx_lm_emits(name, prompt, tokens, **options)
    drafter = zoo.WildDrafter(right, trees=trees and session.can_branch)
    context = Context([TargetId(i) for i in PROMPT[:prompt]])
    limits = Limits(max_tokens=tokens, context_length=session.context_length)
    for _ in decode(context, drafter, TargetVerifier(session, Sampling()), limits=limits):
        pass
    return list(context.emitted)


def has_windows(name: str) -> bool:
    layers = leaves_of(make_prompt_cache(zoo.zoo_model(name)))
    return any(isinstance(layer, RotatingKVCache) for layer in layers)


def drafted(names: Sequence[str]) -> list[str]:
    return [name for name in names if name not in PLAIN_ONLY]


@pytest.mark.parametrize("name", REPRESENTATIVES)
def test_drafts_never_change_what_is_emitted(name: str) -> None:
    assert emitted_with_drafts(name, 12, 40) == mlx_lm_emits(name, 12, 40)


@pytest.mark.slow
@pytest.mark.parametrize("name", drafted(zoo.zoo()))
def test_drafts_never_change_what_any_architecture_emits(name: str) -> None:
    tokens = 620 if has_windows(name) else 60
    assert emitted_with_drafts(name, 12, tokens) == mlx_lm_emits(name, 12, tokens)


@pytest.mark.slow
@pytest.mark.parametrize("name", drafted(zoo.zoo()))
@pytest.mark.parametrize("prompt", [15, 17, 64, 65, 150])
def test_long_prompts_are_read_as_mlx_lm_reads_them(name: str, prompt: int) -> None:
    """Shorter than, as long as, and longer than the window and the prefill step."""
    how = {"prefill_step_size": 16}
    assert emitted_with_drafts(name, prompt, 30, **how) == mlx_lm_emits(name, prompt, 30, **how)


@pytest.mark.slow
@pytest.mark.parametrize("name", drafted(zoo.zoo()))
def test_rows_of_a_tree_equal_those_of_its_chains(name: str) -> None:
    model = zoo.zoo_model(name)
    if not TargetModelSession(model).can_branch:
        pytest.skip("it takes chains only")
    tree = TokenTree(
        tuple(map(TargetId, (4, 5, 6, 9, 7, 5, 4))), (-1, 0, 1, -1, 3, 0, -1), ("test",) * 7
    )
    for length in (6, 61, 70, 130):
        context = [TargetId(i) for i in PROMPT[:length]]
        session = TargetModelSession(model)
        mx.eval(session.logits(context[:-2]))
        rows = np.array(session.tree(context, tree))
        for index in range(-1, len(tree)):
            chain = TargetModelSession(model)
            mx.eval(chain.logits(context[:-2]))
            ids = [*context, *[tree.ids[i] for i in tree.path_to(index)]]
            alone = np.array(chain.logits(ids))[0]
            np.testing.assert_allclose(rows[index + 1], alone, atol=1e-3 * np.abs(alone).max())


@pytest.mark.slow
def test_which_architectures_take_trees() -> None:
    """All without recurrent states, except for those that are named here with the reason."""
    for name in drafted(zoo.zoo()):
        model = zoo.zoo_model(name)
        leaves = list(leaves_of(make_prompt_cache(model)))
        recurrent = any(type(leaf).__name__ == "ArraysCache" for leaf in leaves)
        expected = not recurrent and name not in CHAINS_ONLY
        assert TargetModelSession(model).can_branch == expected, name
