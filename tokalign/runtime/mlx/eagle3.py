"""EAGLE-3: a drafter of one layer that reads three layers of the target, then its own outputs.

Its first layer attends to the embedding of an id beside what the target computed for the id before
it. It has a head of its own, often over the most frequent ids alone, and may have an embedding.
Three layouts are read. SafeAILab and SpecForge: `midlayer`, ids of layers whose *outputs* are read.
speculators: `layers.N`, a nested configuration, ids of layers whose *inputs* are read; EAGLE 3.1
there is two norms more.
Source: EAGLE-3 (Li et al., 2025); `mlx-vlm` 0.7.10, which `lab/tests/test_eagle3_parity.py`
compares with, and `speculators` 0.9.0 (`lab/tests/test_speculators_parity.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.llama import Attention, TransformerBlock

from tokalign.errors import IncompatibleError
from tokalign.runtime.mlx.cached_drafter import CachedDrafter
from tokalign.runtime.mlx.published_drafter import (
    SHAPE_KEYS,
    DrafterShape,
    TapsDrafter,
    read_drafter_json,
    read_weights,
    reading,
    refuse,
    refuse_unknown,
)
from tokalign.runtime.rounds import Array

_INPUTS = "eagle_aux_hidden_state_layer_ids"
_USUAL = {
    "use_aux_hidden_state": True,
    "use_input_layernorm_in_first_layer": True,
    "use_last_layernorm": True,
    "next_layer_regular": True,
    "use_mtp_layernorm": False,
}
"""Switches of `eagle_config`, and how they are in a network that is run."""

_KNOWN = SHAPE_KEYS | {
    *("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output", "embed_requires_grad"),
    *("eagle_config", _INPUTS),
    *("transformer_layer_config", "speculators_config", "speculators_version"),
    *("speculators_model_type", "sliding_window", "layer_types", "tie_word_embeddings"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Eagle3Config(DrafterShape):
    """The shape of a drafter, named as in its `config.json`.

    target_layer_ids: the target's layers whose outputs it reads; None for the authors' choice.
    norm_before_fc, fc_norm: a norm over what it reads of all of them, or one for each.
    norm_output: whether it goes on from its normed outputs.
    """

    target_layer_ids: tuple[int, ...] | None = None
    tie_word_embeddings: bool = False
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False

    @classmethod
    def from_json(cls, config: Mapping[str, Any], *, name: str) -> Eagle3Config:
        """Read a `config.json`. Raises: BundleError, with `name`, for one that cannot be run."""
        with reading(name):
            nested = config.get("transformer_layer_config") or {}
            config = {"num_hidden_layers": 1, **nested, **config}
            own = config.get("eagle_config") or {}
            odd = [kind for kind in config.get("layer_types") or [] if kind != "full_attention"]
            odd += [key for key in own if key != _INPUTS and own[key] != _USUAL.get(key)]
            if config.get("fc_norm") and config.get("norm_before_fc"):
                odd.append("fc_norm beside norm_before_fc")
            refuse_unknown(config, _KNOWN)
            refuse(odd)
            layers = own.get(_INPUTS) or None
            if (inputs := config.get(_INPUTS)) is not None:
                layers = [layer - 1 for layer in inputs]
            return cls.read({**config, "target_layer_ids": layers})

    def taps(self, layers: int) -> tuple[int, ...]:
        """The layers of so many whose outputs it reads. Raises: IncompatibleError."""
        chosen = self.target_layer_ids or (1, layers // 2 - 1, layers - 4)
        if len({*chosen}) < len(chosen):
            raise IncompatibleError(
                f"the drafter would read layers {', '.join(map(str, chosen))} of a target with "
                f"{layers}, one of them twice; give its own target, or a drafter that names them"
            )
        return chosen


class FirstLayer(TransformerBlock):  # type: ignore[misc]
    """A layer whose attention reads embeddings beside hidden states."""

    def __init__(self, config: Eagle3Config) -> None:
        super().__init__(config)
        width = config.hidden_size
        attention = Attention(replace(config, hidden_size=2 * width))
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
    """The network. Raises: IncompatibleError for a target of another size."""

    def __init__(self, config: Eagle3Config, target: Any) -> None:
        super().__init__(config, config.taps(len(target.layers)), target)
        self.config = config
        if config.norm_before_fc:
            self.input_norm = nn.RMSNorm(self.fc.weight.shape[1], eps=config.rms_norm_eps)
        if config.fc_norm:
            width, eps = config.target_hidden_size, config.rms_norm_eps
            self.fc_norm = [nn.RMSNorm(width, eps=eps) for _ in self._taps]
        others = [TransformerBlock(config) for _ in range(1, config.num_hidden_layers)]
        self.layers = [FirstLayer(config), *others]

    def states(self, watched: Array) -> Array:
        """See `CachedDrafter`."""
        watched = watched.astype(self.norm.weight.dtype)
        if self.config.norm_before_fc:
            watched = self.input_norm(watched)
        if self.config.fc_norm:
            parts = mx.split(watched, len(self.fc_norm), axis=-1)
            normed = [norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)]
            watched = mx.concatenate(normed, axis=-1)
        return self.fc(watched)

    def read(self, ids: Array, states: Array, cache: Sequence[Any], mask: Any) -> Array:
        """See `CachedDrafter`."""
        embedded = self.embedded(ids).astype(states.dtype)
        x = self.layers[0](states[None], embedded[None], mask, cache[0])
        for layer, of_layer in zip(self.layers[1:], cache[1:], strict=True):
            x = layer(x, mask, of_layer)
        return self.output(x[0])

    def output(self, x: Array) -> Array:
        """What it goes on from, f[..., width] of its last layer."""
        return self.norm(x) if self.config.norm_output else x

    def normed(self, outputs: Array) -> Array:
        """What its head reads of outputs f[..., width]."""
        return outputs if self.config.norm_output else self.norm(outputs)

    def logits(self, outputs: Array) -> Array:
        """See `CachedDrafter`; -inf for ids that its head does not know."""
        outputs = self.normed(outputs)
        if "lm_head" in self:
            logits = self.lm_head(outputs)
        elif self.config.tie_word_embeddings and "embed_tokens" in self:
            logits = self.embed_tokens.as_linear(outputs)
        else:
            logits = self._ends.unembed(outputs.astype(self._ends.dtype))
        return self.among_all(logits)


def as_speculators(
    config: Mapping[str, Any], taps: Sequence[int], verifier: Mapping[str, Any], tokens: int
) -> dict[str, Any]:
    """The `config.json` of `speculators` for a drafter with a config of any layout, or with these
    sizes.

    taps: the layers whose outputs it reads. verifier: name and architectures of its target. tokens:
    that it is to guess in a round.
    """
    nested = config.get("transformer_layer_config") or {}
    # Its network is Llama's, whatever `model_type` said. vLLM knows no activation by itself.
    layer = {"hidden_act": "silu", **config, **nested, "model_type": "llama"}
    proposes = {"proposal_type": "greedy", "speculative_tokens": tokens, "verifier_accept_k": 1}
    switches = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
    own = {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "speculators_config": {
            "algorithm": "eagle3",
            "proposal_methods": [proposes],
            "default_proposal_method": "greedy",
            "verifier": dict(verifier),
        },
        "draft_vocab_size": layer["vocab_size"],
        **{switch: bool(config.get(switch)) for switch in switches},
        "target_hidden_size": config.get("target_hidden_size") or layer["hidden_size"],
        _INPUTS: [tap + 1 for tap in taps],
    }
    of_layer = SHAPE_KEYS - own.keys() | {"model_type"}
    kept = {key: value for key, value in layer.items() if key in of_layer}
    return {**own, "transformer_layer_config": kept}


def load_eagle3(folder: Path, target: Any) -> Eagle3Drafter:
    """See `drafter_folder.Load`."""
    config = Eagle3Config.from_json(read_drafter_json(folder), name=str(folder))
    weights = {
        key.replace("midlayer.", "layers.0."): value
        for key, value in read_weights(folder).items()
        if "rotary_emb" not in key
    }
    return Eagle3Drafter(config, target).filled(weights, name=str(folder))
