"""Drafters that were published with the ReDrafter paper, as drafters of this project.

A checkpoint of `recurrent_drafting` is a folder of Transformers: `config.json` and
`model.safetensors`. Its network is section 3.1 of the paper with an output head of its own, and the
names of its arrays say the same things:

| checkpoint | here |
|---|---|
| `rnn_u`, `rnn_w` | the same; the state starts from zero and has the target's width |
| `input_proj` (2H -> E; none if E = 2H) | `entry_h`: its first H columns; `entry_s`: the others |
| `lm_head.0` ... | `blocks.0` ... |
| the last `lm_head` | `head.0`, "full" |

Source: apple/ml-recurrent-drafter, `recurrent_drafting/modeling_drafter.py`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx

from tokalign.errors import BundleError, IncompatibleError, MissingAssetError
from tokalign.json_text import parse_json
from tokalign.runtime.mlx.recurrent_drafter import DrafterConfig, RecurrentDrafter, TargetEnds

MODEL_TYPE = "recurrent_drafting_drafter"


def read_published(folder: Path, target: Any) -> RecurrentDrafter:
    """The drafter of a published checkpoint, for the mlx-lm model that it was trained on.

    Raises: MissingAssetError for a folder without a checkpoint; BundleError for a damaged one, or
    one of another layout; IncompatibleError for a target of another size.
    """
    config, weights = _read(folder)
    try:
        hidden, exit_width = int(config["hidden_size"]), int(config["exit_dim"])
        shape = DrafterConfig(
            hidden_size=hidden,
            vocabulary_size=int(config["vocab_size"]),
            width=hidden,
            exit_width=exit_width,
            blocks=int(config["num_draft_layers"]),
            head="full",
        )
    except (KeyError, TypeError, ValueError) as error:
        raise _damaged(folder, f"its config.json lacks a sound {error}") from error
    if not config.get("rnn"):
        raise BundleError(
            f"the drafter in {folder} has no recurrence (rnn is false), which is not supported; "
            "give a checkpoint that was trained with rnn"
        )
    ends = TargetEnds.of(target)
    if (ends.hidden_size, ends.vocabulary_size) != (hidden, shape.vocabulary_size):
        raise IncompatibleError(
            f"the drafter in {folder} is for a target of hidden size {hidden} and "
            f"{shape.vocabulary_size} ids, not {ends.hidden_size} and {ends.vocabulary_size}; give "
            "the model that it was trained on"
        )
    drafter = RecurrentDrafter(shape, ends)
    try:
        drafter.load_weights(list(_renamed(weights, shape).items()))
    except (KeyError, ValueError) as error:
        raise _damaged(folder, " ".join(str(error).split())) from error
    mx.eval(drafter.parameters())
    drafter.eval()
    return drafter


def _read(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The configuration and the arrays of a checkpoint."""
    config_file, weights_file = folder / "config.json", folder / "model.safetensors"
    for file in (config_file, weights_file):
        if not file.is_file():
            raise MissingAssetError(
                f"there is no {file.name} in {folder}; give the folder of a recurrent_drafting "
                "checkpoint in safetensors"
            )
    try:
        config = parse_json(config_file.read_bytes())
        weights = mx.load(str(weights_file))
    except (ValueError, RuntimeError) as error:
        raise _damaged(folder, " ".join(str(error).split())) from error
    if not isinstance(config, dict) or config.get("model_type") != MODEL_TYPE:
        raise BundleError(
            f"{folder} holds no {MODEL_TYPE} by its config.json; give the folder of a "
            "recurrent_drafting checkpoint"
        )
    assert isinstance(weights, dict)
    return config, weights


def _renamed(weights: dict[str, Any], shape: DrafterConfig) -> dict[str, Any]:
    """The arrays under their names here. Raises: KeyError for one that is missing."""
    left = dict(weights)
    hidden, renamed = shape.hidden_size, {}
    for name in ("rnn_u.weight", "rnn_u.bias", "rnn_w.weight"):
        renamed[name] = left.pop(name)
    if not shape.concatenates:
        entry = left.pop("input_proj.weight")
        renamed["entry_h.weight"] = entry[:, :hidden]
        renamed["entry_s.weight"] = entry[:, hidden:]
        renamed["entry_h.bias"] = left.pop("input_proj.bias")
    for block in range(shape.blocks):
        for part in ("weight", "bias"):
            renamed[f"blocks.{block}.linear.{part}"] = left.pop(f"lm_head.{block}.linear.{part}")
    renamed["head.0.weight"] = left.pop(f"lm_head.{shape.blocks}.weight")
    if left:
        raise ValueError(f"arrays that its layout does not have: {', '.join(sorted(left))}")
    return renamed


def _damaged(folder: Path, reason: str) -> BundleError:
    return BundleError(f"the checkpoint in {folder} is damaged: {reason}; fetch it again")
