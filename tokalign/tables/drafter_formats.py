"""The format of a trained drafter, told from its `config.json` alone.

Source: the configurations that `dflash` 0.1.0, `speculators` 0.9.0, DeepSpec, SpecForge, mlx-lm and
Apple's ReDrafter write.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import Any


class DrafterFormat(StrEnum):
    """What people call a format. MTP: a layer in a checkpoint."""

    REDRAFTER = "ReDrafter"
    DFLASH = "DFlash"
    DFLASH_2 = "DFlash 2"
    DSPARK = "DSpark"
    EAGLE_3 = "EAGLE-3"
    MTP = "MTP"
    GEMMA_4 = "Gemma 4 assistant"


BLOCK_FORMATS = frozenset((DrafterFormat.DFLASH, DrafterFormat.DFLASH_2, DrafterFormat.DSPARK))
"""Formats of drafters that guess a block of ids in one pass."""

GOES_ON_NORMED = {
    **dict.fromkeys(("qwen3_5", "qwen3_5_moe", "qwen3_next"), True),
    **dict.fromkeys(("glm4_moe", "glm4_moe_lite", "deepseek_v3"), False),
}
"""Types of targets that may have an MTP layer; whether it goes on from its normed outputs."""

TARGETS: Mapping[DrafterFormat, Collection[str]] = {
    DrafterFormat.MTP: GOES_ON_NORMED.keys(),
    DrafterFormat.GEMMA_4: ("gemma4", "gemma4_text", "gemma4_unified"),
}
"""Types of targets, for the formats that are made for certain ones."""

MUSE_GLIMMER, RECURRENT = "muse_glimmer_assistant", "recurrent_drafting_drafter"
"""Types of Muse Glimmer's own drafter, a DFlash network, and of recurrent ones, ours and Apple's.
"""

_OF_SPECULATORS = {
    "dflash": DrafterFormat.DFLASH,
    "dflash2": DrafterFormat.DFLASH_2,
    "dspark": DrafterFormat.DSPARK,
    "eagle3": DrafterFormat.EAGLE_3,
    "mtp": DrafterFormat.MTP,
}


def drafter_format(config: Mapping[str, Any]) -> DrafterFormat | None:
    """The format of the drafter with this `config.json`; None for one that is not run. An MTP layer
    may be missing in a checkpoint all the same."""
    if kind := config.get("speculators_model_type"):
        return _OF_SPECULATORS.get(str(kind))
    block = config.get("dflash_config")
    block = block if isinstance(block, Mapping) else {}  # what reads it refuses another one
    network, kind = str(config.get("architectures")), str(config.get("model_type"))
    if "DSpark" in network or block.get("projector_type") == "dspark":
        return DrafterFormat.DSPARK
    if "DFlash" in network or "dflash_config" in config or kind == MUSE_GLIMMER:
        return DrafterFormat.DFLASH_2 if "selector_rank" in block else DrafterFormat.DFLASH
    if ("draft_vocab_size" in config or "Eagle3" in network) and "PEagle" not in network:
        return DrafterFormat.EAGLE_3
    if "backbone_hidden_size" in config:
        return DrafterFormat.GEMMA_4
    if kind == RECURRENT:
        return DrafterFormat.REDRAFTER
    return DrafterFormat.MTP if kind.removesuffix("_mtp") in GOES_ON_NORMED else None
