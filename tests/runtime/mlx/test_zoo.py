"""Every architecture of mlx-lm: what is emitted with drafts is what mlx-lm emits without."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
import zoo
from mlx.utils import tree_map_with_path
from mlx_lm.models.cache import RotatingKVCache, make_prompt_cache
from mlx_lm.models.rope_utils import DynamicNTKScalingRoPE
from mlx_lm.tuner.utils import linear_to_lora_layers
from random_models import plainly, rounds_of
from small_tokenizers import of_merges

from tokalign.api.assemble import assemble
from tokalign.api.text import stream_generate
from tokalign.errors import CacheError, UsageError
from tokalign.runtime.chat import Prompt
from tokalign.runtime.decoder import LanguageModel
from tokalign.runtime.loop import Limits
from tokalign.runtime.mlx.layers import leaves_of
from tokalign.runtime.mlx.pace import pace_of
from tokalign.runtime.mlx.session import MOST_READ_AGAIN, TargetModelSession
from tokalign.runtime.mlx.weights import embedding_of
from tokalign.runtime.options import CacheOptions, DraftingOptions
from tokalign.runtime.request import Request
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

pytestmark = pytest.mark.slow

TOKENIZER = of_merges(bytes(range(32, 32 + zoo.VOCABULARY)), [])
PROMPT = tuple((i * 7 + 3) % zoo.VOCABULARY for i in range(200))


@cache
def mlx_lm_emits(name: str, prompt: int, tokens: int, **options: Any) -> list[int]:
    """What mlx-lm itself emits after the first `prompt` ids of PROMPT."""
    return plainly(zoo.zoo_model(name), PROMPT[:prompt], tokens, **options)


def emitted_with_drafts(name: str, prompt: int, tokens: int, **options: Any) -> list[int]:
    """The same with wild drafts, half of which are right."""
    right = mlx_lm_emits(name, prompt, tokens, **options)
    return with_drafts(zoo.zoo_model(name), PROMPT[:prompt], right, **options)


def with_drafts(
    model: Any,
    prompt: Sequence[int],
    right: Sequence[int],
    *,
    cache: list[Any] | None = None,
    **options: Any,
) -> list[int]:
    """As many ids as `right` has, which the drafts are made of. cache: one to go on with."""
    session = TargetModelSession(model, CacheOptions(**options), cache=cache)
    drafter = zoo.WildDrafter(right, trees=session.can_branch)
    limits = Limits(max_tokens=len(right), context_length=session.context_length, target=session)
    return rounds_of(drafter, session, prompt=prompt, limits=limits)[0]


def has_windows(name: str) -> bool:
    layers = leaves_of(make_prompt_cache(zoo.zoo_model(name)))
    return any(isinstance(layer, RotatingKVCache) for layer in layers)


def drafted(names: Sequence[str]) -> list[str]:
    return [name for name in names if name not in PLAIN_ONLY]


def in_every_run(*names: str) -> list[Any]:
    """Some names and a length of 40; all architectures with more tokens in the long lane."""
    every = [pytest.param(name, None, marks=pytest.mark.long) for name in drafted(zoo.zoo())]
    return [*((name, 40) for name in names), *every]


def enough(name: str) -> int:
    """Tokens that go beyond every window."""
    return 620 if has_windows(name) else 60


@pytest.mark.parametrize(("name", "tokens"), in_every_run(*REPRESENTATIVES))
def test_drafts_never_change_what_is_emitted(name: str, tokens: int | None) -> None:
    tokens = tokens or enough(name)
    assert emitted_with_drafts(name, 12, tokens) == mlx_lm_emits(name, 12, tokens)


@pytest.mark.parametrize(("name", "tokens"), in_every_run("gemma3_text", "gpt2", "qwen3_next"))
def test_lookups_never_change_what_is_emitted(name: str, tokens: int | None) -> None:
    """Dictionary and context copy, each alone and both in one tree."""
    tokens = tokens or enough(name)
    right = mlx_lm_emits(name, 12, tokens)
    for method in ("dictionary", "copy", "hybrid"):
        model = zoo.zoo_model(name)
        emitted, proposed = zoo.with_lookups(model, TOKENIZER, PROMPT[:12], right, method)
        assert emitted == right, method
        assert proposed > tokens / 8, method


def quantize(model: Any) -> None:
    nn.quantize(model, group_size=32, bits=8)


def adapt(model: Any) -> None:
    """Lay random adapters over the last two layers."""
    linear_to_lora_layers(model, 2, {"rank": 4, "scale": 10.0, "dropout": 0.0})
    weights = tree_map_with_path(
        lambda name, w: mx.random.normal(w.shape) * 0.1 if "lora_b" in name else w,
        model.parameters(),
    )
    model.update(weights)
    model.eval()


@pytest.mark.parametrize("change", [quantize, adapt])
@pytest.mark.parametrize("name", ["gemma3_text", "qwen3_next"])
def test_quantized_weights_and_adapters_change_nothing(
    name: str, change: Callable[[Any], None]
) -> None:
    model = zoo.make_model(name)
    change(model)
    expected = plainly(model, PROMPT[:12], 60)
    assert expected != mlx_lm_emits(name, 12, 60)
    assert with_drafts(model, PROMPT[:12], expected) == expected


def test_rows_that_depend_on_their_pass_are_read_alone() -> None:
    """Beyond its bound a dynamic rotary embedding turns all rows of a pass by where it ends."""
    model = zoo.make_model("qwen3")
    for layer in model.layers:
        layer.self_attn.rope = DynamicNTKScalingRoPE(32, 40, False, 10000.0, 2.0)
    for prompt in (PROMPT[:12], PROMPT[:60]):
        expected = plainly(model, prompt, 60)
        assert with_drafts(model, prompt, expected) == expected


@pytest.mark.parametrize("prompt", [8, 10, 20])
def test_rows_of_a_short_prompt_see_what_they_see_in_mlx_lm(prompt: int) -> None:
    """plamo3 asks for a mask that is wider than its cache: alone, a row sees one position less."""
    model = zoo.make_model("plamo3", sliding_window=8)
    expected = plainly(model, PROMPT[:prompt], 40)
    assert with_drafts(model, PROMPT[:prompt], expected) == expected


@pytest.mark.parametrize("rewinds", [True, False])
@pytest.mark.parametrize("name", ["plamo3", "gemma3"])
def test_where_the_clock_cuts_a_prompt_does_not_matter(name: str, rewinds: bool) -> None:
    """The first pass too, although it tells how wide a model's masks are."""
    model, prompt = zoo.make_model(name, sliding_window=8), [TargetId(i) for i in PROMPT[:72]]
    cache = make_prompt_cache(model)
    model(mx.array(prompt[:-1])[None], cache=cache)
    expected = np.array(model(mx.array(prompt[-1:])[None], cache=cache)[0, -1])
    for ids in (4, 32, 64, 1 << 20):
        pace_of(model)._ids = ids
        session = TargetModelSession(model, rewinds=rewinds)
        for _ in session.reading(prompt):
            pass
        found = np.array(session.logits(prompt))[0]
        np.testing.assert_allclose(found, expected, atol=1e-5 * np.abs(expected).max())


