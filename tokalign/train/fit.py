"""The training loop: steps of AdamW on batches of labelled positions.

The state of a run is a value: a step takes one and gives the next. Nothing depends on the clock or
on what ran before, so a run that goes on from a saved state ends with the same weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.optimizers as optim
from mlx.utils import tree_map

from tokalign.runtime.mlx.recurrent_drafter import RecurrentDrafter
from tokalign.runtime.proposal import Array
from tokalign.train.batches import Batch, Batches
from tokalign.train.options import Format

_WARM_UP, _LAST_RATE, _MOST_NORM = 0.03, 0.02, 1.0
"""Shares of the steps in which the learning rate rises, and of its peak at the end; the norm that
gradients are cut to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How a drafter is trained.

    steps: optimizer steps. accumulate: batches whose gradients are averaged for one step.
    learning_rate: its peak; it falls along a cosine. weight_decay: AdamW's.
    dtype: what forward and backward passes compute in; weights are kept in float32.
    """

    steps: int
    accumulate: int = 1
    learning_rate: float = 1e-3
    weight_decay: float = 0.01
    dtype: Format = "float32"

    def rate(self, step: int) -> float:
        """The learning rate of a step, the first of which is 0."""
        share = (step + 1) / self.steps
        fall = _LAST_RATE + (1 - _LAST_RATE) * (1 + math.cos(math.pi * share)) / 2
        return self.learning_rate * min(fall, share / _WARM_UP)


@dataclass(frozen=True, slots=True)
class TrainingState:
    """A run after `step` steps: the weights in float32, and the state of the optimizer."""

    step: int
    weights: Any
    optimizer: Any


def begin(drafter: RecurrentDrafter, recipe: Recipe) -> TrainingState:
    """The state before the first step."""
    weights = tree_map(lambda w: w.astype(mx.float32), drafter.parameters())
    optimizer = _optimizer(recipe)
    optimizer.init(weights)
    return TrainingState(0, weights, optimizer.state)


def make_step(
    drafter: RecurrentDrafter, batches: Batches, recipe: Recipe
) -> Callable[[TrainingState], tuple[TrainingState, Array]]:
    """A function that makes the next step; it returns the state after it, and its loss, in nats.

    The drafter is left with the weights of the latest step, in `recipe.dtype`.
    """
    dtype = getattr(mx, recipe.dtype)
    gradients = mx.value_and_grad(
        lambda weights, batch: loss_of(_set(drafter, weights, dtype), batch)
    )
    optimizer = _optimizer(recipe)

    def step(before: TrainingState) -> tuple[TrainingState, Array]:
        loss, sums = mx.array(0.0), None
        for number in range(before.step * recipe.accumulate, (before.step + 1) * recipe.accumulate):
            part, grads = gradients(before.weights, batches[number])
            loss += part / recipe.accumulate
            sums = grads if sums is None else tree_map(mx.add, sums, grads)
            mx.eval(loss, sums)
        grads = tree_map(lambda g: g / recipe.accumulate, sums)
        grads, _ = optim.clip_grad_norm(grads, _MOST_NORM)
        optimizer.state = before.optimizer
        optimizer.learning_rate = recipe.rate(before.step)
        weights = optimizer.apply_gradients(grads, before.weights)
        mx.eval(weights, optimizer.state, loss)
        _set(drafter, weights, dtype)
        return TrainingState(before.step + 1, weights, optimizer.state), loss

    return step


def loss_of(drafter: RecurrentDrafter, batch: Batch) -> Array:
    """The mean cross-entropy of what follows, over all positions and depths, in nats.

    The drafter reads the ids that are right (teacher forcing), because only guesses after right
    ones are ever accepted.
    """
    state, exits = drafter.initial_state(mx.array(batch.hidden)), []
    for depth in range(batch.read.shape[1]):
        recurrent, exit_ = drafter.advance(state, mx.array(batch.read[:, depth]))
        state = state._replace(recurrent=recurrent)
        exits.append(exit_)
    everything = len(batch.candidates) == drafter.config.vocabulary_size
    rows = mx.stack(exits, axis=1)
    logits = (
        drafter.logits(rows)
        if everything
        else drafter.logits_among(rows, mx.array(batch.candidates))
    ).astype(mx.float32)
    right = mx.take_along_axis(logits, mx.array(batch.correct)[..., None], axis=-1)[..., 0]
    return (mx.logsumexp(logits + mx.array(batch.log_weights), axis=-1) - right).mean()


def _optimizer(recipe: Recipe) -> Any:
    return optim.AdamW(recipe.learning_rate, betas=[0.9, 0.98], weight_decay=recipe.weight_decay)


def _set(drafter: RecurrentDrafter, weights: Any, dtype: Any) -> RecurrentDrafter:
    drafter.update(tree_map(lambda w: w.astype(dtype), weights))
    return drafter
