"""A training run from a learner to a folder: steps, evaluations, and the best weights kept.

A learner is a recurrent drafter (`training.py`) or a draft model (`teaching.py`) with its labels.
The state of an unfinished run lies in the workspace, in a folder that is named after everything the
result depends on. So the same options go on where a run was killed, and end with the same weights.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from hashlib import sha256
from math import isfinite
from pathlib import Path
from typing import Any, Protocol

from mlx.utils import tree_flatten

from tokalign.build.corpus import Stage, silent
from tokalign.errors import UsageError
from tokalign.runtime.rounds import Array
from tokalign.storage import locked
from tokalign.train.fit import Recipe, begin, make_step, read_checkpoint, write_checkpoint
from tokalign.train.labels import B, Shuffled
from tokalign.train.options import FitOptions


class Learner(Protocol[B]):
    """What a run trains, and on what."""

    @property
    def options(self) -> FitOptions:
        """How it is trained."""
        ...

    @property
    def module(self) -> Any:
        """The model whose trainable parameters are trained."""
        ...

    @property
    def batches(self) -> Shuffled[B]:
        """What it learns from."""
        ...

    @property
    def positions(self) -> int:
        """How many positions these have."""
        ...

    @property
    def identity(self) -> Any:
        """Everything that the result depends on besides the options, as JSON."""
        ...

    def loss(self, batch: B) -> Array:
        """The loss of a batch, in nats."""
        ...

    def measure(self) -> tuple[float, ...]:
        """The share of held-out positions whose first d guesses are all right, d = 1, 2, …"""
        ...

    def save(self, folder: Path, told: Mapping[str, Any]) -> None:
        """Keep the present weights in a folder. told: how they were trained, for people to read."""
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
    Raises: as `Learner.save` and `read_checkpoint`; UsageError where training diverges, and while
        another process does the same run.
    """
    identity = json.dumps([learner.identity, asdict(learner.options)], sort_keys=True)
    folder = workspace / f"run-{sha256(identity.encode()).hexdigest()[:12]}"
    with locked(folder / "training.lock", f"training in {folder}", "wait until it has ended"):
        run = _Run(learner, folder)
        with stage(run.recipe.steps, "training") as advance:
            advance(run.progress.step)
            while not run.is_over:
                evaluation = run.step()
                if evaluation is not None:
                    report(evaluation)
                advance(1)
        run.publish(output)
    return Trained(
        parameters=run.parameters,
        positions=learner.positions,
        steps=run.progress.step,
        best=run.course.best,
        stopped_early=run.progress.step < run.recipe.steps,
    )


class _Run:
    """A run as far as it has come, in this process or an earlier one.

    progress, course: its state. folder: where it lies. Other arguments, errors: see `fit`.
    """

    def __init__(self, learner: Learner[Any], folder: Path) -> None:
        self._learner, self._options = learner, learner.options
        options = learner.options
        batches = learner.batches
        self.recipe = Recipe(
            steps=max(1, round(options.epochs * batches.per_epoch)),
            learning_rate=options.learning_rate,
        )
        self._folder, self._best = folder, folder / "best"
        self._checkpoint = folder / "checkpoint.safetensors"
        fresh = begin(learner.module, self.recipe)
        self.parameters = sum(weight.size for _, weight in tree_flatten(fresh.weights))
        self.progress, self.course = read_checkpoint(self._checkpoint, fresh)
        self._step = make_step(learner.module, batches, self.recipe, learner.loss)
        self._losses: list[float] = []

    @property
    def is_over(self) -> bool:
        """Whether no step is left, or acceptance no longer improves."""
        done = self.progress.step >= self.recipe.steps
        return done or self.course.is_over(self._options.patience)

    def step(self) -> Evaluation | None:
        """Make a step; evaluate the drafter and save the state where that is due.

        Raises: UsageError where the loss is no longer a number.
        """
        self.progress, loss = self._step(self.progress)
        self._losses.append(float(loss))
        if not isfinite(self._losses[-1]):
            raise UsageError(
                f"the loss has to be a number, but it is {self._losses[-1]} in step "
                f"{self.progress.step}; give a lower --learning-rate"
            )
        every = max(1, self.recipe.steps // self._options.evaluations)
        if self.progress.step % every and self.progress.step < self.recipe.steps:
            return None
        evaluation = self._evaluate()
        if evaluation.is_best:
            self._learner.save(self._best, self._told(evaluation))
        write_checkpoint(self._checkpoint, self.progress, self.course)
        self._losses.clear()
        return evaluation

    def publish(self, output: Path) -> None:
        """Write the best into `output`, and forget the run."""
        self._learner.publish(self._best, output)
        self._checkpoint.unlink()  # first: a run cannot go on from it without its best weights
        shutil.rmtree(self._folder, ignore_errors=True)

    def _evaluate(self) -> Evaluation:
        by_depth = self._learner.measure()
        self.course = self.course.after(sum(by_depth))
        return Evaluation(
            step=self.progress.step,
            steps=self.recipe.steps,
            steps_since=len(self._losses),
            loss=sum(self._losses) / len(self._losses),
            by_depth=by_depth,
            is_best=not self.course.since_best,
        )

    def _told(self, evaluation: Evaluation) -> dict[str, Any]:
        """How the weights were trained, for people who read of them."""
        return {
            "step": evaluation.step,
            "positions": self._learner.positions,
            "options": asdict(self._options),
            "accepted_by_depth": [round(share, 4) for share in evaluation.by_depth],
        }
