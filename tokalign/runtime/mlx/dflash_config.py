"""Configurations of block drafters in the layouts that are published.

* z-lab: a flat configuration of the layers, `dflash_config` beside it. SpecForge tags it `dspark`.
* DeepSpec, of DSpark alone: all keys at the top, and a block whose first slot guesses, too.
* speculators: the layers' configuration is nested; ids are those of layers whose *inputs* are read.

Source: `dflash` 0.1.0, `speculators` 0.9.0 and `mlx-dspark` 0.20.3, as they read these files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from tokalign.errors import BundleError, shown
from tokalign.runtime.mlx.published_drafter import ShapeBesideTarget, layer_fields, reading_config

Config: TypeAlias = Mapping[str, Any]

FULL, SLIDING = "full_attention", "sliding_attention"

_CHAIN = {
    *("block_size", "mask_token_id", "target_layer_ids", "final_logit_softcapping"),
    *("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k"),
    *("markov_rank", "markov_head_type", "enable_confidence_head", "confidence_head_with_markov"),
}
_KNOWN = _CHAIN | {
    *("input_embedding_scale", "output_multiplier", "projector_type", "num_target_layers"),
}
"""Keys of `dflash_config`. One that is not among them may change what the network computes."""

_KNOWN_NESTED = _CHAIN - {"target_layer_ids"} | {
    *("aux_hidden_state_layer_ids", "draft_vocab_size", "target_hidden_size", "sample_from_anchor"),
    *("sliding_window_non_causal", "transformer_layer_config", "architectures", "auto_map"),
    *("speculators_config", "speculators_model_type", "speculators_version", "dtype"),
    *("tie_word_embeddings", "transformers_version", "torch_dtype", "model_type", "quantization"),
    *("has_no_defaults_at_init",),
}
"""Keys at the top of a configuration of `speculators`."""

_OTHER_NETWORKS = (
    *("enable_qwen35_gated_q_proj", "log_snr_conditioning", "attention_sink_bias"),
    *("dflash_query_causal", "num_experts", "attention_k_eq_v"),
)
"""Keys that, if they are on, make a network that is not run."""

_KINDS = ("dflash", "dflash2", "dspark")


@dataclass(frozen=True, slots=True, kw_only=True)
class DFlashConfig(ShapeBesideTarget):
    """The shape of a drafter, named as in its `config.json`.

    target_layer_ids: the target's layers whose outputs it reads. block_size: slots of a pass, the
    first of which has the last committed id. sample_from_anchor: whether that slot guesses, too.
    whole_window: whether all slots see the same window of the context.
    conv_kernel_size, selector_rank, markov_rank: 0 for a network without these parts.
    """

    layer_types: tuple[str, ...]
    sliding_window: int | None
    is_causal: bool | None
    whole_window: bool
    block_size: int
    sample_from_anchor: bool
    mask_token_id: int
    target_layer_ids: tuple[int, ...]
    final_logit_softcapping: float | None
    input_embedding_scale: float
    output_multiplier: float
    conv_kernel_size: int
    conv_group_size: int
    selector_rank: int
    selector_top_k: int
    markov_rank: int
    markov_head_type: str
    enable_confidence_head: bool
    confidence_head_with_markov: bool

    @classmethod
    def from_json(cls, config: Config, *, name: str) -> DFlashConfig:
        """Read a `config.json`. Raises: BundleError, with `name`, for one that cannot be run."""
        with reading_config(name):
            layers, own = _unpacked(config, name)
            count, window = int(layers.get("num_hidden_layers", 0)), layers.get("sliding_window")
            dspark, selects = _is_dspark(config), int(own.get("selector_rank") or 0)
            made = cls(
                **layer_fields(layers, name=name),
                layer_types=tuple(layers.get("layer_types") or [FULL] * count),
                sliding_window=window,
                is_causal=own.get("is_causal"),
                whole_window="speculators_model_type" in config,
                block_size=int(own.get("block_size", 16)),
                sample_from_anchor=bool(own.get("sample_from_anchor", dspark)),
                mask_token_id=int(own["mask_token_id"]),
                target_layer_ids=tuple(map(int, own["target_layer_ids"])),
                target_hidden_size=int(own.get("target_hidden_size") or layers["hidden_size"]),
                num_target_layers=own.get("num_target_layers"),
                draft_vocab_size=int(own.get("draft_vocab_size") or layers["vocab_size"]),
                final_logit_softcapping=own.get("final_logit_softcapping"),
                input_embedding_scale=float(own.get("input_embedding_scale", 1.0)),
                output_multiplier=float(own.get("output_multiplier", 1.0)),
                conv_kernel_size=int(own.get("conv_kernel_size") or 0),
                conv_group_size=int(own.get("conv_group_size") or 16),
                selector_rank=selects,
                selector_top_k=int(own["selector_top_k"]) if selects else 0,
                markov_rank=int(own.get("markov_rank", 256 if dspark else 0)),
                markov_head_type=str(own.get("markov_head_type", "vanilla")),
                enable_confidence_head=bool(own.get("enable_confidence_head", dspark)),
                confidence_head_with_markov=bool(own.get("confidence_head_with_markov", True)),
            )
        _require_runnable(made, count, name)
        return made

    @property
    def guesses(self) -> int:
        """How many ids a pass guesses."""
        return self.block_size - (not self.sample_from_anchor)


def is_block_drafter(config: Config) -> bool:
    """Whether a `config.json` is that of a block drafter, in any layout."""
    kind = config.get("speculators_model_type")
    return kind in _KINDS if kind else "dflash_config" in config or _is_dspark(config)


def _is_dspark(config: Config) -> bool:
    tagged = (config.get("dflash_config") or {}).get("projector_type")
    named = "DSpark" in " ".join(config.get("architectures") or ())
    return "dspark" in (config.get("speculators_model_type"), tagged) or named


def _unpacked(config: Config, name: str) -> tuple[Config, dict[str, Any]]:
    """The configuration of the layers, and what else there is, in z-lab's names."""
    odd = [key for key in _OTHER_NETWORKS if config.get(key)]
    if config.get("rope_is_neox_style") is False:
        odd.append("rope_is_neox_style: false")
    if odd:
        raise BundleError(
            f"{name} has {', '.join(odd)}, which this version does not run; use another drafter"
        )
    if "speculators_model_type" in config:
        return _nested(config, name)
    own = config.get("dflash_config")
    if own is None:  # DeepSpec
        return config, dict(config)
    if not isinstance(own, dict):
        raise BundleError(f"{name} is no DFlash drafter: its dflash_config is no object")
    unknown = sorted(own.keys() - _KNOWN)
    if (projector := own.get("projector_type")) not in (None, "dspark"):
        unknown.append(f"projector_type {shown(projector)}")
    if unknown:
        raise BundleError(
            f"{name}: dflash_config has {', '.join(unknown)}, which this version does not run; "
            "use another drafter"
        )
    return config, {**config, **own}


