"""Models whose caches forget or cannot be cut back: requests move with them all the same."""

from __future__ import annotations

import json
import random
import time
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx.utils import tree_map
from mlx_lm.models import lfm2
from places import DEMO
from random_drafters import taught_drafter
from random_models import random_model
from served import assert_both_ways, complete, demo_settings, ids_of, metric, plain_ids, serving
from small_tokenizers import write_tokenizer

from tokalign.runtime.decoder import LanguageModel
from tokalign.runtime.mlx.drafter_folder import save_drafter, target_fingerprints
from tokalign.runtime.options import DraftingOptions
from tokalign.serve import Settings


def hybrid(vocabulary: int) -> Any:
    """A float32 model with a recurrent and an attention layer."""
    model = lfm2.Model(
        lfm2.ModelArgs(
            model_type="lfm2",
            vocab_size=vocabulary,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=4,
            max_position_embeddings=256,
            norm_eps=1e-5,
            conv_bias=False,
            conv_L_cache=3,
            block_dim=32,
            block_multiple_of=8,
            block_ffn_dim_multiplier=1.0,
            block_auto_adjust_ff_dim=False,
            block_ff_dim=48,
            layer_types=["conv", "full_attention"],
        )
    )
    mx.random.seed(3)
    model.update(
        tree_map(lambda w: mx.random.normal(w.shape) * 1.5 / w.shape[-1] ** 0.5, model.parameters())
    )
    mx.eval(model.parameters())
    return model


def windowed(vocabulary: int) -> Any:
    return random_model(5, vocabulary=vocabulary, sliding_window=24)


def write(folder: Path, make: Any) -> Path:
    write_tokenizer(folder, vocabulary_size=300)
    size = len(json.loads((folder / "tokenizer.json").read_text("utf-8"))["model"]["vocab"])
    model = make(size)
    model.save_weights(str(folder / "model.safetensors"))
    config = {name: value for name, value in vars(model.args).items() if value is not None}
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>"}), "utf-8")
    return folder


@pytest.mark.parametrize("make", [windowed, hybrid])
@pytest.mark.slow
def test_staggered_requests_get_what_plain_decoding_gives(tmp_path: Path, make: Any) -> None:
    folder = write(tmp_path, make)
    target: LanguageModel[Any] = LanguageModel.from_folder(folder, dtype="float32")
    chance = random.Random(2)
    texts = ["ab ab ab", "ba ba ba ba ba", "to ja, to ja, to ja"]
    asked = [(chance.choice(texts) * chance.randint(1, 3), chance.randint(2, 70)) for _ in range(9)]
    asked += asked[:4]
    waits = [chance.uniform(0, 0.3) for _ in asked]
    drafting = DraftingOptions(num_draft_tokens=3)
    settings = Settings(model=str(folder), dtype="float32", drafting=drafting)
    with serving(settings) as server:
        encode = server.scheduler.model_provider.tokenizer.encode

        @cache
        def plain(prompt: str, tokens: int) -> list[int]:
            return plain_ids(target, encode(prompt), tokens)

        def ask(number: int) -> list[int]:
            time.sleep(waits[number])
            prompt, tokens = asked[number]
            return ids_of(complete(server, prompt, max_tokens=tokens, logprobs=True))

        with ThreadPoolExecutor(len(asked)) as pool:
            found = list(pool.map(ask, range(len(asked))))
        assert found == [plain(*one) for one in asked]
        for number in range(4):  # alone, with what the others left
            assert ask(number) == plain(*asked[number])
        assert metric(server, "tokalign_accepted_tokens_total") > 0
        assert_both_ways(server)


@pytest.mark.parametrize("together", [False, True])
def test_a_prompt_that_goes_on_otherwise_is_not_read_again(tmp_path: Path, together: bool) -> None:
    """A recurrent state is kept at the prompt's end, as it cannot be cut back to there later."""
    settings = Settings(model=str(write(tmp_path, hybrid)), dtype="float32")
    prompt = "to ja, to ja, to ja i ba"
    with serving(settings) as server:
        plain = {"num_draft_tokens": 0} if together else {}  # decoded in a batch of one
        first = complete(server, prompt, **plain).json["usage"]
        usage = complete(server, f"{prompt} ab ab", **plain).json["usage"]
        with serving(settings) as other:
            assert (
                complete(other, f"{prompt} ab ab").json["choices"]
                == complete(server, f"{prompt} ab ab", **plain).json["choices"]
            )
    assert usage["prompt_tokens_details"]["cached_tokens"] == first["prompt_tokens"] - 1


PROMPT, OTHER = "Wisła jest", "Zima w górach"


@pytest.mark.slow
def test_it_drafts_for_requests_and_changes_nothing(tmp_path: Path) -> None:
    with serving(demo_settings(draft_model=None)) as server:
        expected = {text: complete(server, text).json["choices"][0] for text in (PROMPT, OTHER)}
    target: LanguageModel[Any] = LanguageModel.from_folder(DEMO / "target", dtype="float32")
    ids = target.tokenizer.encode(PROMPT + expected[PROMPT]["text"])
    drafter = taught_drafter(target.model, ids, steps=60)
    save_drafter(tmp_path / "drafter", drafter, target_fingerprints(target))
    settings = demo_settings(
        draft_model=None,
        drafting=DraftingOptions(
            method="drafter", drafter=tmp_path / "drafter", num_draft_tokens=3
        ),
    )
    with serving(settings) as server:
        alone = complete(server, PROMPT).json
        assert alone["choices"][0]["text"] == expected[PROMPT]["text"]
        accepted = alone["usage"]["completion_tokens_details"]["accepted_prediction_tokens"]
        assert accepted > 3
        with ThreadPoolExecutor(4) as pool:
            texts = [PROMPT, OTHER] * 2
            replies = list(pool.map(lambda text: complete(server, text), texts))
        for text, reply in zip(texts, replies, strict=True):
            assert reply.json["choices"][0]["text"] == expected[text]["text"]
        assert metric(server, "tokalign_accepted_tokens_total") >= accepted
