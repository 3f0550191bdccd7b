"""Tiny MTP layers, and checkpoints that hold them as published."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import zoo
from mlx.utils import tree_flatten, tree_map_with_path

from tokalign.runtime.mlx.mtp import MtpDrafter
from tokalign.runtime.rounds import Array
from tokalign.tables.drafter_formats import GOES_ON_NORMED


def random_mtp(target: Any, depth: int = 1) -> MtpDrafter:
    drafter = MtpDrafter(target, depth)
    mx.random.seed(5)
    drafter.update(tree_map_with_path(_random, drafter.parameters()))
    mx.eval(drafter.parameters())
    return drafter


def published_weights(drafter: MtpDrafter, target: Any) -> dict[str, Array]:
    """Its weights under the names, and in the shapes, of an original checkpoint."""
    normed = GOES_ON_NORMED[target.model_type]
    weights = {}
    for name, weight in tree_flatten(drafter.parameters()):
        weight = weight - 1 if normed and weight.ndim == 1 and "norm" in name else weight
        weights |= _original(name, weight, target)
    if not normed:
        after = f"model.layers.{len(target.layers)}."
        if (inner := weights.pop("self_attn.embed_q.weight", None)) is not None:
            parts = [inner.swapaxes(-1, -2), weights.pop("self_attn.unembed_out.weight")]
            joined = mx.concatenate(parts, axis=1)
            weights["self_attn.kv_b_proj.weight"] = joined.reshape(-1, joined.shape[-1])
        return {f"{after}{name}": of for name, of in weights.items()}
    ours = {"embedding_norm": "pre_fc_norm_embedding", "hidden_norm": "pre_fc_norm_hidden"}
    weights = {
        f"mtp.{ours.get(n.split('.')[0], n.split('.')[0])}{n[len(n.split('.')[0]) :]}": of
        for n, of in weights.items()
    }
    fused = {}
    for name in [name for name in weights if "switch_mlp.gate_proj" in name]:
        stem = name.replace("switch_mlp.gate_proj.weight", "")
        gate, up = (weights.pop(f"{stem}switch_mlp.{part}_proj.weight") for part in ("gate", "up"))
        down = weights.pop(f"{stem}switch_mlp.down_proj.weight")
        fused |= experts(stem, gate, up, down, target)
    convolution = {"model.layers.0.linear_attn.conv1d.weight": mx.zeros((8, 1, 4))}
    return weights | fused | convolution


def experts(stem: str, gate: Array, up: Array, down: Array, target: Any) -> dict[str, Array]:
    """Experts as original checkpoints have them: joined, or one by one."""
    if target.model_type != "qwen3_next":
        joined = mx.concatenate([gate, up], axis=-2)
        return {f"{stem}experts.gate_up_proj": joined, f"{stem}experts.down_proj": down}
    parts = {"gate_proj": gate, "up_proj": up, "down_proj": down}
    return {
        f"{stem}experts.{number}.{name}.weight": of[number]
        for name, of in parts.items()
        for number in range(len(of))
    }


def _original(name: str, weight: Array, target: Any) -> dict[str, Array]:
    """One weight of GLM and DeepSeek, or of Qwen but for its experts."""
    if GOES_ON_NORMED[target.model_type]:
        return {name: weight}
    names = {
        "fc": "eh_proj",
        "embedding_norm": "enorm",
        "hidden_norm": "hnorm",
        "norm": "shared_head.norm",
    }
    first, _, rest = name.partition(".")
    if first in names:
        return {f"{names[first]}.{rest}": weight}
    name = name.removeprefix("layers.0.")
    if "switch_mlp" in name:
        part = name.split(".")[2]
        return {f"mlp.experts.{n}.{part}.weight": of for n, of in enumerate(weight)}
    return {name: weight}


def write_mtp(folder: Path, weights: dict[str, Array], target: Any, **config: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    mx.save_safetensors(str(folder / "model.safetensors"), weights)
    (folder / "config.json").write_text(json.dumps({"model_type": target.model_type, **config}))
    return folder


def _random(name: str, weight: Array) -> Array:
    if weight.ndim == 1 and "norm" in name:
        return weight + 0.1 * mx.random.normal(weight.shape)
    return zoo.random_weight(name, weight) / 3  # smaller, so that rounding does not grow