@pytest.mark.long
@pytest.mark.parametrize("name", drafted(zoo.zoo()))
@pytest.mark.parametrize("prompt", [15, 17, 64, 65, 150])
def test_long_prompts_are_read_as_mlx_lm_reads_them(name: str, prompt: int) -> None:
    """Shorter than, as long as, and longer than the window and the prefill step."""
    how = {"prefill_step_size": 16}
    assert emitted_with_drafts(name, prompt, 30, **how) == mlx_lm_emits(name, prompt, 30, **how)


@pytest.mark.long
@pytest.mark.parametrize("name", [n for n in drafted(zoo.zoo()) if n != "plamo3"])
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


@pytest.mark.long
def test_which_architectures_take_trees() -> None:
    """All without recurrent states, except for those that are named here with the reason."""
    for name in drafted(zoo.zoo()):
        model = zoo.zoo_model(name)
        leaves = list(leaves_of(make_prompt_cache(model)))
        recurrent = any(type(leaf).__name__ == "ArraysCache" for leaf in leaves)
        expected = not recurrent and name not in CHAINS_ONLY
        assert TargetModelSession(model).can_branch == expected, name


def test_a_model_is_known_of_every_architecture() -> None:
    assert set(zoo.UNBUILDABLE) <= set(zoo.architectures())
    assert len(zoo.zoo()) == len(zoo.architectures()) - len(zoo.UNBUILDABLE)
    for name in ("bitnet", "muse_spark", "olmo", "prism_hadamard_qwen35"):
        if name in ("bitnet", "muse_spark") and mx.metal.is_available():
            continue
        with pytest.raises((RuntimeError, SystemExit, ValueError)):
            mlx_lm_emits(name, 12, 2)


