"""From a target and a corpus to a drafter folder: label, train, keep the best.

Everything on the way lies in a workspace: the labels, which another run with the same target and
corpus uses again, and the state of each unfinished run. So the same command goes on where it was
killed, and ends with the same weights.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import mlx.core as mx

from tokalign.build.corpus import Corpus
from tokalign.build.stages import Stage, silent
from tokalign.errors import CorpusError
from tokalign.runtime.decoder import LanguageModel
from tokalign.runtime.mlx.drafter_folder import (
    load_drafter,
    read_drafter_config,
    save_drafter,
    target_fingerprints,
)
from tokalign.runtime.mlx.recurrent_drafter import DrafterConfig, RecurrentDrafter, TargetEnds
from tokalign.tokenizer.vocabulary import TargetId
from tokalign.train.batches import Batches
from tokalign.train.checkpoint import read_checkpoint, write_checkpoint
from tokalign.train.fit import Recipe, begin, make_step
from tokalign.train.future_ids import Labeller, can_label_itself
from tokalign.train.held_out import Acceptance, measure_acceptance
from tokalign.train.labels import Labels, are_complete, open_labels, write_labels
from tokalign.train.options import FitOptions, Labelling, LabelOptions
from tokalign.train.windows import draw_windows


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """How good a drafter is in the middle of its training.

    step, steps: how far it is. loss: on the batches since the last evaluation, in nats per id.
    """

    step: int
    steps: int
    loss: float
    acceptance: Acceptance
    is_best: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """A finished run. evaluations: those of this process. stopped_early: before the last step."""

    config: DrafterConfig
    positions: int
    steps: int
    best: float
    evaluations: tuple[Evaluation, ...]
    stopped_early: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledCorpus:
    """Labels to train on and labels held out. recipe: what they depend on, as JSON."""

    training: Labels
    held_out: Labels
    recipe: Mapping[str, Any]


def label_corpus(
    target: LanguageModel[TargetId],
    corpus: Corpus,
    workspace: Path,
    options: LabelOptions,
    *,
    stage: Stage = silent,
) -> LabelledCorpus:
    """Label a corpus; what is in the workspace already is not made again.

    Raises: as `Corpus.lines`, `Labeller` and `write_labels`; CorpusError for one that is too short.
    """
    training, held_out = workspace / "labels", workspace / "held-out"
    recipe = _label_recipe(target, corpus, options)
    if not (are_complete(training, recipe) and are_complete(held_out, recipe)):
        with stage(2 * corpus.size, "reading the corpus") as advance:
            windows = draw_windows(
                corpus,
                target.tokenizer,
                length=options.window,
                positions=options.positions + options.held_out,
                seed=options.seed,
                progress=advance,
            )
        count = -(-options.held_out // options.window)
        if len(windows) <= count:
            raise CorpusError(
                f"the corpus has {len(windows)} windows of {options.window} tokens, and {count} "
                "have to be held out; give more text, or fewer --held-out positions"
            )
        _label(target, held_out, recipe, windows[:count], _greedy(target, options), stage)
        _label(target, training, recipe, windows[count:], options.labelling, stage)
    return LabelledCorpus(
        training=open_labels(training), held_out=open_labels(held_out), recipe=recipe
    )


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
    """Train a drafter on labels and write the best one into `output`.

    report: called after every evaluation.
    Raises: as `Batches`, `save_drafter` and `read_checkpoint`.
    """
    batches = Batches(
        labels.training,
        size=options.batch,
        vocabulary_size=config.vocabulary_size,
        candidates=options.candidates,
        seed=options.seed,
    )
    recipe = Recipe(
        steps=max(1, round(options.epochs * batches.per_epoch / options.accumulate)),
        accumulate=options.accumulate,
        learning_rate=options.learning_rate,
        dtype=options.dtype,
    )
    mx.random.seed(options.seed)
    drafter = RecurrentDrafter(config, TargetEnds.of(target.model))
    identity = json.dumps([config.to_json(), asdict(options), labels.recipe], sort_keys=True)
    run = workspace / f"run-{sha256(identity.encode()).hexdigest()[:12]}"
    best, checkpoint = run / "best", run / "checkpoint.safetensors"
    fingerprints = target_fingerprints(target)
    state, course = read_checkpoint(checkpoint, begin(drafter, recipe))
    every = max(1, recipe.steps // options.evaluations)
    step, losses, evaluations = make_step(drafter, batches, recipe), [], []
    with stage(recipe.steps, "training") as advance:
        advance(state.step)
        while state.step < recipe.steps and not course.is_over(options.patience):
            state, loss = step(state)
            losses.append(float(loss))
            advance(1)
            if state.step % every and state.step < recipe.steps:
                continue
            acceptance = measure_acceptance(drafter, labels.held_out)
            course = course.after(acceptance.per_round)
            evaluation = Evaluation(
                step=state.step,
                steps=recipe.steps,
                loss=sum(losses) / len(losses),
                acceptance=acceptance,
                is_best=not course.since_best,
            )
            if evaluation.is_best:
                told = _told(evaluation, labels, options)
                save_drafter(best, drafter, fingerprints, told)
            write_checkpoint(checkpoint, state, course)
            losses.clear()
            evaluations.append(evaluation)
            report(evaluation)
    told = read_drafter_config(best)["training"]
    save_drafter(output, load_drafter(best, target), fingerprints, told)
    shutil.rmtree(run, ignore_errors=True)
    return Trained(
        config=config,
        positions=len(labels.training.ids),
        steps=state.step,
        best=course.best,
        evaluations=tuple(evaluations),
        stopped_early=state.step < recipe.steps,
    )


def _label_recipe(
    target: LanguageModel[TargetId], corpus: Corpus, options: LabelOptions
) -> dict[str, Any]:
    return {
        "target": target_fingerprints(target),
        "corpus": corpus.listing,
        **asdict(options),
    }


def _greedy(target: LanguageModel[TargetId], options: LabelOptions) -> Labelling:
    """The labelling of the positions held out."""
    own = can_label_itself(target.model)
    return replace(options.labelling, kind="greedy" if own else "text")


def _label(
    target: LanguageModel[TargetId],
    folder: Path,
    recipe: Mapping[str, Any],
    windows: Sequence[list[TargetId]],
    labelling: Labelling,
    stage: Stage,
) -> None:
    labeller = Labeller(target.model, labelling)
    with stage(sum(map(len, windows)), f"labelling {folder.name}") as advance:
        for positions in write_labels(folder, recipe, windows, labeller.label):
            advance(positions)


def _told(evaluation: Evaluation, labels: LabelledCorpus, options: FitOptions) -> dict[str, Any]:
    """How a drafter was trained, for people who read its configuration."""
    return {
        "step": evaluation.step,
        "positions": len(labels.training.ids),
        "labels": labels.recipe["labelling"],
        "corpus": labels.recipe["corpus"],
        "options": asdict(options),
        "accepted_by_depth": [round(share, 4) for share in evaluation.acceptance.by_depth],
    }
