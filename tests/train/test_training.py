"""A whole run: killed anywhere and resumed, it ends with the same drafter."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from killed_runs import Killed, files, killed_when
from labelled import small_config
from polish import SENTENCES
from random_models import write_model

from tokalign.build.corpus import Corpus
from tokalign.errors import BundleError, UsageError
from tokalign.runtime.decoder import LanguageModel
from tokalign.runtime.mlx.drafter_folder import load_drafter
from tokalign.runtime.mlx.recurrent_drafter import DrafterConfig
from tokalign.train.fit import Course
from tokalign.train.labelled_corpus import label_corpus
from tokalign.train.options import FitOptions, LabelOptions
from tokalign.train.run import Evaluation, Trained, fit
from tokalign.train.training import RecurrentLearner

LABELS = LabelOptions(positions=400, held_out=64, window=32)
FIT = FitOptions(epochs=3, batch=32, candidates=None, learning_rate=1e-2, evaluations=6)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> LanguageModel[Any]:
    folder = write_model(tmp_path_factory.mktemp("m") / "model", vocabulary_size=340)
    return LanguageModel.from_folder(folder)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    path = tmp_path_factory.mktemp("c") / "text.txt"
    path.write_text("\n".join(list(SENTENCES) * 20), "utf-8")
    return Corpus([path])


def config(target: LanguageModel[Any]) -> DrafterConfig:
    return small_config(target.model)


def train(
    target: LanguageModel[Any],
    corpus: Corpus,
    folder: Path,
    options: FitOptions = FIT,
    *,
    kill: Callable[[str, int], bool] = lambda _label, _done: False,
    report: Callable[[Evaluation], None] = lambda _: None,
) -> Trained:
    """Label and train into `folder`; killed when `kill` says so of a stage and its units done."""

    stage = killed_when(kill)
    workspace = folder / "workspace"
    labelled = label_corpus(target, corpus, workspace, LABELS, stage=stage)
    learner = RecurrentLearner(target, config(target), labelled, options)
    return fit(learner, folder / "drafter", workspace, stage=stage, report=report)


@pytest.fixture(scope="module")
def uninterrupted(
    target: LanguageModel[Any], corpus: Corpus, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    trained = train(target, corpus, folder)
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
    target: LanguageModel[Any],
    corpus: Corpus,
    uninterrupted: Path,
    tmp_path: Path,
    points: list[tuple[str, int]],
) -> None:
    for where, when in points:
        with pytest.raises(Killed):
            train(target, corpus, tmp_path, kill=lambda s, d, a=where, b=when: s == a and d >= b)
        assert not (tmp_path / "drafter").exists()
    train(target, corpus, tmp_path)
    assert files(tmp_path / "drafter") == files(uninterrupted / "drafter")


def test_a_resumed_run_does_not_begin_again(
    target: LanguageModel[Any], corpus: Corpus, tmp_path: Path
) -> None:
    with pytest.raises(Killed):
        train(target, corpus, tmp_path, kill=lambda s, d: s == "training" and d > 30)
    steps: list[int] = []
    train(target, corpus, tmp_path, report=lambda evaluation: steps.append(evaluation.step))
    assert steps == [36, 39]


@pytest.mark.parametrize("stage", ["labelling labels", "training"])
def test_two_processes_do_not_write_the_same_files(
    target: LanguageModel[Any], corpus: Corpus, uninterrupted: Path, tmp_path: Path, stage: str
) -> None:
    """A second one gives up, and the first one goes on as if it had been alone."""
    refused: list[str] = []

    def start_another(label: str, done: int) -> bool:
        if label == stage and done and not refused:
            with pytest.raises(UsageError, match="wait until it has ended") as caught:
                train(target, corpus, tmp_path)
            refused.append(str(caught.value))
        return False

    train(target, corpus, tmp_path, kill=start_another)
    assert str(tmp_path / "workspace") in refused[0]
    assert files(tmp_path / "drafter") == files(uninterrupted / "drafter")


def test_labels_are_made_once_for_many_drafters(
    target: LanguageModel[Any], corpus: Corpus, uninterrupted: Path, tmp_path: Path
) -> None:
    shutil.copytree(uninterrupted / "workspace", tmp_path / "workspace")
    labelled = files(tmp_path / "workspace" / "labels")
    train(
        target,
        corpus,
        tmp_path,
        replace(FIT, learning_rate=1e-3),
        kill=lambda stage, _: stage.startswith("labelling"),
    )
    assert files(tmp_path / "workspace" / "labels") == labelled
    assert files(tmp_path / "drafter") != files(uninterrupted / "drafter")


def test_training_stops_early_and_keeps_the_best(
    target: LanguageModel[Any], corpus: Corpus, tmp_path: Path
) -> None:
    seen: list[Evaluation] = []
    fit = replace(FIT, learning_rate=3.0, patience=1)  # so high that it gets worse
    trained = train(target, corpus, tmp_path, fit, report=seen.append)
    assert trained.stopped_early
    assert [evaluation.is_best for evaluation in seen].count(False) == 1
    assert trained.best == max(evaluation.accepted_per_round for evaluation in seen)


def test_patience_begins_with_the_first_guess_that_is_right() -> None:
    course = Course()
    for accepted in (0.0, 0.0, 0.0):
        course = course.after(accepted)
        assert not course.is_over(patience=1)
    assert course.after(0.1).after(0.1).is_over(patience=1)


def test_a_run_that_diverges_is_ended_in_one_line_and_leaves_nothing(
    target: LanguageModel[Any], corpus: Corpus, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=r"it is nan in step \d; give a lower --learning-rate"):
        train(target, corpus, tmp_path, replace(FIT, learning_rate=1e30))
    assert not list(tmp_path.glob("drafter/*.safetensors"))


def cut(data: bytes) -> bytes:
    return data[:-9]


def flip(data: bytes) -> bytes:
    return data[:-9] + bytes([data[-9] ^ 1]) + data[-8:]


@pytest.mark.parametrize("harm", [cut, flip])
def test_a_damaged_checkpoint_is_refused(
    target: LanguageModel[Any], corpus: Corpus, tmp_path: Path, harm: Callable[[bytes], bytes]
) -> None:
    with pytest.raises(Killed):
        train(target, corpus, tmp_path, kill=lambda s, d: s == "training" and d > 12)
    (checkpoint,) = tmp_path.glob("workspace/run-*/checkpoint.safetensors")
    checkpoint.write_bytes(harm(checkpoint.read_bytes()))
    with pytest.raises(BundleError, match="training starts again"):
        train(target, corpus, tmp_path)
