"""Our networks beside those of `speculators` 0.9.0, read from folders that it writes: same logits.

It needs PyTorch; without both (`pip install speculators==0.9.0 torch`) nothing is compared. What it
runs is how it trains: a pass over a whole text, blocks and drafts after some of its positions.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.base import create_causal_mask
from mlx_lm.models.cache import KVCache
from random_models import VOCABULARY, random_model, write_model
from training_runs import Train
from transformers import LlamaConfig, Qwen3Config

from tokalign.runtime.decoder import LanguageModel
from tokalign.runtime.mlx.drafter_folder import read_drafter

torch: Any = pytest.importorskip("torch")
speculators: Any = pytest.importorskip("speculators")
WIDTH, LENGTH = 32, 40
KNOWN = np.arange(VOCABULARY // 2) * 2 + 1

WINDOW = {
    "use_sliding_window": True,
    "layer_types": ["sliding_attention", "full_attention"],
    "sliding_window": 6,
}
EAGLES: dict[str, dict[str, Any]] = {
    "plain": {},
    "all ids": {"draft_vocab_size": VOCABULARY},
    "several layers": {"num_hidden_layers": 3},
    "norms": {"norm_before_residual": True, "norm_before_fc": True},
    "EAGLE 3.1": {"fc_norm": True, "norm_output": True},
    "biases": {"attention_bias": True},
    "layers of Qwen3": {"num_hidden_layers": 2, "layers": Qwen3Config},
    "windows": {"num_hidden_layers": 2, **WINDOW},
}
SECOND = {"conv_group_size": 4, "selector_rank": 4, "selector_top_k": 3} | {
    "draft_vocab_size": VOCABULARY
}
BLOCKS: dict[str, tuple[str, dict[str, Any]]] = {
    "DFlash": ("dflash", {}),
    "DFlash, all ids": ("dflash", {"draft_vocab_size": VOCABULARY}),
    "DFlash, from the anchor": ("dflash", {"sample_from_anchor": True}),
    "DFlash, windows": ("dflash", WINDOW),
    "DFlash, windows, seeing all": ("dflash", {**WINDOW, "sliding_window_non_causal": True}),
    "DFlash 2": ("dflash2", SECOND),
    "DFlash 2, windows": ("dflash2", {**WINDOW, **SECOND}),
    "DSpark": ("dspark", {"markov_rank": 4}),
    "DSpark, windows": ("dspark", {**WINDOW, "markov_rank": 4}),
}


def written(kind: str, folder: Path, changed: dict[str, Any]) -> Any:
    """Their network of a kind with random weights, which it has written to a folder itself."""
    layer: dict[str, Any] = {
        "hidden_size": WIDTH,
        "intermediate_size": 48,
        "num_hidden_layers": 1 if kind == "eagle3" else 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "vocab_size": VOCABULARY,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 256,
    }
    own = dict(changed)
    layer |= {key: own.pop(key) for key in list(own) if key in {*layer, *WINDOW, "attention_bias"}}
    taps = {"eagle_aux_hidden_state_layer_ids": [1, 2, 3]}
    blocks = {"aux_hidden_state_layer_ids": [1, 2], "block_size": 5, "mask_token_id": 95}
    of_kind = speculators.SpeculatorModelConfig.registry[kind]
    anchored = own.get("sample_from_anchor", kind == "dspark")
    greedy = speculators.TokenProposalConfig.registry["greedy"]
    layers = own.pop("layers", LlamaConfig if kind == "eagle3" else Qwen3Config)
    config = of_kind(
        transformer_layer_config=layers(**layer),
        speculators_config=speculators.SpeculatorsConfig(
            algorithm=kind,
            proposal_methods=[greedy(speculative_tokens=4 + anchored)],
            default_proposal_method="greedy",
            verifier=speculators.VerifierConfig(
                name_or_path=None, architectures=["LlamaForCausalLM"]
            ),
        ),
        **{
            "draft_vocab_size": len(KNOWN),
            **(taps if kind == "eagle3" else blocks),
            **own,
        },
    )
    config.transformer_layer_config._attn_implementation = "eager"
    made = speculators.SpeculatorModel.registry[kind](config).float().eval()
    torch.manual_seed(5)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(torch.randn(parameter.shape) * 0.3)
        if made.use_draft_vocab:
            knows = torch.zeros(VOCABULARY, dtype=torch.bool)
            knows[KNOWN] = True
            offsets = torch.tensor(KNOWN - np.arange(len(KNOWN)))
            made.load_vocab_mappings(knows, offsets)
        embedding = random_model(layers=4).model.embed_tokens.weight
        made.embed_tokens.weight.copy_(torch.tensor(np.array(embedding)))
        if not made.use_draft_vocab:  # it leaves out what is the target's
            head = random_model(layers=4).lm_head.weight
            made.lm_head.weight.copy_(torch.tensor(np.array(head)))
    made.save_pretrained(folder)
    return made


def read_text(taps: int) -> tuple[Any, Any]:
    """Ids i[LENGTH] of a text, and what a target might have computed f[LENGTH, width]."""
    random = np.random.default_rng(3)
    states = random.standard_normal((LENGTH, taps * WIDTH)).astype(np.float32)
    return random.integers(0, 90, LENGTH), states


def close(ours: Any, theirs: Any) -> bool:
    return bool(np.abs(np.array(ours) - theirs.numpy()).max() <= 1e-5 * (1 + np.abs(ours).max()))


def compare_eagle(theirs: Any, ours: Any) -> None:
    """Over drafts of three ids after some positions of a text."""
    logits = list[Any]()
    assert ours.config.target_layer_ids == (0, 1, 2), "outputs of what they read the inputs of"
    known = np.arange(theirs.draft_vocab_size)
    if theirs.use_draft_vocab:
        known = known + theirs.d2t.numpy()
    ids, states = read_text(3)
    theirs.lm_head.register_forward_hook(lambda *called: logits.append(called[2][0]))
    text = torch.tensor(ids)[None]
    with torch.no_grad():
        theirs(torch.tensor(states)[None], text, torch.zeros_like(text), ttt_steps=3)
    for position in (0, 7, LENGTH - 4):
        end = position + 1
        cache = [KVCache() for _ in ours.layers]
        x = ours.states(mx.array(states[:end]))
        x = ours.read(mx.array(ids[:end]), x, cache, create_causal_mask(end, 0))[-1:]
        # A window moves on with each draft, but not where they train.
        for step in range(1 if theirs.uses_sliding_window_attn else 3):
            found = np.array(ours.logits(x)[0])
            assert np.flatnonzero(np.isfinite(found)).tolist() == known.tolist()
            assert close(found[known], logits[step][position])
            following = mx.array(ids[end + step : end + step + 1])
            x = ours.read(following, x, cache, mx.ones((1, end + step + 1), mx.bool_))


@pytest.mark.parametrize("network", EAGLES)
def test_an_eagle_goes_on_as_theirs(network: str, tmp_path: Path) -> None:
    theirs = written("eagle3", tmp_path, EAGLES[network])
    compare_eagle(theirs, read_drafter(tmp_path, random_model(layers=4)))


@pytest.mark.parametrize("known", [100, 340])
def test_they_load_what_was_trained_here(known: int, sentences: Path, tmp_path: Path) -> None:
    """With the target's embedding, which the folder does not have."""
    name = write_model(
        tmp_path / "model",
        vocabulary_size=340,
        make=lambda size, seed: random_model(seed, vocabulary=size, layers=4),
    )
    target = replace(LanguageModel.from_folder(name), name=str(name))
    Train(target, sentences)(tmp_path, "eagle3", draft_vocabulary=known)
    folder = tmp_path / "drafter"
    config = speculators.SpeculatorModelConfig.from_pretrained(folder)
    assert config.speculators_config.verifier.name_or_path == str(name)
    config.transformer_layer_config._attn_implementation = "eager"
    how = {"config": config, "dtype": torch.float32}
    theirs = speculators.SpeculatorModel.from_pretrained(folder, **how).eval()
    # It fills in an embedding where it finds NaN in what was allocated for it, so by chance.
    theirs._load_verifier_weights(overwrite_embed_tokens=True)
    if known == 340:  # ours has the target's head; the folder's copy is in 16 bits
        head = torch.tensor(np.array(target.model.lm_head.weight))
        theirs.lm_head.load_state_dict({"weight": head})
    compare_eagle(theirs, read_drafter(folder, target.model))


@pytest.mark.parametrize("network", BLOCKS)
def test_a_block_is_guessed_as_theirs(network: str, tmp_path: Path) -> None:
    kind, changed = BLOCKS[network]
    theirs = written(kind, tmp_path, changed)
    ours = read_drafter(tmp_path, random_model(layers=4))
    ids, states = read_text(2)
    text, width = torch.tensor(ids)[None], torch.zeros(1, LENGTH, WIDTH)
    assert ours.config.target_layer_ids == (0, 1)
    known = ours.new_cache(0)
    anchored = theirs.config.sample_from_anchor
    begin = 0
    for anchor in (3, 4, 9, 16, 30):
        chosen = torch.zeros(1, LENGTH)
        chosen[0, anchor] = 1
        with torch.no_grad():
            hidden, logits, *_ = theirs._backbone_forward(
                torch.tensor(states)[None],
                text,
                chosen,
                width,
                torch.zeros_like(text),
                max_anchors=1,
            )
        found = ours.hidden(int(ids[anchor]), mx.array(states[begin:anchor]), known)
        begin, first = anchor, 0 if anchored else 1
        assert close(found, hidden[0, first:])
        assert close(ours.own_logits(found), logits[0, first:])
