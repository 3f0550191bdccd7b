"""A training run from labels to a drafter folder: steps, evaluations, and the best drafter kept.

The state of an unfinished run lies in the workspace, in a folder that is named after everything the
result depends on. So the same options go on where a run was killed, and end with the same weights.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from hashlib import sha256
from math import isfinite
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from tokalign.atomic_file import locked
from tokalign.build.corpus import Stage, silent
from tokalign.errors import UsageError
from tokalign.runtime.decoder import LanguageModel
from tokalign.runtime.mlx.drafter_folder import load_drafter, save_drafter, target_fingerprints
from tokalign.runtime.mlx.recurrent_drafter import DrafterConfig, RecurrentDrafter, TargetEnds
from tokalign.tables.drafter_files import read_drafter_config
from tokalign.tokenizer.vocabulary import TargetId
from tokalign.train.fit import Recipe, begin, make_step, read_checkpoint, write_checkpoint
from tokalign.train.labelled_corpus import LabelledCorpus
from tokalign.train.labels import Batches, Labels
from tokalign.train.options import FitOptions

_ROWS = 256


def measure_acceptance(drafter: RecurrentDrafter, labels: Labels) -> tuple[float, ...]:
    """The share of positions at which the first d most probable guesses are all right, d = 1, 2, …

    labels: what the target says follows.
    """
    counts, depth = accepted_counts(drafter, labels), labels.ids.shape[1] - 1
    return tuple(float((counts >= d).mean()) for d in range(1, depth + 1))


def accepted_counts(drafter: RecurrentDrafter, labels: Labels) -> NDArray[np.intp]:
    """For each position how many leading guesses of a chain are right, i[n]."""
    counts = []
    for first in range(0, len(labels.ids), _ROWS):
        ids = np.asarray(labels.ids[first : first + _ROWS])
        right = np.stack(_right(drafter, labels.hidden[first : first + _ROWS], ids), axis=1)
        counts.append(np.logical_and.accumulate(right, axis=1).sum(axis=1))
    return np.concatenate(counts)


def _right(
    drafter: RecurrentDrafter, hidden: NDArray[np.float16], ids: NDArray[np.int32]
) -> list[NDArray[np.bool_]]:
    """Whether the guess of each depth is right, bool[n] each, after guesses that are all right."""
    state, right = drafter.initial_state(mx.array(np.asarray(hidden))), []
    for depth in range(ids.shape[1] - 1):
        state, logits = drafter.step(state, mx.array(ids[:, depth]))
        right.append(np.array(mx.argmax(logits, axis=-1)) == ids[:, depth + 1])
    return right


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
    """A finished run. best: guesses accepted per round. stopped_early: before the last step."""

    config: DrafterConfig
    positions: int
    steps: int
    best: float
    stopped_early: bool


def fit_drafter(
    target: LanguageModel[TargetId],
    config: DrafterConfig,
    labels: LabelledCorpus,
    output: Path,
    workspace: Path,
    options: FitOptions,
    *,
    stage: Stage = silent,
    report: Callable[[Evaluation], None] = lambda _: None,
) -> Trained:
    """Train a drafter on labels and write the best one into `output`, in float16.

    report: called after every evaluation.
    Raises: as `Batches`, `save_drafter` and `read_checkpoint`; UsageError where training diverges,
        and while another process does the same run.
    """
    identity = json.dumps([config.to_json(), asdict(options), labels.recipe], sort_keys=True)
    folder = workspace / f"run-{sha256(identity.encode()).hexdigest()[:12]}"
    with locked(folder / "training.lock", f"training in {folder}", "wait until it has ended"):
        run = _Run(target, config, labels, folder, options)
        with stage(run.recipe.steps, "training") as advance:
            advance(run.progress.step)
            while not run.is_over:
                evaluation = run.step()
                if evaluation is not None:
                    report(evaluation)
                advance(1)
        run.publish(output)
    return Trained(
        config=config,
        positions=len(labels.training.ids),
        steps=run.progress.step,
        best=run.course.best,
        stopped_early=run.progress.step < run.recipe.steps,
    )


class _Run:
    """A run as far as it has come, in this process or an earlier one.

    progress, course: its state. folder: where it lies. Other arguments, errors: see `fit_drafter`.
    """

    def __init__(
        self,
        target: LanguageModel[TargetId],
        config: DrafterConfig,
        labels: LabelledCorpus,
        folder: Path,
        options: FitOptions,
    ) -> None:
        self._target, self._labels, self._options = target, labels, options
        self._fingerprints = target_fingerprints(target)
        batches = Batches(
            labels.training,
            size=options.batch,
            vocabulary_size=config.vocabulary_size,
            candidates=options.candidates,
            seed=options.seed,
        )
        self.recipe = Recipe(
            steps=max(1, round(options.epochs * batches.per_epoch / options.accumulate)),
            accumulate=options.accumulate,
            learning_rate=options.learning_rate,
            dtype=options.dtype,
        )
        mx.random.seed(options.seed)
        self._drafter = RecurrentDrafter(config, TargetEnds.of(target.model))
        self._folder, self._best = folder, folder / "best"
        self._checkpoint = folder / "checkpoint.safetensors"
        fresh = begin(self._drafter, self.recipe)
        self.progress, self.course = read_checkpoint(self._checkpoint, fresh)
        self._step = make_step(self._drafter, batches, self.recipe)
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
            save_drafter(self._best, self._drafter, self._fingerprints, self._told(evaluation))
        write_checkpoint(self._checkpoint, self.progress, self.course)
        self._losses.clear()
        return evaluation

    def publish(self, output: Path) -> None:
        """Write the best drafter into `output`, and forget the run."""
        drafter = load_drafter(self._best, self._target)
        drafter.set_dtype(mx.float16)
        told = read_drafter_config(self._best)["training"]
        save_drafter(output, drafter, self._fingerprints, told)
        self._checkpoint.unlink()  # first: a run cannot go on from it without its best drafter
        shutil.rmtree(self._folder, ignore_errors=True)

    def _evaluate(self) -> Evaluation:
        by_depth = measure_acceptance(self._drafter, self._labels.held_out)
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
        """How the drafter was trained, for people who read its configuration."""
        return {
            "step": evaluation.step,
            "positions": len(self._labels.training.ids),
            "labels": self._labels.recipe["labelling"],
            "corpus": self._labels.recipe["corpus"],
            "options": asdict(self._options),
            "accepted_by_depth": [round(share, 4) for share in evaluation.by_depth],
        }
