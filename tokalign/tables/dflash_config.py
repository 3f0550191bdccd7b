"""Configurations of block drafters in the layouts that are published.

* z-lab: a flat configuration of the layers, `dflash_config` beside it. SpecForge tags it `dspark`.
* DeepSpec, of DSpark alone: all keys at the top, and a block whose first slot guesses, too.
* speculators: the layers' configuration is nested; ids are those of layers whose *inputs* are read.
* Muse Glimmer: all keys at the top, too; a slot sees as many positions as its window before itself.

Source: `dflash` 0.1.0, `speculators` 0.9.0, `mlx-dspark` 0.20.3 and `mlx-vlm` 0.7.10, as they read
these files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any, TypeAlias

from msgspec import Meta

from tokalign.errors import IncompatibleError, shown
from tokalign.tables.drafter_config import (
    SLIDING,
    Count,
    DrafterShape,
    Size,
    refuse,
    refuse_unknown,
)
from tokalign.tables.drafter_formats import MUSE_GLIMMER, DrafterFormat, drafter_format

Config: TypeAlias = Mapping[str, Any]

_OTHER_NETWORKS = (
    *("enable_qwen35_gated_q_proj", "log_snr_conditioning", "attention_sink_bias"),
    *("dflash_query_causal", "attention_k_eq_v"),
    "target_num_hidden_layers",  # TorchSpec's, where num_target_layers is of those that are read
)
"""Keys that, if they are on, make a network that is not run."""

_OTHER_LAYERS = ("qwen3_5", "gemma4_text", "gemma4_unified_text")
"""Types of DSpark drafters whose layers are the target's, with other norms than Qwen3's."""

_LAYOUTS = {"dflash_config", "speculators_model_type"}
"""Keys of the packagings in which DFlash drafters come."""

_OF_DSPARK = {"sample_from_anchor": True, "markov_rank": 256, "enable_confidence_head": True}
"""What a DSpark drafter has unless its configuration says otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DFlashConfig(DrafterShape):
    """The shape of a drafter, named as in its `config.json`. block_size: slots of a pass, the first
    of which has the last committed id. sample_from_anchor: whether that slot guesses, too.
    whole_window: whether all slots see the same window of the context. conv_kernel_size,
    selector_rank, markov_rank: 0 for a network without these parts."""

    is_causal: bool | None = None
    whole_window: bool = False
    block_size: Annotated[int, Meta(ge=2, le=1_000)] = 16
    sample_from_anchor: bool = False
    mask_token_id: Count
    target_layer_ids: Annotated[tuple[int, ...], Meta(min_length=1)]
    final_logit_softcapping: float | None = None
    input_embedding_scale: float = 1.0
    output_multiplier: float = 1.0
    conv_kernel_size: Count = 0
    conv_group_size: Size = 16
    selector_rank: Count = 0
    selector_top_k: Count = 0
    markov_rank: Count = 0
    markov_head_type: str = "vanilla"
    enable_confidence_head: bool = False
    confidence_head_with_markov: bool = True

    @classmethod
    def from_json(cls, config: Config) -> DFlashConfig:
        """Read a `config.json`. Raises: as `reading` expects, for one that cannot be run."""
        is_dspark = drafter_format(config) is DrafterFormat.DSPARK
        kind = config.get("model_type")
        if kind == "laguna" or (is_dspark and kind in _OTHER_LAYERS):
            refuse([f"layers of a {kind}"])
        refuse(key for key in _OTHER_NETWORKS if config.get(key))
        if not config.keys() & _LAYOUTS and not is_dspark and kind != MUSE_GLIMMER:
            refuse(["its settings outside dflash_config"])
        made = cls.read((_OF_DSPARK if is_dspark else {}) | _unpacked(config))
        if made.markov_rank and made.markov_head_type != "vanilla":
            refuse([f"a Markov head of the type {shown(made.markov_head_type)}"])
        if made.conv_kernel_size and made.hidden_size % made.conv_group_size:
            raise ValueError(f"it has convolutions in groups of {made.conv_group_size}")
        if made.selector_rank and (made.markov_rank or made.selector_top_k < 1):
            raise ValueError("its candidate selector is beside a Markov head, or has no ids")
        if (made.selector_rank or made.markov_rank) and made.guesses < 2:
            raise ValueError("it has a head for what follows a guess, and blocks of a single guess")
        return made

    def require_fit(self, *, layers: int, width: int, vocabulary: int) -> None:
        """See `DrafterShape`; also for a target that does not have the id of its mask."""
        DrafterShape.require_fit(self, layers=layers, width=width, vocabulary=vocabulary)
        if self.mask_token_id >= vocabulary:
            raise IncompatibleError(
                f"the drafter's mask is the id {self.mask_token_id}, and this target has "
                f"{vocabulary} ids; give its own"
            )

    @property
    def guesses(self) -> int:
        """How many ids a pass guesses."""
        return self.block_size - (not self.sample_from_anchor)


