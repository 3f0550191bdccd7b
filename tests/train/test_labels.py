"""Labels on disk: what is killed and resumed equals what was not, and damage is refused."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from killed_runs import files
from labelled import random_labels

from tokalign.errors import BundleError, IncompatibleError
from tokalign.train.drafters import WindowBatch, WindowBatches
from tokalign.train.labels import Candidates, LabelFile, Labels
from tokalign.train.options import FitOptions, Labelling

RECIPE = {"target": "a", "window": 8}
WINDOWS = list(range(40))


def label(window: int, number: int) -> Labels:
    assert window == number
    random = np.random.default_rng(number)
    return Labels(random.random((3, 6)).astype(np.float16), random.integers(0, 9, (3, 5), np.int32))


def whole(folder: Path) -> Path:
    for _ in LabelFile(folder, RECIPE).write(WINDOWS, label):
        pass
    return folder


def test_what_was_written_is_read(tmp_path: Path) -> None:
    assert LabelFile(tmp_path, RECIPE).labels is None
    found = LabelFile(whole(tmp_path), RECIPE).labels
    assert found is not None
    expected = [label(number, number) for number in WINDOWS]
    assert np.array_equal(found.values, np.concatenate([one.values for one in expected]))
    assert np.array_equal(found.ids, np.concatenate([one.ids for one in expected]))


@pytest.mark.parametrize("windows", [1, 4, 17, 39])
def test_killed_and_resumed_is_the_same(tmp_path: Path, windows: int) -> None:
    part = LabelFile(tmp_path / "a", RECIPE).write(WINDOWS, label)
    list(islice(part, windows))
    part.close()
    (tmp_path / "a" / "labels.bin").open("ab").write(b"half a row")
    assert LabelFile(tmp_path / "a", RECIPE).labels is None
    assert files(whole(tmp_path / "a")) == files(whole(tmp_path / "b"))


def test_a_run_killed_in_its_first_window_begins_anew(tmp_path: Path) -> None:
    expected = files(whole(tmp_path))["labels.bin"]
    (tmp_path / "labels.bin").write_bytes(expected[: expected.index(b"\n") + 20])
    assert LabelFile(tmp_path, RECIPE).labels is None
    assert files(whole(tmp_path))["labels.bin"] == expected


def test_labels_of_another_recipe_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(IncompatibleError, match="another window"):
        LabelFile(whole(tmp_path), RECIPE | {"window": 9})


def test_labels_beyond_the_last_window_are_refused(tmp_path: Path) -> None:
    path = whole(tmp_path) / "labels.bin"
    path.write_bytes(path.read_bytes() + bytes(400))
    with pytest.raises(BundleError, match="tokalign train"):
        LabelFile(tmp_path, RECIPE)


@pytest.mark.parametrize(
    "forged",
    [["windows"], [{}, 40, -1, 6, 5], [{}, 40, 3, 6], [{}, 40, 3, 3, 5], [{}, 40, 3, 6, 0]],
)
def test_a_forged_head_is_refused(tmp_path: Path, forged: list[Any]) -> None:
    """Rows of half the size would pass for others."""
    path = whole(tmp_path) / "labels.bin"
    _, records = path.read_bytes().split(b"\n", 1)
    path.write_bytes(json.dumps(forged).encode() + b"\n" + records)
    with pytest.raises(BundleError, match="tokalign train"):
        LabelFile(tmp_path, RECIPE)


VOCABULARY = 96


def batches(candidates: int | None = None, *, size: int = 16, seed: int = 0) -> WindowBatches:
    options = FitOptions(batch=size, candidates=candidates, seed=seed)
    labels, labelling = random_labels(future=3), Labelling(future=3)
    return WindowBatches(labels, labelling, options, vocabulary_size=VOCABULARY)


def rows_of(batch: WindowBatch) -> list[tuple[float, ...]]:
    return [tuple(row) for row in np.array(batch.states)[:, 0].tolist()]


def test_an_epoch_has_every_position_once() -> None:
    made = batches(size=16)
    rows = [row for n in range(made.per_epoch) for row in rows_of(made[n])]
    assert made.per_epoch == 6
    assert sorted(rows) == sorted(map(tuple, random_labels(future=3).values.tolist()))
    assert rows_of(made[0]) != rows_of(made[6])


@pytest.mark.parametrize("candidates", [None, 40, 96, 200])
def test_what_follows_is_among_the_candidates(candidates: int | None) -> None:
    labels, batch = random_labels(future=3), batches(candidates)[0]
    known = [*map(tuple, labels.values.tolist())]
    rows = [known.index(state) for state in rows_of(batch)]
    assert np.array_equal(batch.following[:, 0], labels.ids[rows, 1:])
    assert np.array_equal(batch.candidates[batch.correct[:, 0]], labels.ids[rows, 2:])
    assert batch.candidates.tolist() == sorted(set(batch.candidates.tolist()))
    if candidates is None or candidates >= VOCABULARY:
        assert len(batch.candidates) == VOCABULARY


def test_about_as_many_candidates_are_drawn_as_asked_and_frequent_ids_always() -> None:
    seen = np.array([900, 60, 30, *[0] * 93])
    drawn = [Candidates(seen, 20).draw(np.array([7]), (seed,)) for seed in range(200)]
    assert np.mean([len(ids) for ids, _ in drawn]) == pytest.approx(20.8, abs=1)  # and the 7
    for ids, log_weights in drawn:
        assert {0, 1, 2, 7} <= {*ids.tolist()}
        assert log_weights[np.isin(ids, [0, 1, 2, 7])].tolist() == [0, 0, 0, 0]


def test_the_sum_over_candidates_is_unbiased() -> None:
    made, values = batches(56), np.random.default_rng(1).exponential(size=VOCABULARY)
    per_draw = [
        float((values[batch.candidates] * np.exp(batch.log_weights)).sum())
        for batch in (made[number] for number in range(600))
    ]
    assert np.std(per_draw) > 0
    error = 4 * np.std(per_draw) / len(per_draw) ** 0.5
    assert abs(np.mean(per_draw) - values.sum()) < error
