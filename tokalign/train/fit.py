"""The training loop: steps of AdamW on batches of labelled positions, and its state on disk.

The state of a run is a value: a step takes one and gives the next. Nothing depends on the clock or
on what ran before, so a run that goes on from a saved state ends with the same weights.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, cast

import mlx.core as mx
import mlx.optimizers as optim
import numpy as np
from mlx.utils import tree_flatten, tree_map, tree_unflatten

from tokalign.errors import BundleError
from tokalign.runtime.mlx.recurrent_drafter import RecurrentDrafter
from tokalign.runtime.rounds import Array
from tokalign.storage import appearing
from tokalign.train.labels import B, Batch, Shuffled

_WARM_UP, _LAST_RATE, _MOST_NORM = 0.03, 0.02, 1.0
"""Shares of the steps in which the learning rate rises, and of its peak at the end; the norm that
gradients are cut to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How a drafter is trained.

    steps: optimizer steps. learning_rate: its peak; it falls along a cosine.
    """

    steps: int
    learning_rate: float = 1e-3

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


def begin(module: Any, recipe: Recipe) -> TrainingState:
    """The state before the first step."""
    weights = tree_map(lambda w: w.astype(mx.float32), module.trainable_parameters())
    optimizer = _optimizer(recipe)
    optimizer.init(weights)
    return TrainingState(0, weights, optimizer.state)


def make_step(
    module: Any, batches: Shuffled[B], recipe: Recipe, loss_of: Callable[[B], Array]
) -> Callable[[TrainingState], tuple[TrainingState, Array]]:
    """A function that makes the next step; it returns the state after it, and its loss, in nats.

    loss_of: the loss of a batch with the weights that the module has then. The module is left with
    the weights of the latest step.
    """

    def loss_with(weights: Any, batch: B) -> Array:
        module.update(weights)
        return loss_of(batch)

    gradients = mx.value_and_grad(loss_with)
    optimizer = _optimizer(recipe)

    def step(before: TrainingState) -> tuple[TrainingState, Array]:
        loss, grads = gradients(before.weights, batches[before.step])
        mx.eval(loss, grads)  # before the optimizer's arrays are made
        grads, _ = optim.clip_grad_norm(grads, _MOST_NORM)
        optimizer.state = before.optimizer
        optimizer.learning_rate = recipe.rate(before.step)
        weights = optimizer.apply_gradients(grads, before.weights)
        mx.eval(weights, optimizer.state, loss)
        module.update(weights)
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
    return optim.AdamW(recipe.learning_rate, betas=[0.9, 0.98], weight_decay=0.01)


@dataclass(frozen=True, slots=True)
class Course:
    """How the evaluations of a run went.

    best: the most guesses accepted per round so far. since_best: evaluations since then.
    """

    best: float = -1.0
    since_best: int = 0

    def after(self, accepted: float) -> Course:
        """The course after one more evaluation."""
        if accepted > self.best:
            return Course(accepted, 0)
        return replace(self, since_best=self.since_best + 1)

    def is_over(self, patience: int | None) -> bool:
        """Whether so many evaluations have brought nothing better. patience: None for never.

        A run in which no guess has been right yet has not begun to learn, so it goes on.
        """
        return patience is not None and self.best > 0 and self.since_best >= patience


def write_checkpoint(path: Path, progress: TrainingState, course: Course) -> None:
    """Write the state of a run. Raises: UsageError or OutputError if it cannot be written."""
    arrays = dict(_flat(progress))
    told = {
        "step": json.dumps(progress.step),
        "course": json.dumps(asdict(course)),
        "sha256": _digest(progress),
    }
    # An open file, not a path: mlx would hide why a write failed.
    with appearing(path, parents=True) as temporary, temporary.open("wb") as file:
        mx.save_safetensors(file, arrays, told)


def read_checkpoint(path: Path, fresh: TrainingState) -> tuple[TrainingState, Course]:
    """The state that was written; `fresh` if nothing was.

    Raises: BundleError for a file that is damaged or of another run.
    """
    if not path.is_file():
        return fresh, Course()
    try:
        arrays, told = cast("tuple[Any, Any]", mx.load(str(path), return_metadata=True))
        # In the order of a fresh state, in which the norm of the gradients is summed up.
        state: Any = tree_unflatten([(name, arrays.pop(name)) for name, _ in _flat(fresh)])
        progress = TrainingState(json.loads(told["step"]), state["weights"], state["optimizer"])
        course = Course(**json.loads(told["course"]))
        mx.eval(progress.weights, progress.optimizer)
        sound = not arrays and _shapes(progress) == _shapes(fresh)
        sound = sound and _digest(progress) == told["sha256"]
    except Exception as error:  # in a damaged file anything may fail inside mlx
        raise _damaged(path) from error
    if not sound:
        raise _damaged(path)
    return progress, course


def _flat(progress: TrainingState) -> list[tuple[str, Any]]:
    state = {"weights": progress.weights, "optimizer": progress.optimizer}
    return cast("list[tuple[str, Any]]", tree_flatten(state))


def _shapes(progress: TrainingState) -> list[tuple[Any, Any]]:
    return [(array.shape, array.dtype) for _, array in _flat(progress)]


def _digest(progress: TrainingState) -> str:
    digest = sha256()
    for name, array in _flat(progress):
        digest.update(name.encode() + np.array(array).tobytes())
    return digest.hexdigest()


def _damaged(path: Path) -> BundleError:
    return BundleError(f"the checkpoint {path} is damaged; remove it, and training starts again")
