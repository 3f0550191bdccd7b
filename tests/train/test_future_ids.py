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
from tokalign.train.future_ids import Labeller
from tokalign.train.options import OPENING, Labelling

WINDOW = cast("list[TargetId]", [5, 90, 17, 17, 3, 44, 61, 8, 2, 33, 71, 12])


@pytest.mark.parametrize("sliding_window", [None, 48])
def test_greedy_ids_are_those_of_a_generation_from_each_position(
    sliding_window: int | None,
) -> None:
    model = random_model(sliding_window=sliding_window)
    labels = Labeller(model, Labelling(future=4)).label(WINDOW)
    assert labels.ids.shape == (len(WINDOW), 4)
    for position, found in enumerate(labels.ids.tolist()):
        ids = list(WINDOW[: position + 1])
        for expected in found:
            assert int(mx.argmax(model(mx.array([ids]))[0, -1])) == expected
            ids.append(expected)


def test_hidden_states_are_what_the_output_head_reads() -> None:
    model = random_model()
    labels = Labeller(model, Labelling()).label(WINDOW)
    expected = np.array(model.model(mx.array([WINDOW]))[0])
    assert np.allclose(labels.values, expected, rtol=2e-3, atol=2e-3)


def test_ids_of_the_text_follow_where_all_of_them_are_known() -> None:
    labels = Labeller(random_model(), Labelling(kind="text", future=3)).label(WINDOW)
    assert labels.values.shape[0] == labels.ids.shape[0] == len(WINDOW) - 3
    assert labels.ids.tolist() == [WINDOW[i + 1 : i + 4] for i in range(len(WINDOW) - 3)]


def test_sampled_ids_follow_their_seed_and_become_greedy_as_it_gets_cold() -> None:
    def ids(**labelling: Any) -> list[list[int]]:
        return cast("list[list[int]]", random_labels(2, **labelling).ids.tolist())

    assert ids(kind="sampled") == ids(kind="sampled") != ids(kind="sampled", seed=1)
    assert ids(kind="sampled", temperature=1e-4) == ids(kind="greedy") != ids(kind="sampled")
    same_window = Labeller(random_model(), Labelling(kind="sampled"))
    first, second = (same_window.label(WINDOW, number).ids.tolist() for number in (0, 1))
    assert first != second


def test_a_generated_text_is_followed_by_what_the_target_wrote() -> None:
    """As it gets cold, the target writes what it would write greedily after each opening."""
    model = random_model()
    window = cast("list[TargetId]", [(7 * i) % 96 for i in range(2 * OPENING + 3)])
    labels = Labeller(model, Labelling(kind="generated", temperature=1e-4, future=3)).label(window)
    written = len(window) - 3 + 1
    assert len(labels.ids) == 2 * written == Labelling(kind="generated", future=3).positions_of(35)
    for opening in (0, 1):
        ids = list(window[opening * OPENING : (opening + 1) * OPENING])
        for position in range(opening * written, opening * written + 4):
            expected = np.array(model.model(mx.array([ids]))[0, -1])
            assert np.allclose(labels.values[position], expected, rtol=5e-3, atol=5e-3)
            ids.append(TargetId(int(mx.argmax(model(mx.array([ids]))[0, -1]))))
            assert labels.ids[position, 0] == ids[-1]
            assert labels.ids[position + 1, :2].tolist() == labels.ids[position, 1:].tolist()


def test_a_generated_text_ends_at_a_stop_id_and_begins_with_bos() -> None:
    window, options = cast("list[TargetId]", [9] * (3 * OPENING)), Labelling(kind="generated")
    whole = Labeller(random_model(), options).label(window)
    stop = TargetId(int(whole.ids[60, 0]))
    ended = Labeller(random_model(), options, stop_ids={stop}).label(window)
    assert stop not in ended.ids
    assert 0 < len(ended.ids) < len(whole.ids)
    none = Labeller(random_model(), options, stop_ids=range(96)).label(window)
    assert none.ids.shape == (0, 5)
    assert none.values.shape == (0, whole.values.shape[1])
    other = Labeller(random_model(), options, bos=TargetId(1)).label(window)
    assert other.ids.tolist() != whole.ids.tolist()


@pytest.mark.parametrize("architecture", ["gpt2", "mamba2"])  # learned positions; no attention
def test_a_model_that_takes_no_trees_writes_texts_of_its_own(architecture: str) -> None:
    model = zoo_model(architecture)
    with pytest.raises(IncompatibleError, match="--labels generated"):
        Labeller(model, Labelling())
    window = cast("list[TargetId]", [(7 * i) % 64 for i in range(2 * OPENING)])
    generated = Labeller(model, Labelling(kind="generated", temperature=1e-4)).label(window)
    ids = window[:OPENING]
    for position in range(4):
        ids.append(TargetId(int(mx.argmax(model(mx.array([ids]))[0, -1]))))
        assert generated.ids[position, 0] == ids[-1]
    text = Labeller(model, Labelling(kind="text", future=2)).label(window)
    assert text.ids.tolist() == [window[i + 1 : i + 3] for i in range(len(window) - 2)]


def test_a_window_that_a_layer_would_forget_is_refused() -> None:
    labeller = Labeller(random_model(sliding_window=40), Labelling(future=4))
    with pytest.raises(UsageError, match="--window 10"):
        labeller.label(WINDOW)


@pytest.mark.parametrize("wrong", [{"future": 1}, {"temperature": 0.0}, {"seed": 1 << 32}])
def test_a_labelling_that_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        Labelling(**wrong)
