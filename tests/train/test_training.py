"""Training a drafter: the loss is cross-entropy, and a killed run ends with the same weights."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from killed_runs import Killed, files, killed_when
from labelled import random_labels, small_config, small_drafter
from mlx.utils import tree_flatten
from random_models import random_model, write_model

from tokalign.build.corpus import Corpus
from tokalign.errors import BundleError, UsageError
from tokalign.runtime.decoder import LanguageModel
from tokalign.runtime.mlx.drafter_folder import load_drafter
from tokalign.runtime.mlx.recurrent_drafter import RecurrentDrafter, TargetEnds
from tokalign.tables.finding import read_drafter_config
from tokalign.train.labelled_corpus import label_corpus
from tokalign.train.labels import Batches
from tokalign.train.options import FitOptions, LabelOptions
from tokalign.train.run import Course, Evaluation, Trained, Training, fit
from tokalign.train.training import RecurrentLearner, accepted_counts, loss_of, measure_acceptance

LABELS = LabelOptions(positions=400, held_out=64, window=32)
FIT = FitOptions(epochs=3, batch=32, candidates=None, learning_rate=1e-2, evaluations=6)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> LanguageModel[Any]:
    folder = write_model(tmp_path_factory.mktemp("m") / "model", vocabulary_size=340)
    return LanguageModel.from_folder(folder)


Train = Callable[..., Trained]


@pytest.fixture(scope="module")
def train(target: LanguageModel[Any], sentences: Path) -> Train:
    """Labels and trains into a folder; killed when `kill` says so of a stage and its units done."""

    def run(
        folder: Path,
        options: FitOptions = FIT,
        *,
        kill: Callable[[str, int], bool] = lambda _label, _done: False,
        report: Callable[[Evaluation], None] = lambda _: None,
    ) -> Trained:
        stage, workspace = killed_when(kill), folder / "workspace"
        labelled = label_corpus(target, Corpus([sentences]), workspace, LABELS, stage=stage)
        learner = RecurrentLearner(target, small_config(target.model), labelled, options)
        return fit(learner, folder / "drafter", workspace, stage=stage, report=report)

    return run


@pytest.fixture(scope="module")
def uninterrupted(
    target: LanguageModel[Any], train: Train, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    trained = train(folder)
    assert trained.steps == 39
    assert trained.best > 0
    assert list((folder / "workspace").glob("run-*")) == []
    load_drafter(folder / "drafter", target)
    return folder


@pytest.mark.parametrize(
    "points",
    [
        [("labelling held-out", 40)],
        [("labelling labels", 200), ("labelling labels", 300)],
        [("training", 1)],
        [("training", 11), ("training", 25), ("training", 39)],
    ],
)
def test_killed_and_resumed_is_the_same(
    train: Train, uninterrupted: Path, tmp_path: Path, points: list[tuple[str, int]]
) -> None:
    for where, when in points:
        with pytest.raises(Killed):
            train(tmp_path, kill=lambda s, d, a=where, b=when: s == a and d >= b)
        assert not (tmp_path / "drafter").exists()
    train(tmp_path)
    assert files(tmp_path / "drafter") == files(uninterrupted / "drafter")


@pytest.mark.parametrize("stage", ["labelling labels", "training"])
def test_two_processes_do_not_write_the_same_files(
    train: Train, uninterrupted: Path, tmp_path: Path, stage: str
) -> None:
    """A second one gives up, and the first one goes on as if it had been alone."""
    refused: list[str] = []

    def start_another(label: str, done: int) -> bool:
        if label == stage and done and not refused:
            with pytest.raises(UsageError, match="wait until it has ended") as caught:
                train(tmp_path)
            refused.append(str(caught.value))
        return False

    train(tmp_path, kill=start_another)
    assert str(tmp_path / "workspace") in refused[0]
    assert files(tmp_path / "drafter") == files(uninterrupted / "drafter")


def test_labels_are_made_once_for_many_drafters(
    train: Train, uninterrupted: Path, tmp_path: Path
) -> None:
    shutil.copytree(uninterrupted / "workspace", tmp_path / "workspace")
    labelled = files(tmp_path / "workspace" / "labels")
    slower = replace(FIT, learning_rate=1e-3)
    train(tmp_path, slower, kill=lambda stage, _: stage.startswith("labelling"))
    assert files(tmp_path / "workspace" / "labels") == labelled
    assert files(tmp_path / "drafter") != files(uninterrupted / "drafter")


def test_training_stops_early_and_keeps_the_best(train: Train, tmp_path: Path) -> None:
    """Six evaluations are due, and what each would find is given."""
    accepted = [0.2, 0.1, 0.4, 0.3, 0.5, 0.6]
    seen: list[Evaluation] = []
    fit = replace(FIT, patience=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RecurrentLearner, "measure", lambda _: (accepted[len(seen)],))
        trained = train(tmp_path, fit, report=seen.append)
    assert [evaluation.is_best for evaluation in seen] == [True, False, True, False]
    assert trained.stopped_early
    assert trained.best == 0.4
    record = read_drafter_config(tmp_path / "drafter")["training"]
    assert (record["step"], record["accepted_by_depth"]) == (seen[2].step, [0.4])


def evaluated(accepted: float, step: int) -> Evaluation:
    more: Any = {"steps": 10, "loss": 1.0, "is_best": False}
    return Evaluation(step=step, by_depth=(accepted,), **more)


def test_patience_begins_with_the_first_guess_that_is_right() -> None:
    course = Course()
    for _ in range(3):
        course = course.after(evaluated(0.0, 9))
        assert not course.is_over(patience=1)
    assert course.after(evaluated(0.1, 9)).after(evaluated(0.1, 9)).is_over(patience=1)


def test_patience_begins_in_the_second_half() -> None:
    course = Course().after(evaluated(0.4, 1))
    for step in (2, 3, 5):
        course = course.after(evaluated(0.3, step))
        assert not course.is_over(patience=1)
    assert course.after(evaluated(0.3, 6)).is_over(patience=1)
    assert not course.after(evaluated(0.5, 6)).is_over(patience=1)


def test_a_run_that_diverges_is_ended_in_one_line_and_leaves_nothing(
    train: Train, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=r"it is nan in step \d; give a lower --learning-rate"):
        train(tmp_path, replace(FIT, learning_rate=1e30))
    assert not list(tmp_path.glob("drafter/*.safetensors"))


@pytest.mark.parametrize(
    "harm",
    [lambda data: data[:-9], lambda data: data[:-9] + bytes([data[-9] ^ 1]) + data[-8:]],
    ids=["cut", "flip"],
)
def test_a_damaged_checkpoint_is_refused(
    train: Train, tmp_path: Path, harm: Callable[[bytes], bytes]
) -> None:
    with pytest.raises(Killed):
        train(tmp_path, kill=lambda s, d: s == "training" and d > 12)
    (checkpoint,) = tmp_path.glob("workspace/run-*/checkpoint.safetensors")
    checkpoint.write_bytes(harm(checkpoint.read_bytes()))
    with pytest.raises(BundleError, match="training starts again"):
        train(tmp_path)


STEPS = 60


def batches(windows: int = 4, *, size: int = 16, candidates: int | None = None) -> Batches:
    labels = random_labels(windows)
    return Batches(labels, size=size, vocabulary_size=96, candidates=candidates, seed=0)


def learn(drafter: RecurrentDrafter, made: Batches) -> list[float]:
    loss = partial(loss_of, drafter)
    training = Training(drafter, made, loss, steps=STEPS, learning_rate=1e-2)
    return [training.advance() for _ in range(STEPS)]


def test_the_loss_is_the_mean_surprise_at_what_follows() -> None:
    drafter, batch, surprises = small_drafter(), batches()[0], []
    for row in range(len(batch.read)):
        state = drafter.initial_state(mx.array(batch.hidden[row : row + 1]))
        for read, correct in zip(batch.read[row], batch.correct[row], strict=True):
            state, logits = drafter.step(state, mx.array([int(read)]))
            surprises.append(float(mx.logsumexp(logits) - logits[0, int(correct)]))
    assert float(loss_of(drafter, batch)) == pytest.approx(np.mean(surprises), rel=1e-4)


def test_candidates_learn_the_labels_as_the_whole_vocabulary_does() -> None:
    losses = learn(small_drafter(), batches(candidates=80))
    expected = learn(small_drafter(), batches())
    assert expected[-1] < 0.6 * expected[0]
    assert losses[-1] == pytest.approx(expected[-1], rel=0.1)


@pytest.mark.parametrize("candidates", [None, 80])
def test_a_quantized_target_is_learned_from_and_stays_as_it_is(candidates: int | None) -> None:
    model = random_model.__wrapped__()  # the cached one is shared
    ends = {id(layer) for layer in (model.model.embed_tokens, model.lm_head)}
    nn.quantize(model, group_size=32, bits=4, class_predicate=lambda _, layer: id(layer) in ends)
    before = [np.array(w, np.float32) for _, w in tree_flatten(model.parameters())]
    drafter = RecurrentDrafter(small_config(model), TargetEnds.of(model))
    losses = learn(drafter, batches(candidates=candidates))
    assert losses[-1] < 0.7 * losses[0]
    after = [np.array(w, np.float32) for _, w in tree_flatten(model.parameters())]
    assert all(np.array_equal(one, two) for one, two in zip(before, after, strict=True))


def test_the_rate_rises_and_falls() -> None:
    drafter = small_drafter()
    training = Training(drafter, batches(), partial(loss_of, drafter), steps=200, learning_rate=1.0)
    rates = [training.rate(step) for step in range(200)]
    top = rates.index(max(rates))
    assert rates[:top] == sorted(rates[:top])
    assert rates[top:] == sorted(rates[top:], reverse=True)
    assert 0 < rates[-1] < 0.05 < 0.9 < rates[top] <= 1


def test_counts_are_those_of_the_drafter_s_own_chains() -> None:
    labels, drafter = random_labels(windows=12), small_drafter()
    learn(drafter, batches(12, size=64))
    expected = []
    for hidden, ids in zip(labels.values, labels.ids.tolist(), strict=True):
        chain, now = ids[:1], drafter.initial_state(mx.array(hidden[None]))
        for _ in ids[1:]:
            now, logits = drafter.step(now, mx.array(chain[-1:]))
            chain.append(int(mx.argmax(logits)))
        agree = [guess == right for guess, right in zip(chain[1:], ids[1:], strict=True)]
        expected.append([*agree, False].index(False))
    counts = accepted_counts(drafter, labels)
    assert counts.tolist() == expected
    assert {0, 1, 2} <= set(expected)
    by_depth = measure_acceptance(drafter, labels)
    assert sum(by_depth) == counts.mean()
    assert list(by_depth) == sorted(by_depth, reverse=True)