_FIELDS = {field.name for field in fields(DFlashConfig)} - {"whole_window"}

_CALLED = {
    "causal": "is_causal",
    "shift_label": "sample_from_anchor",
    "swa_window_size": "sliding_window",
    "use_confidence_head": "enable_confidence_head",
}
"""What ModelOpt calls some keys of `dflash_config`."""

_KNOWN = _FIELDS | {
    *("projector_type", "use_swa"),
    # of training, of what the weights show, and how many slots a program uses
    *("attention_mode", "confidence_head_alpha", "block_size_policy", "dflash_initial_block_size"),
    *("draft_window_size", "prefer_requested_block_size", "runtime_block_size"),
    "use_aux_hidden_state",
}
"""Keys of `dflash_config`. One that is not among them may change what the network computes."""

_KNOWN_NESTED = _FIELDS - {"target_layer_ids", "is_causal"} | {
    *("aux_hidden_state_layer_ids", "sliding_window_non_causal", "tie_word_embeddings"),
    *("speculators_config", "speculators_model_type", "speculators_version"),
    *("transformer_layer_config", "max_anchors"),
}
"""Keys at the top of a configuration of `speculators`."""


def _unpacked(config: Config) -> dict[str, Any]:
    """All keys of a configuration side by side, in z-lab's names."""
    if "speculators_model_type" in config:
        return _nested(config)
    if config.get("model_type") == MUSE_GLIMMER:
        types = config.get("layer_types") or [SLIDING] * config["num_hidden_layers"]
        own = {"layer_types": types, "sliding_window": config["sliding_window"] + 1}
        usual = {"vocab_size": 202_048, "rope_theta": 500_000.0}
        given = {key: of for key, of in config.items() if of is not None}
        return {**usual, **given, **own, "is_causal": False}
    said = (config.get("dflash_config") or {}).items()  # DeepSpec has all keys at the top
    own = {_CALLED.get(key, key): of for key, of in said if of is not None}
    if not own.get("sliding_window"):  # no window of its own
        own.pop("sliding_window", None)
    if (projector := own.get("projector_type")) not in (None, "dspark"):
        refuse([f"projector_type {shown(projector)}"])
    refuse(key for key in own.keys() - _KNOWN if own[key])
    flat = {**config, **own}
    if own.get("use_swa") and SLIDING not in (flat.get("layer_types") or []):
        flat["layer_types"] = [SLIDING] * config["num_hidden_layers"]
        flat["is_causal"] = bool(flat.get("is_causal"))
    return flat


def _nested(config: Config) -> dict[str, Any]:
    kind, block = config["speculators_model_type"], config["block_size"]
    refuse_unknown(config, _KNOWN_NESTED)
    own = {key: config[key] for key in _KNOWN_NESTED if config.get(key) is not None}
    methods = (config.get("speculators_config") or {}).get("proposal_methods") or [{}]
    if (guesses := methods[0].get("speculative_tokens")) in (block, block - 1):
        own["sample_from_anchor"] = guesses == block  # some lack it, and others have a wrong one
    sees_all = config.get("sliding_window_non_causal", kind == "dflash2")
    return {
        **config["transformer_layer_config"],
        "sample_from_anchor": False,  # what those that do not say it do
        **own,
        "target_layer_ids": [layer - 1 for layer in config["aux_hidden_state_layer_ids"]],
        "is_causal": False if sees_all else None,
        "whole_window": True,
    }
