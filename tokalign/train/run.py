"""A training run from a learner to a folder: steps of AdamW, evaluations, the best weights kept.

A learner is a drafter (`drafters.py`) or a draft model (`teaching.py`) with its labels.
The state of an unfinished run is in the workspace, in a folder that is named after everything the
result depends on. The same options go on where a run was killed, and end with the same weights.
mlx-lm's trainer keeps no state of the optimizer, so a run could not be resumed with it.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from hashlib import sha256
from math import cos, isfinite, pi
from pathlib import Path
from typing import Any, Protocol, cast

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
import numpy as np
from mlx.utils import tree_flatten, tree_map, tree_unflatten

from tokalign.build.corpus import Stage, silent
from tokalign.errors import BundleError, UsageError
from tokalign.locks import locked
from tokalign.runtime.mlx.weights import write_weights
from tokalign.runtime.rounds import Array
from tokalign.storage import write_file
from tokalign.tables.finding import TRAINING_RECORD
from tokalign.train.labelled_corpus import LabelledCorpus
from tokalign.train.options import FitOptions

_WARM_UP, _LAST_RATE, _MOST_NORM = 0.03, 0.02, 1.0
"""Shares of the steps in which the learning rate rises, and of its peak at the end; the norm that
gradients are cut to."""


class Learner(Protocol):
    """What a run trains, and on what.

    module: the model whose trainable parameters are trained. batches: by their numbers, `per_epoch`
    of them have each position once. positions: how many that are.
    identity: what the result depends on besides labels and options, as JSON. loss: in nats.
    measure: `Evaluation.by_depth` of the present weights. save: writes them as a folder that loads,
    with a record for people.
    """

    options: FitOptions
    labels: LabelledCorpus
    module: Any
    batches: Any
    positions: int
    identity: Any

    def loss(self, batch: Any) -> Array: ...
    def measure(self) -> tuple[float, ...]: ...
    def save(self, folder: Path, record: Mapping[str, Any]) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """How good a drafter is in the middle of its training.

    step, steps: how far it is. loss: on the batches since the last evaluation, in nats per id.
    by_depth: the share of positions at which the first d guesses are all right, d = 1, 2, …
    """

    step: int
    steps: int
    loss: float
    by_depth: tuple[float, ...]
    is_best: bool

    @property
    def accepted_per_round(self) -> float:
        """Guesses accepted per round, if a chain of this length is verified."""
        return sum(self.by_depth)


def fit(
    learner: Learner,
    output: Path,
    workspace: Path,
    *,
    stage: Stage = silent,
    report: Callable[[Evaluation], None] = lambda _: None,
) -> Training:
    """Train, and write the best into `output`; returns the run as it has ended.

    report: called after every evaluation.
    Raises: as `Learner.save` and `Training.resume`; UsageError where training diverges, and while
        another process does the same run.
    """
    options = learner.options
    recipes = [labels.recipe for labels in learner.labels.sets]
    identity = json.dumps([learner.identity, recipes, asdict(options)], sort_keys=True)
    folder = workspace / f"run-{sha256(identity.encode()).hexdigest()[:12]}"
    best, state = folder / "best.safetensors", folder / "state.safetensors"
    with locked(folder / "training.lock", f"training in {folder}"):
        training = Training(learner)
        training.resume(state)
        every = max(1, training.steps // options.evaluations)
        with stage(training.steps, "training", "steps") as advance:
            advance(training.step)
            while not training.is_over:
                training.advance()
                if training.step % every == 0 or training.step == training.steps:
                    evaluation = training.evaluated(learner.measure())
                    if evaluation.is_best:
                        record = json.dumps(_record(learner, evaluation))
                        write_weights(best, training.weights(), {"record": record})
                    training.write(state)
                    report(evaluation)
                advance(1)
        weights, notes = cast("tuple[Any, Any]", mx.load(str(best), return_metadata=True))
        learner.module.update(tree_unflatten([*weights.items()]))
        training.record = json.loads(notes["record"])
        learner.save(output, training.record)
        state.unlink()  # first: a run cannot go on from it without its best weights
        shutil.rmtree(folder, ignore_errors=True)
    return training


def _record(learner: Learner, evaluation: Evaluation) -> dict[str, Any]:
    first, *own = (labels.recipe for labels in learner.labels.sets)
    return {
        "step": evaluation.step,
        "positions": learner.positions,
        "options": asdict(learner.options),
        "labelling": first["labelling"],
        "own_text": own[0]["labelling"] if own else None,
        "corpus": first["corpus"],
        "target": first["target"],
        "accepted_by_depth": [round(share, 4) for share in evaluation.by_depth],
    }


class _RowwiseAdamW(optim.AdamW):  # type: ignore[misc]  # mlx does not tell its type
    """AdamW that leaves alone the rows of a matrix that no gradient reaches, and their moments.

    Moments would go on moving the row of a rare token in steps that do not have it.
    """

    def apply_single(self, gradient: Array, parameter: Array, state: dict[str, Any]) -> Array:
        if gradient.ndim == 2:
            reached = np.array(mx.any(gradient != 0, axis=1))
            if not reached.all():
                rows = mx.array(np.flatnonzero(reached))
                moments = {name: state[name][rows] for name in ("m", "v")}
                parameter[rows] = super().apply_single(gradient[rows], parameter[rows], moments)
                for name, of_rows in moments.items():
                    state[name][rows] = of_rows
                return parameter
        return super().apply_single(gradient, parameter, state)


class Training:
    """A learner's module and its optimizer after `step` of `steps` steps.

    Trainable parameters are trained in float32. steps: by default those of the learner's epochs.
    best: the most guesses accepted per round so far. since_best: evaluations since then, of those
    in the second half of the steps. In the first half the learning rate is high, and a model that
    was taught before gets worse before it gets better.
    record: for people, of the weights that were written.
    """

    def __init__(self, learner: Learner, steps: int | None = None) -> None:
        self._module, self._batches, options = learner.module, learner.batches, learner.options
        self._peak, self._patience = options.learning_rate, options.patience
        self.step = self.since_best = 0
        self.steps = steps or max(1, round(options.epochs * self._batches.per_epoch))
        self.best, self._losses, self.record = -1.0, list[float](), dict[str, Any]()
        weights = self._module.trainable_parameters()
        self._module.update(tree_map(lambda weight: weight.astype(mx.float32), weights))
        self._gradients = nn.value_and_grad(self._module, learner.loss)
        self._optimizer = _RowwiseAdamW(self._peak, betas=[0.9, 0.98], weight_decay=0.01)
        self._optimizer.init(self._module.trainable_parameters())

    @property
    def parameters(self) -> int:
        """How many numbers are trained."""
        return sum(weight.size for weight in self.weights().values())

    @property
    def is_over(self) -> bool:
        """Whether all steps are made, or as many evaluations as patience allows have brought
        nothing better. A run in which no guess has been right yet has not begun to learn."""
        patience = self._patience
        is_stuck = patience is not None and self.best > 0 and self.since_best >= patience
        return self.step == self.steps or is_stuck

    def evaluated(self, by_depth: tuple[float, ...]) -> Evaluation:
        """Take note of how good the present weights are."""
        is_best = sum(by_depth) > self.best
        if is_best:
            self.best, self.since_best = sum(by_depth), 0
        elif self.step > self.steps / 2:
            self.since_best += 1
        loss, self._losses = sum(self._losses) / max(1, len(self._losses)), []
        return Evaluation(
            step=self.step, steps=self.steps, loss=loss, by_depth=by_depth, is_best=is_best
        )

    def rate(self, step: int) -> float:
        """The learning rate of a step, the first of which is 0; it falls along a cosine."""
        share = (step + 1) / self.steps
        fall = _LAST_RATE + (1 - _LAST_RATE) * (1 + cos(pi * share)) / 2
        return self._peak * min(fall, share / _WARM_UP)

    def advance(self) -> float:
        """Make the next step; returns its loss in nats, with the weights before it. Raises:
        UsageError if that is no number."""
        loss, grads = self._gradients(self._batches[self.step])
        mx.eval(loss, grads)  # before the optimizer's arrays are made
        grads, _ = optim.clip_grad_norm(grads, _MOST_NORM)
        self._optimizer.learning_rate = self.rate(self.step)
        self._optimizer.update(self._module, grads)
        mx.eval(self._module.trainable_parameters(), self._optimizer.state)
        self.step += 1
        if not isfinite(loss.item()):
            raise UsageError(
                f"the loss has to be a number, but it is {loss.item()} in step {self.step}; give a "
                "lower --learning-rate"
            )
        self._losses.append(float(loss.item()))
        return self._losses[-1]

    def weights(self) -> dict[str, Array]:
        """Those that are trained, by their names."""
        return dict(cast("Any", tree_flatten(self._module.trainable_parameters())))

    def _arrays(self) -> dict[str, Any]:
        weights, state = self._module.trainable_parameters(), self._optimizer.state
        return dict(cast("Any", tree_flatten({"weights": weights, "optimizer": state})))

    def write(self, path: Path) -> None:
        """Write the state of a run. Raises: UsageError or OutputError if it cannot be written."""
        arrays = self._arrays()
        course = {"step": self.step, "best": self.best, "since_best": self.since_best}
        write_weights(path, arrays, {"course": json.dumps(course), "sha256": _digest(arrays)})

    def resume(self, path: Path) -> None:
        """Go on from the state that was written, if one was. Raises: BundleError if damaged."""
        if not path.is_file():
            return
        try:
            arrays, notes = cast("tuple[Any, Any]", mx.load(str(path), return_metadata=True))
            # In the order of a fresh state, in which the norm of the gradients is summed up.
            saved = {name: arrays[name] for name in self._arrays()}
            if _digest(saved) != notes["sha256"]:
                raise ValueError("these are not the arrays that were written")
            course = json.loads(notes["course"])
            self.step, self.best, self.since_best = (
                course[name] for name in ("step", "best", "since_best")
            )
        except (RuntimeError, ValueError, KeyError) as error:
            raise BundleError(
                f"the checkpoint {path} is damaged; remove it, and training starts again"
            ) from error
        read: Any = tree_unflatten([*saved.items()])
        self._module.update(read["weights"])
        self._optimizer.state = read["optimizer"]


def _digest(arrays: Mapping[str, Any]) -> str:
    digest = sha256()
    for name, array in arrays.items():
        digest.update(name.encode() + np.array(array).tobytes())
    return digest.hexdigest()


def write_record(folder: Path, record: Mapping[str, Any]) -> None:
    """Write for people how a drafter or a draft model was trained. Raises: as `write_file`."""
    told = json.dumps(record, indent=1, ensure_ascii=False)
    write_file(folder / TRAINING_RECORD, told + "\n", parents=True)
