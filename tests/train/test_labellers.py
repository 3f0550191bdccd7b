"""What the target says follows a position is what it would say by itself, token by token."""

from __future__ import annotations

from typing import Any, cast

import mlx.core as mx
import numpy as np
import pytest
from labelled import random_labels
from random_models import random_model
from zoo import zoo_model

from tokalign.errors import IncompatibleError, UsageError
from tokalign.tokenizer.vocabulary import TargetId
from tokalign.train.labellers import FutureIds
from tokalign.train.options import Labelling

WINDOW = cast("list[TargetId]", [5, 90, 17, 17, 3, 44, 61, 8, 2, 33, 71, 12])


@pytest.mark.parametrize("sliding_window", [None, 48])
def test_greedy_ids_are_those_of_a_generation_from_each_position(
    sliding_window: int | None,
) -> None:
    model = random_model(sliding_window=sliding_window)
    labels = FutureIds(model, Labelling(future=4)).label(WINDOW)
    assert labels.ids.shape == (len(WINDOW), 4)
    for position, found in enumerate(labels.ids.tolist()):
        ids = list(WINDOW[: position + 1])
        for expected in found:
            assert int(mx.argmax(model(mx.array([ids]))[0, -1])) == expected
            ids.append(expected)


def test_hidden_states_are_what_the_output_head_reads() -> None:
    model = random_model()
    labels = FutureIds(model, Labelling()).label(WINDOW)
    expected = np.array(model.model(mx.array([WINDOW]))[0])
    assert np.allclose(labels.values, expected, rtol=2e-3, atol=2e-3)


def test_ids_of_the_text_follow_where_all_of_them_are_known() -> None:
    labels = FutureIds(random_model(), Labelling(kind="text", future=3)).label(WINDOW)
    assert labels.values.shape[0] == labels.ids.shape[0] == len(WINDOW) - 3
    assert labels.ids.tolist() == [WINDOW[i + 1 : i + 4] for i in range(len(WINDOW) - 3)]


def test_sampled_ids_follow_their_seed_and_become_greedy_as_it_gets_cold() -> None:
    def ids(**labelling: Any) -> list[list[int]]:
        return cast("list[list[int]]", random_labels(2, **labelling).ids.tolist())

    assert ids(kind="sampled") == ids(kind="sampled") != ids(kind="sampled", seed=1)
    assert ids(kind="sampled", temperature=1e-4) == ids(kind="greedy") != ids(kind="sampled")
    same_window = FutureIds(random_model(), Labelling(kind="sampled"))
    first, second = (same_window.label(WINDOW, number).ids.tolist() for number in (0, 1))
    assert first != second


@pytest.mark.parametrize("architecture", ["gpt2", "mamba2"])  # learned positions; no attention
def test_a_model_that_takes_no_trees_learns_from_the_text(architecture: str) -> None:
    model = zoo_model(architecture)
    with pytest.raises(IncompatibleError, match="--labels text"):
        FutureIds(model, Labelling())
    text = FutureIds(model, Labelling(kind="text", future=2)).label(WINDOW)
    assert text.ids.tolist() == [WINDOW[i + 1 : i + 3] for i in range(len(WINDOW) - 2)]


def test_a_window_that_a_layer_would_forget_is_refused() -> None:
    labeller = FutureIds(random_model(sliding_window=40), Labelling(future=4))
    with pytest.raises(UsageError, match="--window 10"):
        labeller.label(WINDOW)


@pytest.mark.parametrize("wrong", [{"future": 1}, {"temperature": 0.0}, {"seed": 1 << 32}])
def test_a_labelling_that_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        Labelling(**wrong)
