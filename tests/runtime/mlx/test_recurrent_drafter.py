"""The drafter's network: the paper's equations in NumPy, its sizes, and the ends it borrows."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten
from msgspec import convert
from numpy.typing import NDArray
from random_drafters import random_drafter
from random_models import random_model

from tokalign.errors import IncompatibleError
from tokalign.runtime.mlx.recurrent_drafter import DrafterConfig, RecurrentDrafter
from tokalign.runtime.mlx.trained_drafter import TargetEnds

SHAPES: list[dict[str, Any]] = [
    {"width": 24, "exit_width": 20},
    {"width": 24, "exit_width": 32, "blocks": 0},
    {"width": 40, "exit_width": 16, "head": "full"},
]


@pytest.fixture(scope="module")
def model() -> Any:
    return random_model(vocabulary=96, heads=1)


def silu(x: NDArray[Any]) -> NDArray[Any]:
    return x / (1 + np.exp(-x))


def by_hand(
    drafter: RecurrentDrafter, model: Any, hidden: NDArray[Any], ids: list[int]
) -> NDArray[Any]:
    """Logits f[len(ids), V]: the equations of section 3.1, one id after another, in float64."""
    w = {name: np.array(value, np.float64) for name, value in tree_flatten(drafter.parameters())}
    embedding = np.array(model.model.embed_tokens.weight, np.float64)
    out = embedding if "lm_head" not in model else np.array(model.lm_head.weight, np.float64)
    s, rows = np.zeros(drafter.config.width), []
    for token in ids:
        s = silu(w["rnn_u.weight"] @ s + w["rnn_u.bias"] + w["rnn_w.weight"] @ embedding[token])
        g = w["entry_h.weight"] @ hidden + w["entry_s.weight"] @ s + w["entry_h.bias"]
        for i in range(drafter.config.blocks):
            name = f"blocks.{i}.linear"
            g = g + silu(w[f"{name}.weight"] @ g + w[f"{name}.bias"])
        for i in range(len(drafter.head)):
            g = w[f"head.{i}.weight"] @ g
        rows.append(out @ g if drafter.config.head == "tied" else g)
    return np.array(rows)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_equations_of_the_paper(model: Any, shape: dict[str, Any]) -> None:
    drafter, ids = random_drafter(model, **shape), [3, 95, 3, 17]
    hidden = mx.random.normal((2, drafter.config.hidden_size))
    state, rows = drafter.initial_state(hidden), []
    for token in ids:
        state, logits = drafter.step(state, mx.array([token, 8]))
        rows.append(logits[0])
    expected = by_hand(drafter, model, np.array(hidden[0], np.float64), ids)
    assert np.allclose(np.array(mx.stack(rows)), expected, rtol=1e-4, atol=1e-5)
    # The ends that it borrows are not among its parameters.
    assert sum(w.size for _, w in tree_flatten(drafter.parameters())) == drafter.config.parameters


@pytest.mark.parametrize("quantized", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_logits_among_some_ids_are_those_of_all(shape: dict[str, Any], quantized: bool) -> None:
    model = random_model.__wrapped__(vocabulary=96, heads=1)
    if quantized:
        model.lm_head = model.lm_head.to_quantized(group_size=32, bits=8)
    drafter = random_drafter(model, **shape)
    state = drafter.initial_state(mx.random.normal((2, drafter.config.hidden_size)))
    _, exit_ = drafter.advance(state, mx.array([4, 5]))
    some = mx.array([3, 90, 17])
    among = drafter.logits(exit_, some)
    assert mx.allclose(among, drafter.logits(exit_)[:, some], atol=1e-4)


@pytest.mark.parametrize(
    "wrong",
    ["width=0", "width=100000000", "num_draft_layers=-1", "num_draft_layers=1001", "head=none"],
)
def test_a_shape_that_makes_no_sense_is_refused(wrong: str) -> None:
    name, _, value = wrong.partition("=")
    shape = {"hidden_size": 8, "vocab_size": 9, "width": 8, "exit_dim": 8}
    convert(shape, DrafterConfig)
    with pytest.raises(ValueError):
        convert(shape | {name: value if value.isalpha() else int(value)}, DrafterConfig)


def test_another_target_s_ends_are_refused(model: Any) -> None:
    config = DrafterConfig(hidden_size=8, vocabulary_size=96, width=8, exit_width=8)
    with pytest.raises(IncompatibleError, match="width 8 with 96 ids"):
        RecurrentDrafter(config, TargetEnds.of(model))
