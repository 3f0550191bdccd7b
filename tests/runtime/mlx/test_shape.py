"""A model made of its configuration alone has the sizes, and so the cost, of the one it is of."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten
from mlx_lm.utils import quantize_model, save_config, save_model
from places import DEMO

from tokalign.errors import UsageError
from tokalign.runtime.mlx.shape import fill, model_of_shape
from tokalign.runtime.mlx.weights import (
    load_weights,
    read_config,
    weight_bytes,
    weights_fingerprint,
)


def quantized(folder: Path, **settings: Any) -> Path:
    """The demo's target, quantized as mlx-lm does it."""
    shutil.copytree(DEMO / "target", folder)
    model, config = load_weights(folder)
    model, config = quantize_model(model, config, **settings)
    save_model(folder, model)
    save_config(config, folder / "config.json")
    return folder


def one_in_eight_bits(path: str, module: Any) -> Any:
    if path.endswith("down_proj"):
        return {"group_size": 32, "bits": 8}
    return hasattr(module, "to_quantized")


@pytest.mark.parametrize("settings", [None, {}, {"quant_predicate": one_in_eight_bits}])
def test_a_shape_is_timed_as_the_model_itself(
    settings: dict[str, Any] | None, tmp_path: Path
) -> None:
    folder = DEMO / "target"
    if settings is not None:
        folder = quantized(tmp_path / "model", group_size=32, bits=4, mode="affine", **settings)
    model, _ = load_weights(folder)
    shape = model_of_shape(read_config(folder))
    assert weight_bytes(shape) == weight_bytes(model)
    fill(shape)
    assert weights_fingerprint(shape) == weights_fingerprint(model)
    assert mx.isfinite(shape(mx.array([[1, 2, 3]]))).all()


def test_its_weights_are_no_two_times_the_same() -> None:
    shape = model_of_shape(read_config(DEMO / "target"))
    fill(shape)
    values = {float(w.reshape(-1)[0]) for _, w in tree_flatten(shape.parameters())}
    assert len(values) > 10


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"model_type": "no-such"},
        {"model_type": "llama"},
        read_config(DEMO / "target") | {"hidden_size": 0},
        read_config(DEMO / "target") | {"quantization": {"bits": "x", "group_size": 64}},
    ],
)
def test_a_configuration_that_mlx_lm_has_no_model_for_is_refused(config: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="calibrate --target"):
        model_of_shape(config)
