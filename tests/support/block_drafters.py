"""Tiny block drafters in the published layout, for tests of drafting with them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten, tree_map

from tokalign.runtime.mlx.dflash import ContextKeys, DFlashConfig, DFlashDrafter
from tokalign.runtime.mlx.weights import embedding_of, vocabulary_size
from tokalign.runtime.rounds import Array


def block_config(model: Any, **changed: Any) -> dict[str, Any]:
    """A `config.json` for a model; changed: other values, those of `dflash_config` among them."""
    width = int(embedding_of(model)(mx.array([0])).shape[-1])
    own = {
        "target_layer_ids": changed.pop("target_layer_ids", [0, len(model.layers) - 1]),
        "mask_token_id": 1,
    }
    return {
        "architectures": ["DFlashDraftModel"],
        "hidden_size": width,
        "intermediate_size": 2 * width,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": vocabulary_size(model),
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 4096,
        "rope_theta": 10000.0,
        "num_hidden_layers": 2,
        "num_target_layers": len(model.layers),
        "block_size": 6,
        "dflash_config": own | changed.pop("dflash_config", {}),
        **changed,
    }


def random_block_drafter(model: Any, seed: int = 3, **changed: Any) -> DFlashDrafter:
    config = DFlashConfig.from_json(block_config(model, **changed), name="random")
    mx.random.seed(seed)
    drafter = DFlashDrafter(config, model)
    drafter.update(tree_map(random_weight, drafter.parameters()))
    mx.eval(drafter.parameters())
    return drafter


class KnowingDrafter(DFlashDrafter):
    """Knows a text: it gives one probability to its ids, at the positions that it is asked about.

    after: how many ids there were before the text.
    """

    def __init__(self, model: Any, text: Sequence[int], after: int, **changed: Any) -> None:
        super().__init__(DFlashConfig.from_json(block_config(model, **changed), name="it"), model)
        self._text, self._after = list(text), after

    def __call__(self, last: int, count: int, taps: Array, known: Sequence[ContextKeys]) -> Array:
        logits = super().__call__(last, count, taps, known) * 0.0
        begin = known[0].end + 1 - self._after
        for place, token in enumerate(self._text[begin : begin + count]):
            logits[place, token] = 8.0
        return logits


def write_block_drafter(folder: Path, drafter: DFlashDrafter, config: dict[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    mx.save_safetensors(str(folder / "model.safetensors"), dict(tree_flatten(drafter.parameters())))
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def random_weight(weight: Array) -> Array:
    return mx.random.normal(weight.shape) * (0.3 if weight.ndim > 1 else 0.1) + (weight.ndim == 1)
