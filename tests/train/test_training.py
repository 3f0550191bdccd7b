"""Training a drafter: the loss is cross-entropy, and a killed run ends with the same weights."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from killed_runs import Killed, files
from labelled import random_labels, small_config
from mlx.utils import tree_flatten
from random_models import random_model
from training_runs import FIT, Train

from tokalign.errors import BundleError, UsageError
from tokalign.runtime.decoder import LanguageModel
from tokalign.runtime.mlx.drafter_folder import named_drafter
from tokalign.train.kinds import RecurrentLearner
from tokalign.train.labelled_corpus import LabelledCorpus
from tokalign.train.labels import Labels
from tokalign.train.options import OWN_LOSSES, DrafterKind, FitOptions, Labelling, LabelOptions
from tokalign.train.run import Evaluation, Training

KINDS: tuple[DrafterKind, ...] = ("redrafter", "dflash", "eagle3")


@pytest.fixture(scope="module")
def uninterrupted(
    target: LanguageModel[Any], train: Train, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    trained = train(folder)
    assert trained.step == trained.steps == 39
    assert trained.best > 0
    assert list((folder / "workspace").glob("run-*")) == []
    named_drafter(folder / "drafter", target)
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


@pytest.mark.parametrize("kind", KINDS)
def test_two_sets_of_labels_are_learned_in_turn_and_resumed_the_same(
    train: Train, tmp_path: Path, kind: DrafterKind
) -> None:
    once = train(tmp_path / "whole", kind, learns_own=True)
    for where, when in (("labelling labels", 300), ("training", 3), ("training", 20)):
        with pytest.raises(Killed):
            train(
                tmp_path,
                kind,
                learns_own=True,
                kill=lambda s, d, a=where, b=when: s == a and d >= b,
            )
    resumed = train(tmp_path, kind, learns_own=True)
    assert (resumed.step, resumed.record) == (once.step, once.record)
    assert files(tmp_path / "drafter") == files(tmp_path / "whole" / "drafter")
    alone = train(tmp_path / "alone", kind)
    assert once.record["positions"] > alone.record["positions"]
    assert files(tmp_path / "drafter") != files(tmp_path / "alone" / "drafter")


def test_each_set_of_labels_has_its_steps_and_its_loss() -> None:
    made = learner(8)
    own = Labels(made.labels.training.values, made.labels.training.ids)
    how = replace(made.labels.options, labelling=Labelling(kind="text"))
    both = replace(made.labels, own=replace(made.labels, training=own, options=how))
    target = LanguageModel(model=random_model(), tokenizer=SimpleNamespace(fingerprint="none"))
    mixed = RecurrentLearner(target, small_config(target.model), both, made.options)
    assert mixed.batches.per_epoch == 2 * made.batches.per_epoch
    drawn = [mixed.batches[number] for number in range(10)]
    assert [batch.losses == OWN_LOSSES for batch in drawn] == 2 * [False, True, False, True, False]
    greedy = [batch for batch in drawn if batch.losses != OWN_LOSSES]
    for number, batch in enumerate(greedy):
        assert np.array_equal(batch.following, made.batches[number].following)


@pytest.mark.parametrize("kind", KINDS)
def test_a_drafter_is_continued(train: Train, tmp_path: Path, kind: DrafterKind) -> None:
    once = train(tmp_path, kind)
    before, seen = files(tmp_path / "drafter"), list[Evaluation]()
    few = replace(FIT, epochs=1, learning_rate=1e-3)
    more = train(tmp_path / "more", kind, few, begin_with=tmp_path / "drafter", report=seen.append)
    assert more.best > 0.9 * once.best > 0
    assert files(tmp_path / "drafter") == before != files(tmp_path / "more" / "drafter")


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
    train(tmp_path, options=slower, kill=lambda stage, _: stage.startswith("labelling"))
    assert files(tmp_path / "workspace" / "labels") == labelled
    assert files(tmp_path / "drafter") != files(uninterrupted / "drafter")


def test_training_stops_early_and_keeps_the_best(train: Train, tmp_path: Path) -> None:
    """Six evaluations are due, and what each would find is given."""
    accepted = [0.2, 0.1, 0.4, 0.3, 0.5, 0.6]
    seen: list[Evaluation] = []
    fit = replace(FIT, patience=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RecurrentLearner, "measure", lambda _: (accepted[len(seen)],))
        trained = train(tmp_path, options=fit, report=seen.append)
    assert [evaluation.is_best for evaluation in seen] == [True, False, True, False]
    assert trained.step < trained.steps
    assert trained.best == 0.4
    record = json.loads((tmp_path / "drafter" / "training.json").read_bytes())
    assert (record["step"], record["accepted_by_depth"]) == (seen[2].step, [0.4])


def is_over_after(*evaluated: tuple[float, int]) -> bool:
    """Whether a run of ten steps with a patience of 1 ends after shares accepted at some steps."""
    made = learner()
    made.options = replace(made.options, patience=1)
    training = Training(made, 10)
    for accepted, step in evaluated:
        training.step = step
        training.evaluated((accepted,))
    return training.is_over


def test_patience_begins_with_the_first_guess_that_is_right() -> None:
    assert not is_over_after((0.0, 7), (0.0, 8), (0.0, 9))
    assert not is_over_after((0.0, 7), (0.0, 8), (0.1, 9))
    assert is_over_after((0.0, 7), (0.1, 8), (0.1, 9))


def test_patience_begins_in_the_second_half() -> None:
    early = [(0.4, 1), (0.3, 2), (0.3, 3), (0.3, 5)]
    assert not is_over_after(*early)
    assert is_over_after(*early, (0.3, 6))
    assert not is_over_after(*early, (0.5, 6))


def test_a_run_that_diverges_is_ended_in_one_line_and_leaves_nothing(
    train: Train, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=r"it is nan in step \d; give a lower --learning-rate"):
        train(tmp_path, options=replace(FIT, learning_rate=1e30))
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
    (checkpoint,) = tmp_path.glob("workspace/run-*/state.safetensors")
    checkpoint.write_bytes(harm(checkpoint.read_bytes()))
    with pytest.raises(BundleError, match="training starts again"):
        train(tmp_path)


STEPS = 60


def learner(
    windows: int = 4, *, model: Any = None, size: int = 16, candidates: int | None = None
) -> RecurrentLearner:
    model = model or random_model()
    target = LanguageModel(model=model, tokenizer=SimpleNamespace(fingerprint="none"))
    labels = random_labels(windows)
    corpus = LabelledCorpus(training=labels, held_out=labels, recipe={}, options=LabelOptions())
    options = FitOptions(batch=size, candidates=candidates, decay=1.0, learning_rate=1e-2)
    return RecurrentLearner(target, small_config(model), corpus, options)


def learn(made: RecurrentLearner) -> list[float]:
    training = Training(made, STEPS)
    return [training.advance() for _ in range(STEPS)]


def test_the_loss_is_the_mean_surprise_at_what_follows() -> None:
    made, surprises = learner(), []
    batch = made.batches[0]
    for row, following in enumerate(batch.following[:, 0].tolist()):
        state = made.module.initial_state(batch.states[row])
        for read, correct in pairwise(following):
            state, logits = made.module.step(state, mx.array([read]))
            surprises.append(float(mx.logsumexp(logits) - logits[0, correct]))
    assert float(made.loss(batch)) == pytest.approx(np.mean(surprises), rel=1e-4)


def test_candidates_learn_the_labels_as_the_whole_vocabulary_does() -> None:
    losses, expected = learn(learner(candidates=80)), learn(learner())
    assert expected[-1] < 0.6 * expected[0]
    assert losses[-1] == pytest.approx(expected[-1], rel=0.1)


@pytest.mark.parametrize("candidates", [None, 80])
def test_a_quantized_target_is_learned_from_and_stays_as_it_is(candidates: int | None) -> None:
    model = random_model.__wrapped__()  # the cached one is shared
    ends = {id(layer) for layer in (model.model.embed_tokens, model.lm_head)}
    nn.quantize(model, group_size=32, bits=4, class_predicate=lambda _, layer: id(layer) in ends)
    before = [np.array(w, np.float32) for _, w in tree_flatten(model.parameters())]
    losses = learn(learner(model=model, candidates=candidates))
    assert losses[-1] < 0.7 * losses[0]
    after = [np.array(w, np.float32) for _, w in tree_flatten(model.parameters())]
    assert all(np.array_equal(one, two) for one, two in zip(before, after, strict=True))


def test_the_rate_rises_and_falls() -> None:
    made = learner()
    made.options = replace(made.options, learning_rate=1.0)
    training = Training(made, 200)
    rates = [training.rate(step) for step in range(200)]
    top = rates.index(max(rates))
    assert rates[:top] == sorted(rates[:top])
    assert rates[top:] == sorted(rates[top:], reverse=True)
    assert 0 < rates[-1] < 0.05 < 0.9 < rates[top] <= 1


def test_counts_are_those_of_the_drafter_s_own_chains() -> None:
    made, labels, expected = learner(12, size=64), random_labels(12), []
    learn(made)
    for hidden, (_, *ids) in zip(labels.values, labels.ids.tolist(), strict=True):
        chain, now = ids[:1], made.module.initial_state(mx.array(hidden[None]))
        for _ in ids[1:]:
            now, logits = made.module.step(now, mx.array(chain[-1:]))
            chain.append(int(mx.argmax(logits)))
        agree = [guess == right for guess, right in zip(chain[1:], ids[1:], strict=True)]
        expected.append([*agree, False].index(False))
    assert made.accepted().tolist() == expected
    assert {0, 1, 2} <= set(expected)
    by_depth = made.measure()
    assert sum(by_depth) == pytest.approx(np.mean(expected))
    assert list(by_depth) == sorted(by_depth, reverse=True)