def _nested(config: Config, name: str) -> tuple[Config, dict[str, Any]]:
    kind, layers = config["speculators_model_type"], config["transformer_layer_config"]
    if kind not in _KINDS:
        raise BundleError(f"{name}: drafters of the kind {shown(kind)} are not run")
    if unknown := sorted(key for key in config.keys() - _KNOWN_NESTED if config[key]):
        raise BundleError(
            f"{name} has {', '.join(unknown)}, which this version does not run; use another drafter"
        )
    own = {key: config[key] for key in config if key not in ("transformer_layer_config", "dtype")}
    own["target_layer_ids"] = [int(layer) - 1 for layer in config["aux_hidden_state_layer_ids"]]
    methods = (config.get("speculators_config") or {}).get("proposal_methods") or [{}]
    guesses, block = methods[0].get("speculative_tokens"), config["block_size"]
    if guesses in (block, block - 1):  # some have no `sample_from_anchor`, and others a wrong one
        own["sample_from_anchor"] = guesses == block
    if config.get("sliding_window_non_causal", kind == "dflash2"):
        own["is_causal"] = False
    return {"quantization": config.get("quantization"), **layers}, own


def _require_runnable(made: DFlashConfig, layers: int, name: str) -> None:
    """Raises: BundleError, with `name`, for a network that cannot be run."""
    types = made.layer_types
    if len(types) != layers or not set(types) <= {FULL, SLIDING} or not layers:
        raise BundleError(f"{name}: {layers} layers with types {types} cannot be run")
    if SLIDING in types and not made.sliding_window:
        raise BundleError(f"{name}: layers with a sliding window, and no sliding_window")
    if made.guesses < 1 or made.block_size < 2 or not made.target_layer_ids:
        raise BundleError(f"{name}: a block of {made.block_size} ids cannot be drafted")
    if made.markov_rank and made.markov_head_type != "vanilla":
        raise BundleError(
            f"{name}: a Markov head of the type {shown(made.markov_head_type)} is not run; use a "
            "drafter with a vanilla one"
        )
    if made.conv_kernel_size and made.hidden_size % made.conv_group_size:
        raise BundleError(f"{name}: convolutions in groups of {made.conv_group_size} cannot be run")
    if made.selector_rank and made.markov_rank:
        raise BundleError(f"{name}: a candidate selector beside a Markov head cannot be run")
