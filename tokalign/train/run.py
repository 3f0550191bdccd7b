"""A training run from a learner to a folder: steps of AdamW, evaluations, the best weights kept.

A learner is a recurrent drafter (`training.py`) or a draft model (`teaching.py`) with its labels.
The state of an unfinished run lies in the workspace, in a folder that is named after everything the
result depends on. Nothing depends on the clock or on what ran before, so the same options go on
where a run was killed, and end with the same weights.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from math import cos, isfinite, pi
from pathlib import Path
from typing import Any, Generic, Protocol, cast

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
import numpy as np
from mlx.utils import tree_flatten, tree_map, tree_unflatten

from tokalign.build.corpus import Stage, silent
from tokalign.errors import BundleError, UsageError
from tokalign.runtime.rounds import Array
from tokalign.storage import appearing, locked
from tokalign.train.labels import B, Shuffled
from tokalign.train.options import FitOptions

_WARM_UP, _LAST_RATE, _MOST_NORM = 0.03, 0.02, 1.0
"""Shares of the steps in which the learning rate rises, and of its peak at the end; the norm that
gradients are cut to."""


class Learner(Protocol[B]):
    """What a run trains, and on what.

    module: the model whose trainable parameters are trained. positions: how many the batches have.
    identity: everything that the result depends on besides the options, as JSON.
    """

    options: FitOptions
    module: Any
    batches: Shuffled[B]
    positions: int
    identity: Any

    def loss(self, batch: B) -> Array:
        """The loss of a batch, in nats."""
        ...

    def measure(self) -> tuple[float, ...]:
        """The share of held-out positions whose first d guesses are all right, d = 1, 2, …"""
        ...

    def save(self, folder: Path, record: Mapping[str, Any]) -> None:
        """Keep the present weights in a folder. record: of how they were trained, for people."""
        ...

    def publish(self, best: Path, output: Path) -> None:
        """Write what was kept in the folder `best` as the result of the run."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """How good a drafter is in the middle of its training.

    step, steps: how far it is. loss: on the batches since the last evaluation, in nats per id.
    steps_since: how many steps this process has made since then.
    by_depth: the share of positions at which the first d guesses are all right, d = 1, 2, …
    """

    step: int
    steps: int
    steps_since: int
    loss: float
    by_depth: tuple[float, ...]
    is_best: bool

    @property
    def accepted_per_round(self) -> float:
        """Guesses accepted per round, if a chain of this length is verified."""
        return sum(self.by_depth)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """A finished run. parameters: how many were trained. best: guesses accepted per round.
    stopped_early: before the last step.
    """

    parameters: int
    positions: int
    steps: int
    best: float
    stopped_early: bool


def fit(
    learner: Learner[Any],
    output: Path,
    workspace: Path,
    *,
    stage: Stage = silent,
    report: Callable[[Evaluation], None] = lambda _: None,
) -> Trained:
    """Train, and write the best into `output`.

    report: called after every evaluation.
    Raises: as `Learner.save` and `Training.resume`; UsageError where training diverges, and while
        another process does the same run.
    """
    identity = json.dumps([learner.identity, asdict(learner.options)], sort_keys=True)
    folder = workspace / f"run-{sha256(identity.encode()).hexdigest()[:12]}"
    with locked(folder / "training.lock", f"training in {folder}", "wait until it has ended"):
        run = _Run(learner, folder)
        with stage(run.training.steps, "training") as advance:
            advance(run.training.step)
            while not run.is_over:
                evaluation = run.step()
                if evaluation is not None:
                    report(evaluation)
                advance(1)
        run.publish(output)
    return Trained(
        parameters=sum(w.size for _, w in tree_flatten(learner.module.trainable_parameters())),
        positions=learner.positions,
        steps=run.training.step,
        best=run.course.best,
        stopped_early=run.training.step < run.training.steps,
    )


@dataclass(frozen=True, slots=True)
class Course:
    """How the evaluations of a run went.

    best: the most guesses accepted per round so far. since_best: evaluations since then, of those
        in the second half of the steps. In the first one the learning rate is high, and a model
        that was taught before gets worse before it gets better.
    """

    best: float = -1.0
    since_best: int = 0

    def after(self, accepted: float, share: float) -> Course:
        """The course after one more evaluation. share: of the steps that are made."""
        if accepted > self.best:
            return Course(accepted)
        return replace(self, since_best=self.since_best + (share > 1 / 2))

    def is_over(self, patience: int | None) -> bool:
        """Whether so many evaluations have brought nothing better. patience: None for never.

        A run in which no guess has been right yet has not begun to learn, so it goes on.
        """
        return patience is not None and self.best > 0 and self.since_best >= patience


class _RowwiseAdamW(optim.AdamW):  # type: ignore[misc]  # mlx does not tell its type
    """AdamW that leaves the rows of a matrix alone which no gradient reaches, and their moments.

    Adam moves the row of a rare token in an embedding as far as any other, and its moments go on
    moving it in steps that do not have it, so it would be forgotten in a hundred steps.
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


