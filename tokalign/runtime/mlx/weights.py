"""A model's weights, and the device that they are computed on."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from threading import RLock
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.generate import wired_limit
from mlx_lm.utils import load_config, load_model

from tokalign.errors import MissingAssetError


def load_weights(folder: Path, *, dtype: str | None = None) -> tuple[Any, dict[str, Any]]:
    """Load an mlx-lm model and its configuration from a local folder, quantized weights included.

    dtype: "float32" makes passes agree on every choice, however many rows they have.
    Raises: MissingAssetError for a folder that holds no weights mlx-lm can read.
    """
    try:
        model, config = load_model(folder)
    except (FileNotFoundError, ValueError) as error:
        raise MissingAssetError(
            f"{folder} holds no model that mlx-lm can load ({error}); convert it with: "
            "mlx_lm.convert --hf-path REPOSITORY --mlx-path FOLDER"
        ) from error
    if dtype is not None:
        model.set_dtype(getattr(mx, dtype))
    mx.eval(model.state)  # what is still lazy can be computed in this thread only
    return model, config


def read_config(folder: Path) -> dict[str, Any]:
    """The configuration of a model's folder as mlx-lm reads it; {} if there is none."""
    return load_config(folder) if (folder / "config.json").is_file() else {}


def default_dtype() -> str | None:
    """Return the number format to compute in if none is asked for; None is that of the weights.

    On a CPU it is float32: float16 is slower there, and in float32 the chosen ids do not depend on
    the number of rows of a pass.
    """
    return "float32" if mx.default_device().type == mx.cpu else None


def weights_fingerprint(model: Any) -> str:
    """A digest of what a pass's cost depends on: names, shapes and number formats of weights."""
    weights = sorted((name, w.shape, str(w.dtype)) for name, w in tree_flatten(model.parameters()))
    return sha256(repr(weights).encode()).hexdigest()[:16]


def weight_bytes(model: Any) -> int:
    """How many bytes of weights a pass has to read."""
    return sum(weight.nbytes for _, weight in tree_flatten(model.parameters()))


def device_name() -> str:
    """The chip that mlx computes on, such as "Apple M2 Pro"."""
    return str(mx.device_info().get("device_name", platform.machine()))


def mlx_version() -> str:
    """The installed version of mlx."""
    return version("mlx")


def peak_memory() -> float:
    """The most memory mlx has held so far, in GB."""
    return float(mx.get_peak_memory()) / 1e9


class Wiring:
    """Keeps weights resident while anything decodes (macOS; elsewhere nothing happens).

    Generations overlap and end in any order, so the first one sets the limit of the process, and
    the last one sets it back.
    """

    def __init__(self) -> None:
        # Reentrant, because a generation may also be ended by the garbage collector.
        self._lock, self._users, self._limit = RLock(), 0, ExitStack()

    @contextmanager
    def __call__(self, model: Any) -> Iterator[None]:
        """Keep the weights of `model` resident for the length of the `with` block."""
        with self._lock:
            if not self._users:
                self._limit.enter_context(wired_limit(model))
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if not self._users:
                    self._limit.close()


wired = Wiring()
