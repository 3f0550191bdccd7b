"""Training a block drafter: all blocks at once are what one after another is; runs resume."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from block_drafters import random_block_drafter
from killed_runs import Killed, files, killed_when
from random_models import random_model, write_model

from tokalign.build.corpus import Corpus
from tokalign.errors import UsageError
from tokalign.runtime.decoder import LanguageModel
from tokalign.runtime.mlx.dflash import load_dflash
from tokalign.runtime.mlx.dflash_session import DFlashSession
from tokalign.runtime.mlx.session import TargetModelSession
from tokalign.runtime.mlx.taps import LayerOutputs
from tokalign.train.blocks import (
    BlockLearner,
    block_states,
    continued_drafter,
    new_drafter,
)
from tokalign.train.labelled_corpus import FutureIds, label_corpus
from tokalign.train.options import BlockShape, FitOptions, Labelling, LabelOptions, Loss
from tokalign.train.run import Evaluation, Trained, fit
from tokalign.train.windows import WindowBatches

TAPS, WINDOW = (0, 1), 24
SHAPES: dict[str, dict[str, Any]] = {
    "whole": {},
    "causal": {"is_causal": True},
    "window": {"layer_types": ["sliding_attention"] * 2, "sliding_window": 9},
    "causal window": {
        "layer_types": ["sliding_attention", "full_attention"],
        "sliding_window": 7,
        "is_causal": True,
    },
}


@pytest.mark.parametrize("shape", SHAPES)
def test_blocks_of_a_batch_are_those_that_the_drafter_gives_one_by_one(shape: str) -> None:
    model = random_model()
    drafter = random_block_drafter(model, **SHAPES[shape])
    labelling = Labelling(kind="text", future=6, taps=TAPS)
    windows = np.random.default_rng(1).integers(0, 96, (2, WINDOW)).tolist()
    parts = [FutureIds(model, labelling).label(window) for window in windows]
    labels = type(parts[0])(
        *(np.concatenate([getattr(part, name) for part in parts]) for name in ("values", "ids"))
    )
    made = WindowBatches(
        labels, labelling, WINDOW - 6, size=99, vocabulary_size=96, read=lambda _: None
    )
    batch = made.drafts(np.array([0, 1]), 1, (0,))
    states = block_states(drafter, batch)
    for number, window in enumerate(windows):
        for index, place in enumerate(batch.places.tolist()):
            outputs = LayerOutputs(model, TAPS)
            outputs.model(mx.array([window[: place + 1]]))
            taps = outputs.take()[: place + 1].astype(mx.float16)
            expected = drafter.hidden(window[place + 1], taps, drafter.begin(0))
            assert mx.allclose(states[number, index], expected, 2e-3, 2e-3)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> LanguageModel[Any]:
    folder = write_model(tmp_path_factory.mktemp("m") / "model", vocabulary_size=340)
    return LanguageModel.from_folder(folder)


FIT = FitOptions(epochs=12, batch=32, candidates=None, learning_rate=1e-2, evaluations=4)
Train = Callable[..., Trained]


@pytest.fixture(scope="module")
def train(target: LanguageModel[Any], sentences: Path) -> Train:
    """Labels and trains into a folder; killed when `kill` says so of a stage and its units done."""

    def run(
        folder: Path,
        *,
        keeps_states: bool = True,
        losses: tuple[Loss, ...] = ("marginal",),
        begin_with: Path | None = None,
        kill: Callable[[str, int], bool] = lambda _label, _done: False,
        report: Callable[[Evaluation], None] = lambda _: None,
    ) -> Trained:
        stage, workspace, shape = killed_when(kill), folder / "workspace", BlockShape(block=4)
        labelling = Labelling(
            future=4,
            taps=shape.read_of(len(target.model.layers)),
            probable=0 if losses == ("marginal",) else 5,
            keeps_states=keeps_states,
        )
        options = LabelOptions(positions=400, held_out=64, window=32, labelling=labelling)
        labelled = label_corpus(target, Corpus([sentences]), workspace, options, stage=stage)
        mx.random.seed(0)
        drafter, config = (
            new_drafter(target, shape)
            if begin_with is None
            else continued_drafter(target, begin_with)
        )
        how = FitOptions(**{**{n: getattr(FIT, n) for n in FIT.__slots__}, "losses": losses})
        learner = BlockLearner(target, drafter, config, labelled, options, how)
        return fit(learner, folder / "drafter", workspace, stage=stage, report=report)

    return run


@pytest.fixture(scope="module")
def trained(train: Train, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Trained]:
    folder = tmp_path_factory.mktemp("whole")
    return folder / "drafter", train(folder)


def test_it_learns_and_its_folder_drafts_what_was_measured(
    target: LanguageModel[Any], trained: tuple[Path, Trained]
) -> None:
    folder, found = trained
    assert found.best > 0.05
    record = json.loads((folder / "training.json").read_text())
    assert sum(record["accepted_by_depth"]) == pytest.approx(found.best, abs=1e-3)
    drafter = load_dflash(folder, target.model)
    session = TargetModelSession(target.model, watch=drafter.watch)
    ids: list[Any] = [5, 9, 40, 33, 7]
    session.logits(ids)
    listed = DFlashSession(drafter, session).draft([*ids, 8], 4)
    assert len(listed.positions) == 3


@pytest.mark.parametrize("points", [[1], [7, 20]])
def test_killed_and_resumed_is_the_same(
    train: Train, trained: tuple[Path, Trained], tmp_path: Path, points: list[int]
) -> None:
    for when in points:
        with pytest.raises(Killed):
            train(tmp_path, kill=lambda s, d, a=when: s == "training" and d >= a)
    train(tmp_path)
    assert files(tmp_path / "drafter") == files(trained[0])


def test_states_that_are_computed_again_are_those_on_disk(
    train: Train, trained: tuple[Path, Trained], tmp_path: Path
) -> None:
    """The labels have no states, and losses differ by how float16 rounds the states."""
    found = train(tmp_path, keeps_states=False)
    assert found.best == pytest.approx(trained[1].best, abs=0.15)
    kept = (tmp_path / "workspace" / "labels" / "labels.bin").stat().st_size
    assert kept < 450 * 4 * 8


@pytest.mark.parametrize("losses", [("kl",), ("acceptance",), ("marginal", "kl")])
def test_it_learns_from_what_the_target_finds_probable(
    train: Train, tmp_path: Path, losses: tuple[Loss, ...]
) -> None:
    """A random target finds all ids about equally probable: the loss falls, guesses stay wrong."""
    seen = list[float]()
    train(tmp_path, losses=losses, report=lambda evaluation: seen.append(evaluation.loss))
    assert seen[-1] < seen[0]


def test_a_drafter_is_continued(
    target: LanguageModel[Any], train: Train, trained: tuple[Path, Trained], tmp_path: Path
) -> None:
    before = files(trained[0])
    assert train(tmp_path, begin_with=trained[0]).best > 0.9 * trained[1].best
    assert files(trained[0]) == before
    config = json.loads(before["config.json"])
    (tmp_path / "quantized").mkdir()
    config["quantization"] = {"bits": 4, "group_size": 32}
    (tmp_path / "quantized" / "config.json").write_text(json.dumps(config))
    for name in ("model.safetensors",):
        (tmp_path / "quantized" / name).write_bytes(before[name])
    with pytest.raises(UsageError, match="quantized"):
        continued_drafter(target, tmp_path / "quantized")
