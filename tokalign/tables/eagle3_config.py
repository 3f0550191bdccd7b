"""Configurations of EAGLE-3 drafters in the layouts that are published.

SafeAILab and SpecForge name the layers whose *outputs* are read. speculators nests the
configuration of the layer and names the layers that follow; EAGLE 3.1 there is two norms more.
Source: `mlx-vlm` 0.7.10, SpecForge, and `speculators` 0.9.0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokalign.tables.drafter_config import (
    SHAPE_KEYS,
    DrafterShape,
    reading,
    refuse,
    refuse_unknown,
)

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

    norm_before_fc, fc_norm: a norm over what it reads of all of them, or one for each.
    norm_output: whether it goes on from its normed outputs.
    """

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
