"""Checkpoints in the layout of recurrent_drafting compute what the paper's equations say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from numpy.typing import NDArray
from random_models import generate, random_model, rounds_of

from tokalign.errors import BundleError, IncompatibleError, TokalignError
from tokalign.runtime.draft.trained import with_trained
from tokalign.runtime.drafting import NoDrafter
from tokalign.runtime.mlx.drafter_folder import read_drafter
from tokalign.runtime.mlx.sampling import Sampling
from tokalign.runtime.mlx.session import TargetModelSession

HIDDEN, VOCABULARY = 32, 96

Floats = NDArray[np.float64]


def write_checkpoint(folder: Path, *, exit_dim: int = 64, blocks: int = 2) -> dict[str, Floats]:
    """A checkpoint with random arrays, under the names that Transformers saves; returns them."""
    random = np.random.default_rng(3)
    shapes: dict[str, tuple[int, ...]] = {
        "rnn_u.weight": (HIDDEN, HIDDEN),
        "rnn_u.bias": (HIDDEN,),
        "rnn_w.weight": (HIDDEN, HIDDEN),
        f"lm_head.{blocks}.weight": (VOCABULARY, exit_dim),
    }
    for block in range(blocks):
        shapes[f"lm_head.{block}.linear.weight"] = (exit_dim, exit_dim)
        shapes[f"lm_head.{block}.linear.bias"] = (exit_dim,)
    if exit_dim != 2 * HIDDEN:
        shapes["input_proj.weight"] = (exit_dim, 2 * HIDDEN)
        shapes["input_proj.bias"] = (exit_dim,)
    arrays = {name: random.normal(0, 0.3, shape) for name, shape in shapes.items()}
    saved = {name: mx.array(array) for name, array in arrays.items()}
    mx.save_safetensors(str(folder / "model.safetensors"), saved)
    known = {"model_type": "recurrent_drafting_drafter", "vocab_size": VOCABULARY, "rnn": True}
    known |= {"hidden_size": HIDDEN, "exit_dim": exit_dim, "num_draft_layers": blocks}
    (folder / "config.json").write_text(json.dumps(known))
    return arrays


def silu(x: Floats) -> Floats:
    return np.asarray(x / (1 + np.exp(-x)))


def recomputed(
    arrays: dict[str, Floats], embeddings: Floats, hidden: Floats, ids: list[int]
) -> Floats:
    """Logits f[len(ids), vocabulary] by the equations of section 3.1."""
    state, rows = np.zeros(HIDDEN), []
    blocks = sum(name.endswith("linear.bias") for name in arrays)
    for token in ids:
        carried = arrays["rnn_u.weight"] @ state + arrays["rnn_u.bias"]
        state = silu(carried + arrays["rnn_w.weight"] @ embeddings[token])
        x = np.concatenate([hidden, state])
        if "input_proj.weight" in arrays:
            x = arrays["input_proj.weight"] @ x + arrays["input_proj.bias"]
        for block in range(blocks):
            linear = f"lm_head.{block}.linear"
            x = x + silu(arrays[f"{linear}.weight"] @ x + arrays[f"{linear}.bias"])
        rows.append(arrays[f"lm_head.{blocks}.weight"] @ x)
    return np.array(rows)


@pytest.mark.parametrize(("exit_dim", "blocks"), [(64, 2), (24, 1), (40, 0)])
def test_a_checkpoint_computes_the_equations(tmp_path: Path, exit_dim: int, blocks: int) -> None:
    model, ids = random_model(), [17, 5, 3, 90]
    arrays = write_checkpoint(tmp_path, exit_dim=exit_dim, blocks=blocks)
    drafter = read_drafter(tmp_path, model)
    assert drafter.config.parameters == sum(array.size for array in arrays.values())
    hidden = mx.random.normal((1, HIDDEN), key=mx.random.key(2))
    state, rows = drafter.initial_state(hidden), []
    for token in ids:
        state, logits = drafter.step(state, mx.array([token]))
        rows.append(np.array(logits[0]))
    embeddings = np.array(model.model.embed_tokens.weight, dtype=np.float64)
    expected = recomputed(arrays, embeddings, np.array(hidden[0], dtype=np.float64), ids)
    assert np.allclose(rows, expected, atol=1e-3)


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.8, seed=2)])
def test_it_drafts_and_loses_nothing(tmp_path: Path, sampling: Sampling) -> None:
    write_checkpoint(tmp_path)
    drafter = read_drafter(tmp_path, random_model())
    session = TargetModelSession(random_model(), watch=drafter.watch)
    beams = with_trained(drafter.session(session), sampler=sampling.draft_sampler)
    emitted, rounds = rounds_of(beams, session, sampling)
    assert emitted == generate(NoDrafter(), sampling)
    assert any(one.draft_passes for one in rounds)


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"rnn": False}, BundleError, "without recurrence"),
        ({"exit_dim": None}, BundleError, "exit_dim"),
        ({"exit_dim": 24}, BundleError, "parameters|shape"),
        ({"vocab_size": 64}, IncompatibleError, "own target"),
        ({"num_heads": 2}, BundleError, "num_heads"),
    ],
)
def test_what_does_not_fit_is_one_line(
    changed: dict[str, Any], error: type[TokalignError], message: str, tmp_path: Path
) -> None:
    write_checkpoint(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | changed))
    with pytest.raises(error, match=message) as caught:
        read_drafter(tmp_path, random_model())
    assert "\n" not in str(caught.value)
