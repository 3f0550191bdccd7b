"""Batches: every position once an epoch, the same by number, and an unbiased softmax."""

from __future__ import annotations

import numpy as np
import pytest
from labelled import random_labels

from tokalign.train.labels import Batches

VOCABULARY = 96


def batches(candidates: int | None = None, *, size: int = 16, seed: int = 0) -> Batches:
    return Batches(
        random_labels(future=3),
        size=size,
        vocabulary_size=VOCABULARY,
        candidates=candidates,
        seed=seed,
    )


def test_an_epoch_has_every_position_once() -> None:
    made = batches(size=16)
    rows = [tuple(row) for n in range(made.per_epoch) for row in made[n].hidden.tolist()]
    assert made.per_epoch == 6
    assert sorted(rows) == sorted(map(tuple, random_labels(future=3).values.tolist()))
    assert made[0].hidden.tolist() != made[6].hidden.tolist()


def test_a_batch_is_known_by_its_number() -> None:
    one, two, other = batches(40)[9], batches(40)[9], batches(40, seed=1)[9]
    for name in type(one).__dataclass_fields__:
        assert np.array_equal(getattr(one, name), getattr(two, name))
    assert not np.array_equal(one.hidden, other.hidden)


@pytest.mark.parametrize("candidates", [None, 40, 96, 200])
def test_what_follows_is_among_the_candidates(candidates: int | None) -> None:
    labels, batch = random_labels(future=3), batches(candidates)[0]
    rows = [labels.values.tolist().index(state) for state in batch.hidden.tolist()]
    assert np.array_equal(batch.read, labels.ids[rows, :2])
    assert np.array_equal(batch.candidates[batch.correct], labels.ids[rows, 1:])
    assert len(np.unique(batch.candidates)) == len(batch.candidates) == min(candidates or 96, 96)


def test_the_sum_over_candidates_is_unbiased() -> None:
    made, values = batches(56), np.random.default_rng(1).exponential(size=VOCABULARY)
    per_draw = [
        float((values[batch.candidates] * np.exp(batch.log_weights)).sum())
        for batch in (made[number] for number in range(600))
    ]
    assert np.std(per_draw) > 0
    error = 4 * np.std(per_draw) / len(per_draw) ** 0.5
    assert abs(np.mean(per_draw) - values.sum()) < error


def test_too_few_candidates_are_refused() -> None:
    with pytest.raises(ValueError, match="too few"):
        batches(32, size=16)
