"""Checkpoints in the layout of recurrent_drafting compute what the paper's equations say."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from click.testing import CliRunner
from numpy.typing import NDArray
from published_checkpoints import write_checkpoint
from random_models import random_model, write_model

from tokalign.assemble import load_decoder
from tokalign.cli.convert_drafter import command
from tokalign.drafting_options import DraftingOptions
from tokalign.errors import BundleError, IncompatibleError, MissingAssetError, TokalignError
from tokalign.runtime.mlx.published_drafter import read_published

HIDDEN, VOCABULARY = 32, 96

Floats = NDArray[np.float64]


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
    arrays = write_checkpoint(tmp_path / "c", exit_dim=exit_dim, blocks=blocks)
    drafter = read_published(tmp_path / "c", model)
    hidden = mx.random.normal((1, HIDDEN), key=mx.random.key(2))
    state, rows = drafter.initial_state(hidden), []
    for token in ids:
        state, logits = drafter.step(state, mx.array([token]))
        rows.append(np.array(logits[0]))
    embeddings = np.array(model.model.embed_tokens.weight, dtype=np.float64)
    expected = recomputed(arrays, embeddings, np.array(hidden[0], dtype=np.float64), ids)
    assert np.allclose(rows, expected, atol=1e-3)


def without(name: str) -> Callable[[Path], None]:
    def drop(folder: Path) -> None:
        arrays = dict(mx.load(str(folder / "model.safetensors")))
        del arrays[name]
        mx.save_safetensors(str(folder / "model.safetensors"), arrays)

    return drop


def cut(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:200])


WRONG: dict[str, tuple[dict[str, Any], Callable[[Path], None], type[TokalignError], str]] = {
    "no weights": (
        {},
        lambda folder: (folder / "model.safetensors").unlink(),
        MissingAssetError,
        "no model.safetensors",
    ),
    "an array less": ({}, without("rnn_w.weight"), BundleError, "damaged: 'rnn_w.weight'"),
    "cut": ({}, cut, BundleError, "damaged"),
    "another model": ({"model_type": "llama"}, lambda _: None, BundleError, "holds no recurrent"),
    "no recurrence": ({"rnn": False}, lambda _: None, BundleError, "no recurrence"),
    "no size": ({"exit_dim": None}, lambda _: None, BundleError, "damaged"),
    "another target": (
        {"vocab_size": 64},
        lambda _: None,
        IncompatibleError,
        "64 ids, not 32 and 96",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_does_not_fit_is_one_line(tmp_path: Path, name: str) -> None:
    config, change, error, told = WRONG[name]
    write_checkpoint(tmp_path / "c", exit_dim=24, blocks=1)
    file = tmp_path / "c" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | config))
    change(tmp_path / "c")
    with pytest.raises(error, match=told) as caught:
        read_published(tmp_path / "c", random_model())
    assert "\n" not in str(caught.value)


def test_the_command_writes_a_drafter_of_the_target(tmp_path: Path) -> None:
    target = write_model(tmp_path / "target", vocabulary_size=420)
    size = json.loads((target / "config.json").read_text())["vocab_size"]
    write_checkpoint(tmp_path / "c", exit_dim=64, blocks=1, vocabulary=size)
    words = ["--target", target, tmp_path / "c", tmp_path / "drafter", "--json"]
    result = CliRunner().invoke(command, list(map(str, words)), catch_exceptions=False)
    assert json.loads(result.stdout)["folder"] == str(tmp_path / "drafter")
    options = DraftingOptions(method="drafter", drafter=tmp_path / "drafter")
    assert load_decoder(str(target), None, options).drafter is not None
