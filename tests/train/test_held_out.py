"""Held-out acceptance is what a chain of the drafter's own most probable guesses would get
accepted."""

from __future__ import annotations

from functools import partial

import mlx.core as mx
from labelled import random_labels, small_drafter

from tokalign.train.fit import Recipe, begin, loss_of, make_step
from tokalign.train.labels import Batches
from tokalign.train.training import accepted_counts, measure_acceptance


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
