"""The last hidden state of a pass, for every architecture of mlx-lm that it can be had for."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
import zoo

from tokalign.errors import IncompatibleError
from tokalign.runtime.mlx.hidden_states import HiddenStates, as_head, head_of
from tokalign.runtime.mlx.session import TargetModelSession
from tokalign.runtime.mlx.taps import state_rows
from tokalign.tokenizer.vocabulary import TargetId

IDS = mx.array([[5, 17, 3, 40]])

WITHOUT = {
    "talkie": "its output head is a matrix outside of any module",
}
"""Architectures whose hidden state cannot be had, and why."""

REPRESENTATIVES = ("llama", "gemma4", "phixtral", "gpt2", "mamba2", "minicpm")


def comes_from(model: Any) -> None:
    """The states of a pass give the model's own logits, row by row, up to a monotone function."""
    states = HiddenStates(model)
    expected = np.array(model(IDS))[0]
    logits = np.array(states.model(IDS))[0]
    assert np.array_equal(logits, expected)
    hidden = states.take()
    assert hidden.ndim == 2
    assert hidden.shape[0] == IDS.shape[1]
    given = np.array(as_head(head_of(model))(hidden))[:, : logits.shape[1]]
    for one, other in zip(given, logits, strict=True):
        order = np.argsort(one, kind="stable")
        assert (np.diff(other[order]) >= -1e-4).all()


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in REPRESENTATIVES else pytest.mark.long)
        for name in zoo.zoo()
    ],
)
def test_states_give_the_logits(name: str) -> None:
    model = zoo.zoo_model(name)
    if name in WITHOUT:
        with pytest.raises(IncompatibleError, match="without a drafter"):
            HiddenStates(model)
    else:
        comes_from(model)


@pytest.mark.parametrize("name", ["llama", "mamba2"])
def test_the_states_of_a_session_are_those_of_the_whole_text(name: str) -> None:
    """At every place; before the first pass there is none."""
    model, ids = zoo.zoo_model(name), [TargetId(i) for i in (5, 17, 3, 40, 8, 9, 2)]
    states = HiddenStates(model)
    states.model(mx.array([ids]))
    expected = np.array(states.take())
    session = TargetModelSession(model, watch=state_rows)
    assert session.state_before_last(ids[:3]) is None
    for length in range(4, len(ids) + 1):
        session.logits(ids[: length - 1])
        found = np.array(session.state_before_last(ids[:length]))
        assert np.allclose(found, expected[length - 2 : length - 1], atol=1e-4)


def test_a_head_outside_of_a_module_is_refused() -> None:
    """MiniCPM with tied embeddings multiplies by the embedding's weight itself."""
    arguments = {**zoo.arguments("minicpm"), "tie_word_embeddings": True}
    module = import_module("mlx_lm.models.minicpm")
    with pytest.raises(IncompatibleError, match="minicpm"):
        HiddenStates(module.Model(module.ModelArgs.from_dict(arguments)))


def test_the_model_itself_is_left_as_it_is() -> None:
    model = zoo.zoo_model("llama")
    kinds = [type(module) for module in model.modules()]
    states = HiddenStates(model)
    assert [type(module) for module in model.modules()] == kinds
    assert states.model is not model
    model(IDS)
    with pytest.raises(AssertionError, match="no pass"):
        states.take()


def test_a_quantized_head_is_found() -> None:
    model = zoo.make_model("llama")
    nn.quantize(model, group_size=32, bits=8)
    comes_from(model)
