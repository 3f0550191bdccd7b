"""Training a block drafter: all blocks at once are what one after another is."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from block_drafters import random_block_drafter
from killed_runs import files
from labelled import random_labels
from random_models import random_model
from training_runs import FIT, Train

from tokalign.build.corpus import Corpus
from tokalign.errors import UsageError
from tokalign.runtime.decoder import LanguageModel
from tokalign.runtime.mlx.dflash_session import DFlashSession
from tokalign.runtime.mlx.drafter_folder import read_drafter
from tokalign.runtime.mlx.session import TargetModelSession
from tokalign.runtime.mlx.taps import LayerOutputs
from tokalign.tokenizer.vocabulary import Roles, TargetId, Vocabulary
from tokalign.train.blocks import BlockLearner, _mask, block_states
from tokalign.train.drafters import WindowBatches
from tokalign.train.labelled_corpus import label_corpus
from tokalign.train.options import (
    BlockShape,
    DrafterKind,
    FitOptions,
    Labelling,
    LabelOptions,
    Loss,
)
from tokalign.train.run import Training

TAPS, WINDOW = (0, 1), 24
WHOLE = FitOptions(batch=99, candidates=None)
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
    labels = random_labels(2, WINDOW, **asdict(labelling))
    made = WindowBatches(labels, labelling, WHOLE, window=WINDOW, vocabulary_size=96)
    batch = made.drafts(np.array([0, 1]), 1)
    states = block_states(drafter, batch)
    for number, window in enumerate(batch.text.tolist()):
        for index, place in enumerate(batch.places.tolist()):
            outputs = LayerOutputs(model, TAPS)
            outputs.model(mx.array([window[: place + 1]]))
            taps = outputs.take()[: place + 1].astype(mx.float16)
            committed = int(batch.following[number, index, 0])
            expected = drafter.hidden(committed, taps, drafter.new_cache(0))
            assert mx.allclose(states[number, index], expected, 2e-3, 2e-3)


BLOCKS = replace(FIT, epochs=12, evaluations=4)


@pytest.fixture(scope="module")
def trained(train: Train, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Training]:
    folder = tmp_path_factory.mktemp("whole")
    return folder / "drafter", train(folder, "dflash", BLOCKS)


def test_it_learns_and_its_folder_drafts_what_was_measured(
    target: LanguageModel[Any], trained: tuple[Path, Training]
) -> None:
    folder, found = trained
    assert found.best > 0.05
    record = json.loads((folder / "training.json").read_text())
    assert sum(record["accepted_by_depth"]) == pytest.approx(found.best, abs=1e-3)
    drafter = read_drafter(folder, target.model)
    session = TargetModelSession(target.model, watch=drafter.watch)
    ids: list[Any] = [5, 9, 40, 33, 7]
    session.logits(ids)
    listed = DFlashSession(drafter, session).draft([*ids, 8], 4)
    assert len(listed.positions) == 3


def test_states_that_are_computed_again_are_those_on_disk(
    train: Train, trained: tuple[Path, Training], tmp_path: Path
) -> None:
    """The labels have no states, and losses differ by how float16 rounds the states."""
    found = train(tmp_path, "dflash", BLOCKS, keeps_states=False)
    assert found.best == pytest.approx(trained[1].best, abs=0.15)
    kept = (tmp_path / "workspace" / "labels" / "labels.bin").stat().st_size
    assert kept < 450 * 4 * 5 + 1000


@pytest.mark.parametrize("kind", ["redrafter", "dflash", "eagle3"])
@pytest.mark.parametrize("losses", [("kl",), ("acceptance",), ("marginal", "kl")])
def test_it_learns_from_what_the_target_finds_probable(
    train: Train, tmp_path: Path, kind: DrafterKind, losses: tuple[Loss, ...]
) -> None:
    """A random target finds all ids about equally probable: the loss falls, guesses stay wrong."""
    seen, fit = list[float](), replace(FIT, losses=losses)
    train(tmp_path, kind, fit, probable=5, report=lambda evaluation: seen.append(evaluation.loss))
    assert seen[-1] < seen[0]


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"quantization": {"bits": 4, "group_size": 32}}, "quantized"),
        ({"sample_from_anchor": True}, "its first slot"),  # as DeepSpec's, whose first slot guesses
    ],
)
def test_other_networks_are_not_continued(
    changed: dict[str, Any],
    told: str,
    train: Train,
    trained: tuple[Path, Training],
    tmp_path: Path,
) -> None:
    written = files(trained[0])
    config = json.loads(written["config.json"]) | changed
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").write_bytes(written["model.safetensors"])
    with pytest.raises(UsageError, match=told):
        train(tmp_path / "more", "dflash", begin_with=tmp_path)


def test_windows_held_out_are_measured_whole_where_the_text_is_learned(
    target: LanguageModel[Any], sentences: Path, tmp_path: Path
) -> None:
    labelling = Labelling(kind="text", future=4, taps=TAPS)
    how = LabelOptions(positions=200, held_out=64, window=32, labelling=labelling)
    labels = label_corpus(target, Corpus([sentences]), tmp_path, how)
    made = BlockLearner(target, BlockShape(block=4, taps=TAPS), labels, FIT)
    assert made.batches[0].text.shape[1] == 32 - 4
    whole = made._held_out.drafts(np.arange(2)).text
    assert whole.tolist() == labels.held_out.ids[:, 0].reshape(2, 32).tolist()


def test_the_mask_of_a_new_drafter_is_no_id_of_a_text() -> None:
    """Nor one that begins or ends a text, or that the model has no row for."""
    tokens = (b"!", b"", b"", b"", b"a", b"")
    roles = Roles(bos=TargetId(1))
    vocabulary = Vocabulary(tokens=tokens, fallback=frozenset(), specials={}, roles=roles)
    target: Any = SimpleNamespace(
        model=random_model(vocabulary=5),
        tokenizer=SimpleNamespace(vocabulary=vocabulary),
        stop_ids=frozenset({2}),
    )
    assert _mask(target) == 3
