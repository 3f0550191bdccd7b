"""Tiny Gemma 4 assistants in the published layout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import zoo
from mlx.utils import tree_flatten, tree_map_with_path

from tokalign.runtime.mlx.gemma4_assistant import Gemma4Assistant

TEXT: dict[str, Any] = {
    "model_type": "gemma4_text",
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "global_head_dim": 64,
    "vocab_size": zoo.VOCABULARY,
    "hidden_size_per_layer_input": 0,
    "sliding_window": zoo.WINDOW,
    "layer_types": ["sliding_attention"] * 3 + ["full_attention"],
    "num_kv_shared_layers": 4,
    "enable_moe_block": False,
}


def assistant_config(target: Any, **changed: Any) -> dict[str, Any]:
    inner = getattr(target, "language_model", target)
    text = {**TEXT, "rope_parameters": inner.args.rope_parameters}
    width = inner.args.hidden_size
    return {
        "model_type": "gemma4_assistant",
        "backbone_hidden_size": width,
        "use_ordered_embeddings": False,
        "tie_word_embeddings": True,
        "text_config": text,
        **changed,
    }


ORDERED = {"use_ordered_embeddings": True, "num_centroids": 16, "centroid_intermediate_top_k": 5}


def random_assistant(target: Any, *, ordered: bool = False) -> Gemma4Assistant:
    assistant = Gemma4Assistant(assistant_config(target, **(ORDERED if ordered else {})), target)
    mx.random.seed(6)
    assistant.update(tree_map_with_path(_random, assistant.parameters()))
    if ordered:
        assistant.masked_embedding.token_ordering = mx.random.permutation(zoo.VOCABULARY)
    mx.eval(assistant.parameters())
    return assistant


def write_assistant(folder: Path, assistant: Gemma4Assistant, config: dict[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    outside = ("pre_projection", "post_projection", "masked_embedding", "lm_head")
    weights = {
        name if name.startswith(outside) else f"model.{name}": weight
        for name, weight in tree_flatten(assistant.parameters())
    }
    mx.save_safetensors(str(folder / "model.safetensors"), weights)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def _random(name: str, weight: mx.array) -> mx.array:
    if weight.dtype != mx.float32:
        return weight
    if weight.ndim == 1:
        return weight + 0.1 * mx.random.normal(weight.shape)
    return mx.random.normal(weight.shape) / weight.shape[-1] ** 0.5
