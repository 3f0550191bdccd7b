"""The machine that models are computed on: what it is, how fast, and its memory."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout
from importlib.metadata import version
from threading import RLock
from time import perf_counter
from typing import Any

import mlx.core as mx
from mlx_lm.generate import wired_limit

from tokalign.runtime.cost import Machine
from tokalign.runtime.mlx.weights import weights_fingerprint


def device_name() -> str:
    """The chip that mlx computes on, such as "Apple M2 Pro"."""
    return str(mx.device_info().get("device_name", platform.machine()))


def mlx_version() -> str:
    """The installed version of mlx."""
    return version("mlx")


_LONG_ENOUGH = 0.01
"""Seconds of a product from which a machine's speed can be told."""


def machine_tflops() -> float:
    """10^12 FLOP a second of large matrix products on this machine: the best of three."""
    best, size = 0.0, 256
    while best < _LONG_ENOUGH and size < 8192:
        size, times = 2 * size, list[float]()
        square = mx.ones((size, size))
        for _ in range(3):
            began = perf_counter()
            mx.eval(square @ square)
            times.append(perf_counter() - began)
        best = min(times)
    return float(2 * size**3 / best / 1e12)


def peak_memory() -> float:
    """The most memory mlx has held so far, in GB."""
    return float(mx.get_peak_memory()) / 1e9


class Wiring:
    """Keeps weights resident while anything decodes (macOS; elsewhere nothing happens). The first
    of the generations that overlap sets the process's limit, the last sets it back."""

    def __init__(self) -> None:
        # Reentrant, because a generation may also be ended by the garbage collector.
        self._lock, self._users, self._limit = RLock(), 0, ExitStack()

    @contextmanager
    def __call__(self, model: Any) -> Iterator[None]:
        """Keep the weights of `model` resident for the length of the `with` block."""
        with self._lock:
            if not self._users:
                with redirect_stdout(sys.stderr):  # it warns of a model that is nearly too large
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


def machine_of(target: Any, draft: Any = None) -> Machine:
    """For what a curve that is measured here is valid. target: an mlx-lm model. draft: another one,
    or a trained drafter. Cost: some milliseconds."""
    return Machine(
        device=device_name(),
        mlx=mlx_version(),
        target=weights_fingerprint(target),
        draft="" if draft is None else weights_fingerprint(draft),
    )
