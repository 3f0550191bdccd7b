"""The estimate: close to what a pass and a step really hold, and known for the 11B."""

from __future__ import annotations

import gc
from dataclasses import replace
from functools import partial
from typing import Any

import mlx.core as mx
import pytest
from places import DEMO

from tokalign.errors import BundleError
from tokalign.runtime.mlx.recurrent_drafter import DrafterConfig, RecurrentDrafter, TargetEnds
from tokalign.runtime.mlx.weights import load_weights
from tokalign.train.estimate import ModelShape, Work, estimate
from tokalign.train.fit import Recipe, begin, loss_of, make_step
from tokalign.train.future_ids import Labeller
from tokalign.train.labels import Batches
from tokalign.train.options import Kind, Labelling

CONFIG = DrafterConfig(hidden_size=192, vocabulary_size=4000, width=192, exit_width=192)
WORK: dict[str, Any] = {
    "positions": 128,
    "window": 128,
    "labelling": Labelling(),
    "epochs": 1,
    "batch": 128,
    "candidates": 2048,
    "drafter_parameters": CONFIG.parameters,
    "exit_width": CONFIG.exit_width,
    "blocks": CONFIG.blocks,
}


def test_it_bounds_what_mlx_really_holds() -> None:
    gc.collect()
    others = mx.get_active_memory()  # what other tests hold
    model, _ = load_weights(DEMO / "target", dtype="float32")
    shape = ModelShape.from_folder(DEMO / "target")
    found = estimate(replace(shape, weight_bytes=2 * shape.weight_bytes), Work(**WORK))
    window: Any = [5 + 7 * i % 3900 for i in range(128)]
    labeller = Labeller(model, Labelling())
    mx.clear_cache()
    mx.reset_peak_memory()
    labels = labeller.label(window)
    assert found.labelling_memory / 3 < mx.get_peak_memory() - others < 1.1 * found.labelling_memory

    made = Batches(labels, size=128, vocabulary_size=4000, candidates=2048, seed=0)
    drafter, recipe = RecurrentDrafter(CONFIG, TargetEnds.of(model)), Recipe(steps=2)
    step, state = (
        make_step(drafter, made, recipe, partial(loss_of, drafter)),
        begin(drafter, recipe),
    )
    mx.clear_cache()
    mx.reset_peak_memory()
    for _ in range(2):
        state, _loss = step(state)
    assert found.training_memory / 3 < mx.get_peak_memory() - others < 1.1 * found.training_memory


def test_work_is_rows_times_weights() -> None:
    shape = ModelShape.from_folder(DEMO / "target")
    assert shape.parameters == pytest.approx(2_539_200, rel=0.01)
    kinds: tuple[Kind, ...] = ("greedy", "generated", "text")
    found = [estimate(shape, Work(**WORK | {"labelling": Labelling(kind=kind)})) for kind in kinds]
    own = found[0]
    assert [one.rows for one in found] == [640, 128, 128]
    labelling, training = own.seconds(64)
    assert labelling == 10
    assert training == pytest.approx(10 * own.training_work / own.labelling_work)


def test_a_quantized_eleven_billion_fits_where_its_weights_do() -> None:
    sizes = {
        "hidden_size": 4096,
        "vocab_size": 32_128,
        "num_hidden_layers": 50,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "intermediate_size": 14_336,
        "quantization": {"bits": 4, "group_size": 64},
    }
    shape = ModelShape.from_config(sizes, weight_bytes=6.28e9)
    assert shape.parameters == pytest.approx(11.17e9, rel=0.01)
    found = estimate(shape, Work(**WORK | {"drafter_parameters": 42_000_000, "exit_width": 2048}))
    assert 6.3e9 < found.memory < 9e9


def test_a_configuration_without_sizes_is_refused(tmp_path: Any) -> None:
    (tmp_path / "config.json").write_text("{}", "utf-8")
    with pytest.raises(BundleError, match="num_attention_heads"):
        ModelShape.from_folder(tmp_path)
