"""Checkpoints of drafters in the layout of Apple's recurrent_drafting, with random weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def write_checkpoint(
    folder: Path,
    *,
    exit_dim: int,
    blocks: int,
    hidden: int = 32,
    vocabulary: int = 96,
    **config: Any,
) -> dict[str, Floats]:
    """A checkpoint with random arrays, under the names that Transformers saves; returns them."""
    random = np.random.default_rng(3)
    shapes: dict[str, tuple[int, ...]] = {
        "rnn_u.weight": (hidden, hidden),
        "rnn_u.bias": (hidden,),
        "rnn_w.weight": (hidden, hidden),
        f"lm_head.{blocks}.weight": (vocabulary, exit_dim),
    }
    for block in range(blocks):
        shapes[f"lm_head.{block}.linear.weight"] = (exit_dim, exit_dim)
        shapes[f"lm_head.{block}.linear.bias"] = (exit_dim,)
    if exit_dim != 2 * hidden:
        shapes["input_proj.weight"] = (exit_dim, 2 * hidden)
        shapes["input_proj.bias"] = (exit_dim,)
    arrays = {name: random.normal(0, 0.3, shape) for name, shape in shapes.items()}
    folder.mkdir()
    mx.save_safetensors(
        str(folder / "model.safetensors"), {n: mx.array(a) for n, a in arrays.items()}
    )
    known = {
        "model_type": "recurrent_drafting_drafter",
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "exit_dim": exit_dim,
        "num_draft_layers": blocks,
        "rnn": True,
    }
    (folder / "config.json").write_text(json.dumps(known | config))
    return arrays
