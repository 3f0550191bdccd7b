"""Our DSpark and DFlash 2 networks beside those of `mlx-dspark` 0.20.3: the same logits and chains;
Muse Glimmer's own drafter beside that of `mlx-vlm` 0.7.10.

Without that package and what it imports (`pip install --no-deps mlx-dspark==0.20.3
mlx-vlm==0.7.10 pillow miniaudio requests ...`) nothing is compared. Where a round accepts nothing
and a window is full, its ring is masked as if its keys were in order; such rounds are not compared.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest
from block_drafters import (
    block_config,
    dspark_config,
    nested_config,
    random_block_drafter,
    second_config,
    write_block_drafter,
)
from random_models import random_model

from tokalign.runtime.mlx.dflash import DFlashDrafter
from tokalign.runtime.mlx.drafter_folder import read_drafter
from tokalign.runtime.mlx.session import TargetModelSession
from tokalign.runtime.mlx.taps import taps_of
from tokalign.runtime.mlx.weights import embedding_of
from tokalign.runtime.rounds import Array
from tokalign.tokenizer.vocabulary import TargetId

TAPS, PROMPT, SIZE = [0, 1], 33, 96
KNOWN = mx.arange(SIZE // 2) * 2 + 1
LAYOUTS: dict[str, Any] = {
    "DeepSpec": ({}, None, {"embedding": True, "head": True}),
    "speculators": ({}, "dspark", {}),
    "speculators, own ids": ({"draft_vocab_size": SIZE // 2}, "dspark", {"head": True}),
    "no confidence": (
        {"enable_confidence_head": False},
        None,
        {"embedding": True, "head": True},
    ),
    "interleaved, as LFM2.5's": ({"rope_is_neox_style": False}, None, {}),
    "SpecForge": (
        {
            "dflash_config": {
                "projector_type": "dspark",
                "attention_mode": "gqa",
                "confidence_head_alpha": 1.0,
                "runtime_block_size": 4,
            }
        },
        None,
        {},
    ),
    "confidence of the hidden state": ({"confidence_head_with_markov": False}, "dspark", {}),
}
ACCEPTED = [(0, 5, 0, 1, 3), (3, 1, 5, 2, 4)]


class Rounds:
    """What the target computed for a text, given in rounds to a drafter of ours and to theirs."""

    def __init__(self, model: Any, accepted: tuple[int, ...]) -> None:
        self._session = TargetModelSession(model, watch=partial(taps_of, layers=TAPS))
        mx.random.seed(1)
        self.ids: list[TargetId] = mx.random.randint(0, 90, (80,)).tolist()
        self._accepted = accepted

    def __iter__(self) -> Any:
        """The last committed id, and the new taps f[n, layers * width] before it."""
        n, begin = PROMPT, 0
        self._session.logits(self.ids[:n])
        for count in self._accepted:
            _, taps = self._session.take_taps(self.ids[: n + 1], begin)
            assert taps is not None
            yield self.ids[n], taps
            begin = n
            self._session.logits(self.ids[: n + 1 + count])
            n += 1 + count


def close(ours: Array, theirs: Array) -> bool:
    return bool(mx.allclose(ours, theirs, atol=1e-5).item())


def chain_of(ours: DFlashDrafter, hidden: Array, logits: Array, last: int) -> list[int]:
    """The most probable id of each position after those before."""
    chain = [mx.array([last])]
    for place in range(len(hidden)):
        at = slice(place, place + 1)
        chain.append(ours.after(hidden[at], logits[at], chain[-1][None])[0].argmax(axis=-1))
    return [int(token.item()) for token in chain[1:]]


@pytest.mark.parametrize("accepted", ACCEPTED)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_dspark_guesses_as_theirs(layout: str, accepted: tuple[int, ...], tmp_path: Path) -> None:
    theirs: Any = pytest.importorskip("mlx_dspark.load")
    model, (changed, kind, own) = random_model(), LAYOUTS[layout]
    config = dspark_config(model, **changed)
    reduced = "draft_vocab_size" in changed
    drafter = random_block_drafter(
        model, config=config, own={**own, "ids": KNOWN if reduced else None}
    )
    if kind:
        config = nested_config(config, kind)
    more = {"d2t": KNOWN - mx.arange(len(KNOWN))} if reduced else {}
    folder = write_block_drafter(tmp_path, drafter, config, **more)
    ours, (reference, _) = (
        read_drafter(folder, model),
        theirs.load_drafter(str(folder), quantize=False),
    )
    reference.bind_embed(embedding_of(model))
    reference.bind_lm_head(ours.own_logits)
    known, contexts, read = ours.new_cache(0), reference.make_ctx_cache(), 0
    for last, taps in Rounds(model, accepted):
        hidden = ours.hidden(last, taps, known)
        logits = ours.own_logits(hidden)
        reference.update_context(taps[None], read, contexts)
        read += len(taps)
        block = mx.array([[last, *[1] * (reference.block_size - 1)]])
        states = reference.head_slice(
            reference.backbone(reference.embed(block), read, contexts), 9
        )[0]
        base = reference.compute_logits(states)
        assert close(hidden, states)
        assert close(logits, base)
        chain = chain_of(ours, hidden, logits, last)
        assert chain == reference.sample_block(base, last).tolist()
        before = mx.array([last, *chain[:-1]])
        linked = ours.after(hidden, logits, before[:, None])[:, 0]
        biased = base + reference.markov_head.step_bias(before)
        assert close(linked[:, KNOWN] if reduced else linked, biased)
        said, right = ours.confidence(hidden, before), reference.confidence_logits(states, before)
        assert (said is None) == (right is None)
        assert said is None or close(said, right)


WINDOWS: dict[str, dict[str, Any]] = {
    "full": {},
    "sliding": {"layer_types": ["sliding_attention"] * 2, "sliding_window": 24},
}


@pytest.mark.parametrize("bits", [None, 8])
@pytest.mark.parametrize("windows", WINDOWS)
@pytest.mark.parametrize("accepted", ACCEPTED)
def test_dflash_2_guesses_as_theirs(
    accepted: tuple[int, ...], windows: str, bits: int | None, tmp_path: Path
) -> None:
    theirs: Any = pytest.importorskip("mlx_dspark.load")
    if windows != "full" and 0 in accepted:
        pytest.skip("the ring of mlx-dspark is out of order")
    model = random_model()
    config = second_config(model, **WINDOWS[windows])
    drafter = random_block_drafter(model, config=config)
    folder = write_block_drafter(tmp_path / "whole", drafter, config)
    how = {"quantize": False} if bits is None else {"bits": bits, "group_size": 32}
    reference, _ = theirs.load_dflash(str(folder), **how)
    if bits is not None:
        nn.quantize(
            drafter,
            group_size=32,
            bits=bits,
            class_predicate=lambda path, part: (
                isinstance(part, nn.Linear) and "_conv" not in path and "selector" not in path
            ),
        )
        config["quantization"] = {"group_size": 32, "bits": bits}
        folder = write_block_drafter(tmp_path / "quantized", drafter, config)
    ours = read_drafter(folder, model)
    reference.bind(model)
    known, cache, guesses = ours.new_cache(0), reference.make_cache(), ours.config.guesses
    for number, (last, taps) in enumerate(Rounds(model, accepted)):
        hidden = ours.hidden(last, taps, known)
        logits = ours.own_logits(hidden)
        block = mx.array([[last, *[1] * guesses]])
        if number == 0 and windows == "sliding":  # as its prefill does
            for layer in cache:
                layer.skip(PROMPT - 23)
            taps = taps[-23:]
        states = reference.forward_hidden(block, taps[None], cache, logits_start=1)[0]
        assert close(hidden, states)
        unary = reference._transform_unary(reference.lm_head(states))
        assert close(logits, unary)
        candidates = mx.argsort(-unary, axis=-1)[:, :5]
        scores = reference.candidate_selector.lattice(
            candidates, mx.take_along_axis(unary, candidates, axis=-1), states, last
        )
        before = mx.concatenate([mx.full((1, 5), last), candidates[:-1]])
        linked = ours.after(hidden, logits, before)
        among = mx.broadcast_to(candidates[:, None], scores.shape)
        assert close(mx.take_along_axis(linked, among, axis=-1), scores)
        assert (linked > -mx.inf).sum().item() == scores.size
        walked = reference.candidate_selector.walk_greedy(scores, candidates)
        assert chain_of(ours, hidden, logits, last) == walked.tolist()


@pytest.mark.parametrize("window", [24, 80])
@pytest.mark.parametrize("accepted", ACCEPTED)
def test_muse_glimmers_drafter_guesses_as_theirs(
    accepted: tuple[int, ...], window: int, tmp_path: Path
) -> None:
    theirs: Any = pytest.importorskip("mlx_vlm.speculative.drafters.muse_glimmer_assistant.dflash")
    if window == 24 and 0 in accepted:
        pytest.skip("the ring of mlx-vlm is out of order")
    model, types = random_model(), {"layer_types": ["sliding_attention"] * 2}
    config = block_config(model, sliding_window=window, **types)
    config |= config.pop("dflash_config") | {"model_type": "muse_glimmer_assistant"}
    config["rope_parameters"] = {"rope_theta": config.pop("rope_theta"), "rope_type": "default"}
    drafter = random_block_drafter(model, target_layer_ids=TAPS)
    folder = write_block_drafter(tmp_path, drafter, config)
    named = dict(mx.load(str(folder / "model.safetensors")))
    named["encoder.fc.weight"] = named.pop("fc.weight")
    named["encoder.output_norm_enc.weight"] = named.pop("hidden_norm.weight")
    mx.save_safetensors(str(folder / "model.safetensors"), named)
    ours = read_drafter(folder, model)
    reference = theirs.Model(theirs.MuseGlimmerAssistantConfig.from_dict(config))
    reference.load_weights([*named.items()])
    reference.embed_tokens = embedding_of(model)
    known, cache = ours.new_cache(0), reference.make_cache()
    for last, taps in Rounds(model, accepted):
        block = mx.array([[last, *[1] * ours.config.guesses]])
        states = reference._hidden(block, taps[None], cache)[0, 1:]
        assert close(ours.hidden(last, taps, known), states)