@pytest.mark.parametrize("name", ["gemma3", "kimi_vl", "llama4", "qwen3_5"])
def test_the_context_length_is_found_where_arguments_are_nested(name: str) -> None:
    length = TargetModelSession(zoo.zoo_model(name)).context_length
    assert length == zoo.COMMON["max_position_embeddings"]


@pytest.mark.parametrize(("name", "_"), in_every_run("gemma4", "falcon_h1"))
def test_a_kept_cache_is_gone_on_with(name: str, _: int | None) -> None:
    """Three turns over one cache, each longer than the window at its end."""
    model = zoo.zoo_model(name)
    kept = make_prompt_cache(model)
    kinds = [type(layer) for layer in leaves_of(kept)]
    whole: list[int] = []
    for turn in (PROMPT[:40], PROMPT[90:93], PROMPT[100:170]):
        whole += turn
        expected = plainly(model, whole, 30)
        how = {"max_tokens": 30, "num_draft_tokens": 4, "prompt_cache": kept}
        found = stream_generate(model, TOKENIZER, list(turn), method="copy", **how)
        assert [response.token for response in found] == expected
        whole += expected
        assert [type(layer) for layer in leaves_of(kept)] == kinds
    # mlx-lm's own functions go on with it.
    after = plainly(model, PROMPT[:3], 8, prompt_cache=kept)
    assert after == plainly(model, [*whole, *PROMPT[:3]], 8)


@pytest.mark.parametrize("name", ["qwen3_next", "deepseek_v41"])
def test_a_caller_that_stops_plain_decoding_needs_no_rewinding(name: str) -> None:
    """A response comes before the next token is asked for, so nothing has to be taken back."""
    model = zoo.zoo_model(name)
    kept = make_prompt_cache(model)
    model(mx.array([PROMPT[:30]]), cache=kept)
    turn = list(PROMPT[30:40])
    stream = stream_generate(model, TOKENIZER, turn, method="plain", prompt_cache=kept)
    got = [next(stream).token for _ in range(5)]
    stream.close()  # type: ignore[attr-defined]
    after = plainly(model, PROMPT[:3], 8, prompt_cache=kept)
    assert after == plainly(model, [*PROMPT[:40], *got, *PROMPT[:3]], 8)


@pytest.mark.parametrize(
    "options",
    [{}, {"kv_bits": 4, "kv_group_size": 32, "quantized_kv_start": 50}, {"max_kv_size": 56}],
    ids=["plain", "quantized", "bounded"],
)
def test_a_cache_that_mlx_lm_has_filled_is_gone_on_with(options: dict[str, Any]) -> None:
    """Its positions count in trees, towards quantization and towards the bound."""
    model = zoo.zoo_model("qwen3")
    ours, own = (make_prompt_cache(model, options.get("max_kv_size")) for _ in range(2))
    for layers in (ours, own):
        model(mx.array([PROMPT[:30]]), cache=layers)
    turn = PROMPT[30:38]
    right = plainly(model, turn, 40, prompt_cache=own, **options)
    assert with_drafts(model, turn, right, cache=ours, **options) == right


def test_a_bounded_cache_is_gone_on_with_when_it_is_full() -> None:
    """Also over a prompt that is read in several rows, of which the last one is read alone."""
    model = zoo.zoo_model("qwen3")
    ours, own = (make_prompt_cache(model, max_kv_size=32) for _ in range(2))
    for turn in (PROMPT[:20], PROMPT[30:50], PROMPT[60:63]):
        how = {"max_tokens": 15, "prompt_cache": ours}
        found = stream_generate(model, TOKENIZER, list(turn), method="copy", **how)
        expected = plainly(model, turn, 15, prompt_cache=own)
        assert [response.token for response in found] == expected


QUANTIZED = {"kv_bits": 8, "kv_group_size": 32, "quantized_kv_start": 20}


@pytest.mark.long
@pytest.mark.parametrize("name", drafted(zoo.zoo()))
def test_quantized_caches_emit_the_same_or_are_refused(name: str) -> None:
    try:
        expected = mlx_lm_emits(name, 12, 50, **QUANTIZED)
    except Exception:  # each architecture fails in its own way
        with pytest.raises(CacheError, match="kv_bits"):
            decode_wildly(name, **QUANTIZED)
        return
    assert emitted_with_drafts(name, 12, 50, **QUANTIZED) == expected


