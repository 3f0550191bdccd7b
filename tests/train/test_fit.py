"""Steps of training: the loss is cross-entropy, a state is a value."""

from __future__ import annotations

from functools import partial
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from labelled import random_labels, small_config, small_drafter
from mlx.utils import tree_flatten
from random_models import random_model

from tokalign.runtime.mlx.recurrent_drafter import RecurrentDrafter, TargetEnds
from tokalign.train.fit import Recipe, TrainingState, begin, loss_of, make_step
from tokalign.train.labels import Batches
from tokalign.train.training import accepted_counts, measure_acceptance


def batches(size: int = 16, candidates: int | None = None) -> Batches:
    return Batches(random_labels(), size=size, vocabulary_size=96, candidates=candidates, seed=0)


def flat(progress: TrainingState) -> dict[str, Any]:
    return {name: np.array(w) for name, w in tree_flatten(progress.weights)}


def steps(count: int, recipe: Recipe, made: Batches) -> tuple[TrainingState, list[float]]:
    drafter, losses = small_drafter(), []
    step, state = (
        make_step(drafter, made, recipe, partial(loss_of, drafter)),
        begin(drafter, recipe),
    )
    for _ in range(count):
        state, loss = step(state)
        losses.append(float(loss))
    return state, losses


def test_the_loss_is_the_mean_surprise_at_what_follows() -> None:
    drafter, batch, surprises = small_drafter(), batches()[0], []
    for row in range(len(batch.read)):
        state = drafter.initial_state(mx.array(batch.hidden[row : row + 1]))
        for read, correct in zip(batch.read[row], batch.correct[row], strict=True):
            state, logits = drafter.step(state, mx.array([int(read)]))
            surprises.append(float(mx.logsumexp(logits) - logits[0, int(correct)]))
    assert float(loss_of(drafter, batch)) == pytest.approx(np.mean(surprises), rel=1e-4)


def test_training_learns_the_labels() -> None:
    _, losses = steps(60, Recipe(steps=60, learning_rate=1e-2), batches())
    assert losses[-1] < 0.6 * losses[0]


def test_candidates_learn_as_the_whole_vocabulary_does() -> None:
    recipe = Recipe(steps=60, learning_rate=1e-2)
    _, losses = steps(60, recipe, batches(candidates=80))
    _, expected = steps(60, recipe, batches())
    assert losses[-1] == pytest.approx(expected[-1], rel=0.1)


@pytest.mark.parametrize("candidates", [None, 80])
def test_a_quantized_target_is_learned_from_and_stays_as_it_is(candidates: int | None) -> None:
    model = random_model.__wrapped__()  # the cached one is shared
    ends = {id(layer) for layer in (model.model.embed_tokens, model.lm_head)}
    nn.quantize(model, group_size=32, bits=4, class_predicate=lambda _, layer: id(layer) in ends)
    before = [np.array(w, np.float32) for _, w in tree_flatten(model.parameters())]
    drafter = RecurrentDrafter(small_config(model), TargetEnds.of(model))
    recipe = Recipe(steps=60, learning_rate=1e-2)
    made, loss = batches(candidates=candidates), partial(loss_of, drafter)
    step, state = make_step(drafter, made, recipe, loss), begin(drafter, recipe)
    losses = []
    for _ in range(recipe.steps):
        state, loss = step(state)
        losses.append(float(loss))
    assert losses[-1] < 0.7 * losses[0]
    after = [np.array(w, np.float32) for _, w in tree_flatten(model.parameters())]
    assert all(np.array_equal(one, two) for one, two in zip(before, after, strict=True))


def test_a_state_is_a_value_that_any_run_goes_on_from() -> None:
    recipe, made = Recipe(steps=6, learning_rate=1e-2), batches()
    expected, _ = steps(6, recipe, made)
    half, _ = steps(3, recipe, made)
    other = small_drafter(seed=7)
    state, step = half, make_step(other, made, recipe, partial(loss_of, other))
    for _ in range(3):
        state, _ = step(state)
    assert half.step == 3
    for name, weights in flat(expected).items():
        assert np.array_equal(weights, flat(state)[name]), name


def test_the_rate_rises_and_falls() -> None:
    rates = [Recipe(steps=200, learning_rate=1.0).rate(step) for step in range(200)]
    top = rates.index(max(rates))
    assert rates[:top] == sorted(rates[:top])
    assert rates[top:] == sorted(rates[top:], reverse=True)
    assert 0 < rates[-1] < 0.05 < 0.9 < rates[top] <= 1


def test_counts_are_those_of_the_drafter_s_own_chains() -> None:
    labels, drafter = random_labels(windows=12), small_drafter()
    made = Batches(labels, size=64, vocabulary_size=96, candidates=None, seed=0)
    recipe = Recipe(steps=60, learning_rate=1e-2)
    step, state = (
        make_step(drafter, made, recipe, partial(loss_of, drafter)),
        begin(drafter, recipe),
    )
    for _ in range(recipe.steps):
        state, _ = step(state)
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
