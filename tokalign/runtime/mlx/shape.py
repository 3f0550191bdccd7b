"""A model's shape with random weights: what its passes cost, without its weights.

A pass costs what its weights' sizes and number formats make it cost, whatever their values are. So
a configuration of a few kilobytes is enough to measure the cost curve of a model that would have to
be downloaded for an hour; and the curve is found again when the model itself is there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm.utils import _get_classes

from tokalign.errors import UsageError, in_one_line
from tokalign.runtime.mlx.weights import MODEL_ERRORS

_SCALE = 0.02  # of random weights, as models are initialized; larger ones overflow float16
_CHUNK = 1 << 28
"""Bytes of weights that are made at once."""


def model_of_shape(config: Mapping[str, Any], *, dtype: str | None = None) -> Any:
    """An mlx-lm model of this configuration whose weights are still to be made (`fill`).

    config: a config.json, with the `quantization` that mlx-lm writes, if any. dtype: that of the
    weights that are not quantized; None for that of the configuration.
    Raises: UsageError for a configuration that mlx-lm has no model for.
    """
    with _making("measure a model that is here: tokalign calibrate --target FOLDER"):
        model = _made(config)
        model.set_dtype(getattr(mx, dtype or _number_format(config)))
        if quantization := config.get("quantization"):
            _quantize(model, quantization)
    model.eval()
    return model


def full_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration with what mlx-lm takes for keys that it lacks, as that of Gemma 3 lacks its
    heads; as it is where the model's own program makes it. Raises: as `model_of_shape`."""
    if config.get("model_file") is not None:
        return dict(config)
    with _making("give another model"):
        model = _made(config)
    taken: dict[str, Any] = {}
    for part in (model, getattr(model, "language_model", None)):
        if (arguments := getattr(part, "args", None)) is not None:
            taken |= vars(arguments)
    return taken | dict(config)


def _made(config: Mapping[str, Any]) -> Any:
    """The model, of which nothing is computed yet. Raises: MODEL_ERRORS."""
    config = deepcopy(dict(config))  # mlx-lm adds to what is nested in it
    model_class, arguments = _get_classes(config)
    return model_class(arguments.from_dict(config))


@contextmanager
def _making(remedy: str) -> Iterator[None]:
    try:
        yield
    except MODEL_ERRORS as error:
        raise UsageError(
            f"mlx-lm makes no model of this configuration ({in_one_line(error)}); {remedy}"
        ) from error


def fill(model: Any) -> None:
    """Give a model random weights, a part at a time, so that no more memory is used than it has."""
    made, size = [], 0
    for name, shape in tree_flatten(model.parameters()):
        if mx.issubdtype(shape.dtype, mx.floating):
            weight = mx.random.normal(shape.shape, shape.dtype, scale=_SCALE)
        else:
            weight = mx.random.randint(0, 1 << 31, shape.shape).astype(shape.dtype)
        made.append((name, weight))
        size += weight.nbytes
        if size > _CHUNK:
            model.update(tree_unflatten(made))
            mx.eval([weight for _, weight in made])
            made, size = [], 0
    model.update(tree_unflatten(made))
    mx.eval(model.parameters())


def _number_format(config: Mapping[str, Any]) -> str:
    named = str(config.get("dtype") or config.get("torch_dtype") or "bfloat16")
    return named if named in ("float16", "bfloat16", "float32") else "bfloat16"


def _quantize(model: Any, quantization: Mapping[str, Any]) -> None:
    """As mlx-lm does it for a folder: settings for all, and others for the layers that are named.
    One that was left as it is and is not named counts as quantized."""
    common = {
        key: quantization[key] for key in ("group_size", "bits", "mode") if key in quantization
    }

    def settings(path: str, module: nn.Module) -> Any:
        if path in quantization:
            return quantization[path]
        if not hasattr(module, "to_quantized") or "weight" not in module:
            return False
        return module.weight.shape[-1] % quantization["group_size"] == 0

    nn.quantize(model, **common, class_predicate=settings)
