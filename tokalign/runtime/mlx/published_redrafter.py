"""Recurrent drafters as published with the ReDrafter paper: their weights by the names used here.

The network is that of section 3.1 with a head of its own; the state is as wide as the target's.

| checkpoint | here |
|---|---|
| `rnn_u`, `rnn_w` | the same |
| `input_proj` (2H -> E; none if E = 2H) | `entry_h`: its first H columns; `entry_s`: the others |
| `lm_head.0` ... | `blocks.0` ... |
| the last `lm_head` | `head.0` |

Source: apple/ml-recurrent-drafter, `recurrent_drafting/modeling_drafter.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import convert

from tokalign.runtime.mlx.published_drafter import Weights, fill, from_folder
from tokalign.runtime.mlx.recurrent_drafter import DrafterConfig, RecurrentDrafter, TargetEnds
from tokalign.runtime.rounds import Array
from tokalign.tables.drafter_config import StateShape


@from_folder
def load_redrafter(config: Mapping[str, Any], weights: Weights, target: Any) -> RecurrentDrafter:
    """See `from_folder`."""
    StateShape.from_json(config)
    sizes = {
        "hidden_size": config["hidden_size"],
        "vocabulary_size": config["vocab_size"],
        "width": config["hidden_size"],
        "exit_width": config["exit_dim"],
        "blocks": config["num_draft_layers"],
        "head": "full",
    }
    shape = convert(sizes, DrafterConfig)
    drafter = RecurrentDrafter(shape, TargetEnds.of(target))
    fill(drafter, _renamed(weights, shape))
    return drafter


def _renamed(weights: Weights, shape: DrafterConfig) -> dict[str, Array]:
    renamed = {}
    for name, weight in weights.items():
        _, _, rest = name.partition(".")
        if name == "input_proj.weight":
            renamed["entry_h.weight"] = weight[:, : shape.hidden_size]
            renamed["entry_s.weight"] = weight[:, shape.hidden_size :]
        elif name == "input_proj.bias":
            renamed["entry_h.bias"] = weight
        elif name == f"lm_head.{shape.blocks}.weight":
            renamed["head.0.weight"] = weight
        else:
            renamed[f"blocks.{rest}" if name.startswith("lm_head.") else name] = weight
    return renamed
