"""Tiny EAGLE-3 drafters in the published layouts, for tests of drafting with them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import mlx.core as mx
import mlx.nn as nn
from block_drafters import random_weight
from mlx.utils import tree_flatten, tree_map
from mlx_lm.models.llama import Attention

from tokalign.runtime.mlx.cached_drafter import CachedDrafter
from tokalign.runtime.mlx.eagle3 import Eagle3Drafter
from tokalign.runtime.mlx.weights import embedding_of, vocabulary_size
from tokalign.runtime.rounds import Array
from tokalign.tables.eagle3_config import Eagle3Config


def eagle_config(model: Any, **changed: Any) -> dict[str, Any]:
    """A `config.json` for a model, in SafeAILab's layout; changed: other values."""
    width = int(embedding_of(model)(mx.array([0])).shape[-1])
    last = len(model.layers) - 1
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "hidden_size": width,
        "intermediate_size": 2 * width,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_hidden_layers": 1,
        "vocab_size": vocabulary_size(model),
        "draft_vocab_size": vocabulary_size(model) // 2,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 4096,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": sorted({0, last // 2, last})},
        **changed,
    }


def known_ids(config: dict[str, Any]) -> Array:
    """Every second id, as many as the drafter's vocabulary has."""
    return mx.arange(config["draft_vocab_size"]) * 2 + 1


def random_eagle(
    model: Any, config: dict[str, Any], attend: type[Any] = Attention, **own: Any
) -> Eagle3Drafter:
    """A drafter of this configuration with random weights. own: as in `TapsDrafter.own`."""
    mx.random.seed(7)
    shape = Eagle3Config.from_json(config)
    whole = shape.draft_vocab_size == vocabulary_size(model)
    ids = None if whole else known_ids(config)
    drafter = Eagle3Drafter(shape, model, attend)
    drafter.own(**{"head": True, "ids": ids} | own)
    drafter.update(tree_map(random_weight, drafter.parameters()))
    if quantization := config.get("quantization"):
        nn.quantize(drafter, **quantization)
    mx.eval(drafter.parameters())
    return drafter


class Knowing(CachedDrafter):
    """Mixed into the class of a drafter, which then knows a text. after: ids before it."""

    def know(self, text: Sequence[int], after: int) -> Self:
        self._text, self._after = list(text), after
        return self

    def logits(self, outputs: Array) -> Array:
        logits = mx.zeros_like(super().logits(outputs))
        read = self.layers[-1].self_attn.rope.positions.now.tolist()
        for row, position in enumerate(read[-len(outputs) :]):
            if 0 <= position + 1 - self._after < len(self._text):
                logits[row, self._text[position + 1 - self._after]] = 8.0
        return logits


class KnowingEagle(Knowing, Eagle3Drafter):
    pass


def knowing_eagle(model: Any, text: Sequence[int], after: int) -> KnowingEagle:
    config = {**eagle_config(model), "draft_vocab_size": vocabulary_size(model)}
    return KnowingEagle(Eagle3Config.from_json(config), model).know(text, after)


def write_eagle(
    folder: Path, drafter: Eagle3Drafter, config: dict[str, Any], first: str = "midlayer."
) -> Path:
    """Write a folder as published. first: how names of the first layer's weights begin."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = {
        name.replace("layers.0.", first): value
        for name, value in tree_flatten(drafter.parameters())
    }
    if config["draft_vocab_size"] != config["vocab_size"]:
        weights["d2t"] = known_ids(config) - mx.arange(config["draft_vocab_size"])
        weights["t2d"] = mx.zeros((config["vocab_size"],), mx.bool_)
    mx.save_safetensors(str(folder / "model.safetensors"), weights)
    (folder / "config.json").write_text(json.dumps(config))
    return folder