class Training(Generic[B]):
    """A module and its optimizer after `step` of so many `steps`.

    module: its trainable parameters are trained in float32. loss: of a batch, in nats, with the
        weights that the module has then. learning_rate: its peak; it falls along a cosine.
    """

    def __init__(
        self,
        module: Any,
        batches: Shuffled[B],
        loss: Callable[[B], Array],
        *,
        steps: int,
        learning_rate: float = 1e-3,
    ) -> None:
        self._module, self._batches = module, batches
        self.step, self.steps, self._peak = 0, steps, learning_rate
        module.update(tree_map(lambda w: w.astype(mx.float32), module.trainable_parameters()))
        self._gradients = nn.value_and_grad(module, loss)
        self._optimizer = _RowwiseAdamW(learning_rate, betas=[0.9, 0.98], weight_decay=0.01)
        self._optimizer.init(module.trainable_parameters())

    def rate(self, step: int) -> float:
        """The learning rate of a step, the first of which is 0."""
        share = (step + 1) / self.steps
        fall = _LAST_RATE + (1 - _LAST_RATE) * (1 + cos(pi * share)) / 2
        return self._peak * min(fall, share / _WARM_UP)

    def advance(self) -> float:
        """Make the next step; returns its loss."""
        loss, grads = self._gradients(self._batches[self.step])
        mx.eval(loss, grads)  # before the optimizer's arrays are made
        grads, _ = optim.clip_grad_norm(grads, _MOST_NORM)
        self._optimizer.learning_rate = self.rate(self.step)
        self._optimizer.update(self._module, grads)
        mx.eval(self._module.trainable_parameters(), self._optimizer.state)
        self.step += 1
        return float(loss)

    def _arrays(self) -> dict[str, Any]:
        weights, state = self._module.trainable_parameters(), self._optimizer.state
        return dict(cast("Any", tree_flatten({"weights": weights, "optimizer": state})))

    def write(self, path: Path, course: Course) -> None:
        """Write the state of a run. Raises: UsageError or OutputError if it cannot be written."""
        arrays = self._arrays()
        notes = {"step": json.dumps(self.step), "course": json.dumps(asdict(course))}
        notes["sha256"] = _digest(arrays)
        # An open file, not a path: mlx would hide why a write failed.
        with appearing(path, parents=True) as temporary, temporary.open("wb") as file:
            mx.save_safetensors(file, arrays, notes)

    def resume(self, path: Path) -> Course:
        """Go on from the state that was written, if one was.

        Raises: BundleError for a file that is damaged or of another run.
        """
        if not path.is_file():
            return Course()
        try:
            arrays, notes = cast("tuple[Any, Any]", mx.load(str(path), return_metadata=True))
            fresh = self._arrays()
            # In the order of a fresh state, in which the norm of the gradients is summed up.
            found = {name: arrays.pop(name) for name in fresh}
            alike = all(
                (a.shape, a.dtype) == (found[n].shape, found[n].dtype) for n, a in fresh.items()
            )
            if arrays or not alike or _digest(found) != notes["sha256"]:
                raise ValueError("these arrays were not written by this run")
            state: Any = tree_unflatten([*found.items()])
            self._module.update(state["weights"])
            self._optimizer.state = state["optimizer"]
            self.step = json.loads(notes["step"])
            return Course(**json.loads(notes["course"]))
        except Exception as error:  # in a damaged file anything may fail inside mlx
            raise BundleError(
                f"the checkpoint {path} is damaged; remove it, and training starts again"
            ) from error


def _digest(arrays: Mapping[str, Any]) -> str:
    digest = sha256()
    for name, array in arrays.items():
        digest.update(name.encode() + np.array(array).tobytes())
    return digest.hexdigest()


class _Run:
    """A run as far as it has come, in this process or an earlier one.

    folder: where its state lies. Other arguments, errors: see `fit`.
    """

    def __init__(self, learner: Learner[Any], folder: Path) -> None:
        self._learner, self._options, self._folder = learner, learner.options, folder
        self._best, self._checkpoint = folder / "best", folder / "checkpoint.safetensors"
        self.training = Training(
            learner.module,
            learner.batches,
            learner.loss,
            steps=max(1, round(learner.options.epochs * learner.batches.per_epoch)),
            learning_rate=learner.options.learning_rate,
        )
        self.course = self.training.resume(self._checkpoint)
        self._losses: list[float] = []

    @property
    def is_over(self) -> bool:
        """Whether no step is left, or acceptance no longer improves."""
        done = self.training.step >= self.training.steps
        return done or self.course.is_over(self._options.patience)

    def step(self) -> Evaluation | None:
        """Make a step; evaluate the drafter and save the state where that is due.

        Raises: UsageError where the loss is no longer a number.
        """
        self._losses.append(self.training.advance())
        step, steps = self.training.step, self.training.steps
        if not isfinite(self._losses[-1]):
            raise UsageError(
                f"the loss has to be a number, but it is {self._losses[-1]} in step {step}; give a "
                "lower --learning-rate"
            )
        every = max(1, steps // self._options.evaluations)
        if step % every and step < steps:
            return None
        by_depth = self._learner.measure()
        best_before, self.course = self.course.best, self.course.after(sum(by_depth), step / steps)
        evaluation = Evaluation(
            step=step,
            steps=steps,
            steps_since=len(self._losses),
            loss=sum(self._losses) / len(self._losses),
            by_depth=by_depth,
            is_best=self.course.best > best_before,
        )
        if evaluation.is_best:
            record = {
                "step": step,
                "positions": self._learner.positions,
                "options": asdict(self._options),
                "accepted_by_depth": [round(share, 4) for share in by_depth],
            }
            self._learner.save(self._best, record)
        self.training.write(self._checkpoint, self.course)
        self._losses.clear()
        return evaluation

    def publish(self, output: Path) -> None:
        """Write the best into `output`, and forget the run."""
        self._learner.publish(self._best, output)
        self._checkpoint.unlink()  # first: a run cannot go on from it without its best weights
        shutil.rmtree(self._folder, ignore_errors=True)
