"""Tiny recurrent drafters, random or taught a text in a second, for tests of drafting with them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
from mlx.utils import tree_flatten, tree_map

from tokalign.runtime.mlx.drafter_folder import target_fingerprints
from tokalign.runtime.mlx.hidden_states import HiddenStates
from tokalign.runtime.mlx.recurrent_drafter import DrafterConfig, RecurrentDrafter
from tokalign.runtime.mlx.trained_drafter import TargetEnds
from tokalign.runtime.mlx.weights import write_weights


def random_drafter(model: Any, seed: int = 1, **shape: Any) -> RecurrentDrafter:
    """A drafter of two residual blocks whose most probable next id depends on what it read.

    shape: fields of `DrafterConfig` that are to be others.
    """
    ends = TargetEnds.of(model)
    sizes = {"width": 24, "exit_width": 16, **shape}
    config = DrafterConfig(
        hidden_size=ends.hidden_size, vocabulary_size=ends.vocabulary_size, **sizes
    )
    mx.random.seed(seed)
    drafter = RecurrentDrafter(config, ends)
    drafter.update(tree_map(_random, drafter.parameters()))
    mx.eval(drafter.parameters())
    return drafter


def taught_drafter(
    model: Any, text: Sequence[int], *, ahead: int = 3, steps: int = 120
) -> RecurrentDrafter:
    """A drafter that has learned which `ahead` ids follow every place of one text."""
    drafter, states = random_drafter(model), HiddenStates(model)
    states.model(mx.array([list(text)]))
    places = len(text) - ahead - 1
    hidden = states.take()[:places]
    ids = mx.array([list(text[i + 1 : i + 2 + ahead]) for i in range(places)])

    def loss(drafter: RecurrentDrafter) -> mx.array:
        state, total = drafter.initial_state(hidden), mx.array(0.0)
        for depth in range(ahead):
            state, logits = drafter.step(state, ids[:, depth])
            total += nn.losses.cross_entropy(logits, ids[:, depth + 1], reduction="mean")
        return total

    optimizer = optim.Adam(learning_rate=0.01)
    step = nn.value_and_grad(drafter, loss)
    for _ in range(steps):
        _, gradients = step(drafter)
        optimizer.update(drafter, gradients)
        mx.eval(drafter.parameters(), optimizer.state)
    return drafter


def write_drafter(folder: Path, drafter: RecurrentDrafter, target: Any) -> Path:
    """Write a folder as training does, for a loaded target."""
    write_weights(folder / "model.safetensors", dict(tree_flatten(drafter.parameters())))
    record = {"target": target_fingerprints(target)}
    (folder / "training.json").write_text(json.dumps(record))
    (folder / "config.json").write_text(json.dumps(drafter.config.json))
    return folder


def _random(weight: mx.array) -> mx.array:
    drawn = mx.random.normal(weight.shape) * 1.5 / weight.shape[-1] ** 0.5
    return drawn.astype(weight.dtype)
