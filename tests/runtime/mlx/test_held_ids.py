"""A note of the ids that a cache holds is believed as far as the cache agrees with it."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models.cache import make_prompt_cache
from zoo import zoo_model

from tokalign.runtime.mlx.held_ids import positions, remember, remembered, unknown_positions

IDS = [3, 1, 4, 1, 5]
ALL_KINDS = ["llama", "qwen3_next", "mamba2", "falcon_h1"]


def filled(architecture: str) -> list[Any]:
    """The cache of IDS, by mlx-lm alone."""
    model = zoo_model(architecture)
    layers = make_prompt_cache(model)
    mx.eval(model(mx.array([IDS]), cache=layers))
    return layers


@pytest.mark.parametrize("architecture", ALL_KINDS)
def test_a_note_goes_with_a_copy(architecture: str) -> None:
    layers = filled(architecture)
    assert unknown_positions(layers)
    remember(layers, IDS)
    for some in (layers, deepcopy(layers)):
        assert remembered(some) == IDS
        assert not unknown_positions(some)


@pytest.mark.parametrize("architecture", ALL_KINDS)
def test_a_cache_that_has_read_on_unknown_positions(architecture: str) -> None:
    layers = filled(architecture)
    remember(layers, IDS)
    zoo_model(architecture)(mx.array([[9]]), cache=layers)
    assert remembered(layers) is None
    assert unknown_positions(layers)


def test_what_was_trimmed_is_left_out() -> None:
    layers = filled("llama")
    remember(layers, IDS)
    for layer in layers:
        layer.trim(2)
    assert remembered(layers) == IDS[:3]


@pytest.mark.parametrize("architecture", ALL_KINDS)
def test_a_new_cache_holds_nothing(architecture: str) -> None:
    layers = make_prompt_cache(zoo_model(architecture))
    assert remembered(layers) is None
    assert not unknown_positions(layers)
    assert not positions(layers)
