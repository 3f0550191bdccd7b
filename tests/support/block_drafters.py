"""Tiny block drafters in the published layout, for tests of drafting with them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten, tree_map

from tokalign.runtime.mlx.dflash import DFlashDrafter
from tokalign.runtime.mlx.weights import embedding_of, vocabulary_size
from tokalign.runtime.mlx.window_cache import WindowCache
from tokalign.runtime.rounds import Array
from tokalign.tables.dflash_config import DFlashConfig


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


def second_config(model: Any, **changed: Any) -> dict[str, Any]:
    """A `config.json` of DFlash 2, as `block_config`."""
    own = {"conv_kernel_size": 2, "conv_group_size": 8, "selector_rank": 6, "selector_top_k": 5}
    return block_config(model, dflash_config=own, **changed)


def dspark_config(model: Any, **changed: Any) -> dict[str, Any]:
    """A `config.json` of DSpark in DeepSpec's layout: all keys at the top."""
    config = block_config(model)
    heads = {"markov_rank": 6, "markov_head_type": "vanilla", "enable_confidence_head": True}
    own = config.pop("dflash_config") | heads | {"confidence_head_with_markov": True}
    return {
        **config,
        "architectures": ["Qwen3DSparkModel"],
        "model_type": "qwen3",
        **own,
        **changed,
    }


def nested_config(config: dict[str, Any], kind: str, **changed: Any) -> dict[str, Any]:
    """The packaging of `speculators` for a configuration in another layout."""
    flat = {**config, **config.get("dflash_config", {})}
    top = ("block_size", "mask_token_id", "draft_vocab_size", "markov_rank", "markov_head_type")
    top += ("enable_confidence_head", "confidence_head_with_markov", "conv_kernel_size")
    top += ("conv_group_size", "selector_rank", "selector_top_k")
    layers = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads")
    layers += ("head_dim", "vocab_size", "rms_norm_eps", "max_position_embeddings")
    layers += ("num_hidden_layers", "layer_types", "sliding_window")
    guesses = flat["block_size"] - (kind != "dspark")
    return {
        "architectures": ["DFlashSpeculator"],
        "speculators_model_type": kind,
        "speculators_config": {
            "algorithm": kind,
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": guesses}],
        },
        "aux_hidden_state_layer_ids": [layer + 1 for layer in flat["target_layer_ids"]],
        "transformer_layer_config": {
            "model_type": "qwen3",
            "rope_parameters": {"rope_theta": flat["rope_theta"], "rope_type": "default"},
            **{key: flat[key] for key in layers if key in flat},
        },
        **{key: flat[key] for key in top if key in flat},
        **changed,
    }


KINDS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "DFlash": block_config,
    "DFlash 2": second_config,
    "DSpark": dspark_config,
    "DFlash 2, nested": lambda model: nested_config(second_config(model), "dflash2"),
    "DSpark, nested": lambda model: nested_config(dspark_config(model), "dspark"),
}
"""What makes the `config.json` of each kind and layout for a model."""


def random_block_drafter(
    model: Any,
    seed: int = 3,
    *,
    config: dict[str, Any] | None = None,
    own: dict[str, Any] | None = None,
    **changed: Any,
) -> DFlashDrafter:
    """A drafter with random weights. config: by default that of `block_config`. own: as in
    `TapsDrafter.own`."""
    config = config or block_config(model, **changed)
    mx.random.seed(seed)
    drafter = DFlashDrafter(DFlashConfig.from_json(config), model)
    drafter.own(**(own or {}))
    drafter.update(tree_map(random_weight, drafter.parameters()))
    if quantization := changed.get("quantization"):
        nn.quantize(drafter, **quantization)
    mx.eval(drafter.parameters())
    return drafter


class KnowingDrafter(DFlashDrafter):
    """Knows a text: it gives one probability to its ids, at the positions that it is asked about.

    after: how many ids there were before the text.
    """

    def __init__(
        self,
        model: Any,
        text: Sequence[int],
        after: int,
        config: dict[str, Any] | None = None,
        **changed: Any,
    ) -> None:
        config = config or block_config(model, **changed)
        super().__init__(DFlashConfig.from_json(config), model)
        self._text, self._after = list(text), after

    def hidden(self, last: int, taps: Array, known: Sequence[WindowCache]) -> Array:
        hidden = super().hidden(last, taps, known)
        self._begin = known[0].offset + 1 - self._after
        return hidden

    def own_logits(self, hidden: Array) -> Array:
        logits = super().own_logits(hidden) * 0.0
        for place, token in enumerate(self._text[self._begin : self._begin + len(hidden)]):
            logits[place, token] = 8.0
        return logits


def write_block_drafter(
    folder: Path, drafter: DFlashDrafter, config: dict[str, Any], **more: Array
) -> Path:
    """Write a folder as published. more: further arrays of its weights file."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = dict(tree_flatten(drafter.parameters())) | more
    mx.save_safetensors(str(folder / "model.safetensors"), weights)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def random_weight(weight: Array) -> Array:
    return mx.random.normal(weight.shape) * (0.3 if weight.ndim > 1 else 0.1) + (weight.ndim == 1)