@pytest.mark.parametrize("name", ["gemma3n", "mistral4", "phi"])
def test_attention_that_does_not_read_quantized_keys_is_one_clear_error(name: str) -> None:
    with pytest.raises(CacheError, match=r"cannot be quantized to 8 bits.*leave kv_bits out"):
        decode_wildly(name, **QUANTIZED)


def decode_wildly(name: str, **options: Any) -> None:
    """Rounds with random proposals, for models with which nothing is known to be right."""
    session = TargetModelSession(zoo.zoo_model(name), CacheOptions(**options))
    drafter = zoo.WildDrafter()
    rounds_of(drafter, session, prompt=PROMPT[:12], limits=Limits(max_tokens=50))


def language_model(name: str) -> LanguageModel[Any]:
    return LanguageModel(model=zoo.zoo_model(name), tokenizer=TOKENIZER)


def test_a_cache_of_an_unknown_kind_decodes_plainly_and_says_so() -> None:
    lines: list[str] = []
    decoder = assemble(language_model("deepseek_v41"), None, DraftingOptions(), note=lines.append)
    assert [line for line in lines if "LayerCache" in line and "plainly" in line]
    prompt = Prompt(target=[TargetId(i) for i in PROMPT[:12]])
    decoding = decoder.begin(Request(prompt, max_tokens=20))
    assert [*decoding]
    assert list(decoding.context.emitted) == mlx_lm_emits("deepseek_v41", 12, 20)


def test_a_draft_model_with_a_cache_of_an_unknown_kind_is_not_used() -> None:
    lines: list[str] = []
    target, draft = language_model("llama"), language_model("deepseek_v41")
    decoder = assemble(target, draft, DraftingOptions(), note=lines.append)
    assert decoder.draft is None
    assert [line for line in lines if "draft model keeps" in line]


def test_a_method_that_is_named_is_refused_with_such_a_cache() -> None:
    decoder = assemble(language_model("deepseek_v41"), None, DraftingOptions(method="copy"))
    with pytest.raises(CacheError, match="LayerCache"):
        decoder.open_target()


@pytest.mark.parametrize("name", ["qwen3_next", "lfm2"])
def test_what_is_read_again_is_read_with_the_next_rows_and_bounded(name: str) -> None:
    """Also where every proposal is rejected: no pass is spent on accepted ids alone."""
    session = TargetModelSession(zoo.zoo_model(name))
    passes_without_rows: list[int] = []
    session.after_step = lambda: passes_without_rows.append(len(session.held))
    limits = Limits(max_tokens=60, target=session)
    drafter = zoo.WildDrafter()
    _, rounds = rounds_of(drafter, session, prompt=PROMPT[:12], limits=limits)
    assert not passes_without_rows
    assert any(one.rows > 1 + len(one.tree) for one in rounds[1:])
    for before, after in pairwise(rounds[1:]):
        again = after.rows - 1 - len(after.tree)
        if after.tree:
            assert again <= MOST_READ_AGAIN
        elif before.tree:
            assert again <= MOST_READ_AGAIN + 1 + len(before.tree)
        else:
            assert after.rows == 1


@pytest.mark.parametrize("name", ["gpt2", "gemma3n", "gemma4_text", "longcat_flash_ngram"])
@pytest.mark.parametrize("bits", [None, 8])
def test_the_embedding_of_ids_is_found_among_others(name: str, bits: int | None) -> None:
    model = zoo.make_model(name)
    if bits is not None:
        nn.quantize(model, 32, bits, class_predicate=lambda _, m: isinstance(m, nn.Embedding))
    names = {id(module): path for path, module in model.named_modules()}
    found = names[id(embedding_of(model))].rpartition(".")[2]
    assert found in ("wte", "embed_tokens", "word_embeddings")


def test_a_model_that_reads_ids_alone_takes_no_embeddings() -> None:
    model, embeddings = zoo.zoo_model("mamba2"), mx.zeros((5, 128))
    with pytest.raises(UsageError, match="input_embeddings: this model reads ids alone"):
        stream_generate(model, TOKENIZER, [], input_embeddings=embeddings)
