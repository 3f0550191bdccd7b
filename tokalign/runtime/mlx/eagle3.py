"""EAGLE-3: a drafter of one layer that reads three layers of the target, then its own outputs.

Its first layer attends to the embedding of an id beside what the target computed for the id before
it. It has a head of its own, often over the most frequent ids alone, and may have an embedding.
`tables/eagle3_config.py` has the layouts.
Source: EAGLE-3 (Li et al., 2025); `mlx-vlm` 0.7.10, which `lab/tests/test_eagle3_parity.py`
compares with, and `speculators` 0.9.0 (`lab/tests/test_speculators_parity.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models import qwen3
from mlx_lm.models.base import create_causal_mask
from mlx_lm.models.llama import Attention, TransformerBlock

from tokalign.runtime.mlx.cached_drafter import CachedDrafter
from tokalign.runtime.mlx.published_drafter import TapsDrafter, Weights
from tokalign.runtime.rounds import Array
from tokalign.tables.drafter_config import refuse
from tokalign.tables.eagle3_config import Eagle3Config


class FirstLayer(TransformerBlock):  # type: ignore[misc]
    """A layer whose attention reads embeddings beside hidden states."""

    def __init__(self, config: Eagle3Config, attend: type[Any]) -> None:
        super().__init__(config)
        width = config.hidden_size
        attention = attend(replace(config, hidden_size=2 * width))
        attention.o_proj = self["self_attn"].o_proj
        self.self_attn = attention
        self.hidden_norm = nn.RMSNorm(width, eps=config.rms_norm_eps)
        self.adds_normed = config.norm_before_residual

    def __call__(self, x: Array, embedded: Array, mask: Any, cache: Any) -> Array:
        """x, embedded: f[1, n, width]."""
        normed = self.hidden_norm(x)
        read = mx.concatenate([self.input_layernorm(embedded), normed], axis=-1)
        x = (normed if self.adds_normed else x) + self.self_attn(read, mask, cache)
        return x + self.mlp(self.post_attention_layernorm(x))


class Eagle3Drafter(TapsDrafter, CachedDrafter):
    """The network. attend: what makes the attention of a layer. Raises: IncompatibleError for a
    target of another size."""

    def __init__(self, config: Eagle3Config, target: Any, attend: type[Any] = Attention) -> None:
        super().__init__(config, target)
        self.goes_on_normed = config.norm_output
        if config.norm_before_fc:
            self.input_norm = nn.RMSNorm(self.fc.weight.shape[1], eps=config.rms_norm_eps)
        if config.fc_norm:
            width, eps = config.target_hidden_size, config.rms_norm_eps
            self.fc_norm = [nn.RMSNorm(width, eps=eps) for _ in self._taps]
        others = [TransformerBlock(config) for _ in range(1, config.num_hidden_layers)]
        for layer in others:
            layer.self_attn = attend(config)
        self.layers = [FirstLayer(config, attend), *others]

    def states(self, watched: Array) -> Array:
        watched = super().states(watched)
        if self.config.norm_before_fc:
            watched = self.input_norm(watched)
        if self.config.fc_norm:
            parts = mx.split(watched, len(self.fc_norm), axis=-1)
            normed = [norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)]
            watched = mx.concatenate(normed, axis=-1)
        return self.fc(watched)

    def read(self, ids: Array, states: Array, cache: Sequence[Any], mask: Any) -> Array:
        embedded = self.embedded(ids).astype(states.dtype)
        inputs: tuple[Array, ...] = (states[None], embedded[None])
        for layer, window, of_layer in zip(self.layers, self.config.windows, cache, strict=True):
            seen = _in_window(mask, len(ids), of_layer, window) if window else mask
            inputs = (layer(*inputs, seen, of_layer),)
        return self.output(inputs[0][0])

    @property
    def has_head(self) -> bool:
        """See `TrainedDrafter`. Its own embedding may be one."""
        return "lm_head" in self or (self.config.tie_word_embeddings and "embed_tokens" in self)

    def logits(self, outputs: Array) -> Array:
        return self.among_all(super().logits(outputs))


def _in_window(mask: Any, rows: int, cache: Any, window: int) -> Array:
    """A mask without the keys that are `window` or more positions before a row. All that a row sees
    of one text is cached in its order, and its own guesses come last."""
    if isinstance(mask, str):
        return create_causal_mask(rows, cache.offset, window_size=window)
    return mask & (mx.arange(mask.shape[1]) >= mask.sum(axis=1, keepdims=True) - window)


def make_eagle3(config: Mapping[str, Any], weights: Weights, target: Any) -> Eagle3Drafter:
    """As `make_dflash`."""
    # Layers are as Llama's or, of late in speculators, as Qwen3's, which norm queries and keys.
    has_norms = any(key.endswith("self_attn.q_norm.weight") for key in weights)
    attend = qwen3.Attention if has_norms else Attention
    made = Eagle3Config.from_json(config)
    if not any("layers." in key for key in weights):  # SafeAILab's for Vicuna 13B says it has 40
        made = replace(made, num_hidden_layers=1, layer_types=made.layer_types[:1])
    if has_norms and made.rope_traditional:
        refuse(["is_neox_style: false beside norms of queries"])
    return Eagle3Drafter(made, target, attend).filled(weights)
