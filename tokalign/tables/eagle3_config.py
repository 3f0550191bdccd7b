"""Configurations of EAGLE-3 drafters in the layouts that are published.

SafeAILab and SpecForge name the layers whose *outputs* are read, as DeepSpec does, which has all
keys at the top. speculators nests the configuration of the layer and names the layers that follow;
EAGLE 3.1 there is two norms more. ModelOpt names either: its ids are those of layers that follow
where the first is above 1.
Source: `mlx-vlm` 0.7.10, SpecForge, DeepSpec, `speculators` 0.9.0, and what SGLang and vLLM read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tokalign.tables.drafter_config import SHAPE_KEYS, SLIDING, DrafterShape, refuse, refuse_unknown

INPUTS = "eagle_aux_hidden_state_layer_ids"
_USUAL = {
    "use_aux_hidden_state": True,
    "use_input_layernorm_in_first_layer": True,
    "use_last_layernorm": True,
    "next_layer_regular": True,
    "use_mtp_layernorm": False,
    "parallel_draft_step": 1,
    "parallel_draft_heads_num_layers": 1,
}
"""Switches of `eagle_config`, and how they are in a network that is run."""

_KNOWN = SHAPE_KEYS | {
    *("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output", "embed_requires_grad"),
    *("eagle_config", "use_aux_norm", INPUTS),
    # of training, and what the weights show
    *("draft_num_hidden_layers", "inference_type", "num_aux_hidden_states", "step_loss_decay"),
    *("target_model_name_or_path", "ttt_length"),
    *("transformer_layer_config", "speculators_config", "speculators_version"),
    *("speculators_model_type", "tie_word_embeddings"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Eagle3Config(DrafterShape):
    """The shape of a drafter, named as in its `config.json`. norm_before_fc, fc_norm: a norm over
    all that it reads, or one for each layer. norm_output: whether it goes on from its normed
    outputs."""

    tie_word_embeddings: bool = False
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Eagle3Config:
        """Read a `config.json`. Raises: as `reading` expects, for one that cannot be run."""
        nested = config.get("transformer_layer_config") or {}
        config = {"num_hidden_layers": 1, **nested, **config}
        own = dict(config.get("eagle_config") or {})
        config["norm_before_fc"] = own.pop("norm_before_fc", None) or config.get("norm_before_fc")
        config["fc_norm"] = config.get("fc_norm") or config.get("use_aux_norm")  # older, in SGLang
        layers, inputs = config.get("target_layer_ids"), config.get(INPUTS)
        if named := sorted(own.pop(INPUTS, None) or []):  # also out of a set, so in any order
            layers, inputs = named, named if named[0] > 1 else inputs
        odd = [f"{key}: {of}" for key, of in own.items() if of not in (None, _USUAL.get(key))]
        if config.get("fc_norm") and config.get("norm_before_fc"):
            odd.append("fc_norm beside norm_before_fc")
        has_windows = SLIDING in (config.get("layer_types") or [])
        refuse_unknown(config, _KNOWN | ({"use_sliding_window"} if has_windows else set()))
        refuse(odd)
        if inputs is not None:
            layers = [layer - 1 for layer in inputs]
        return cls.read({**config, "target_layer_ids": layers})
