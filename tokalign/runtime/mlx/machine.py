"""For what a measured cost curve is valid: chip, mlx version, BLAS and the models."""

from __future__ import annotations

from typing import Any

from tokalign.cost.curve import Machine
from tokalign.runtime.mlx.blas import slow_blas
from tokalign.runtime.mlx.weights import device_name, mlx_version, weights_fingerprint


def machine_of(target: Any, draft: Any = None) -> Machine:
    """For what a curve that is measured here is valid. Cost: some milliseconds.

    target: an mlx-lm model. draft: another one, or a recurrent drafter.
    """
    return Machine(
        device=device_name(),
        mlx=mlx_version() + ("" if slow_blas() is None else ", reference BLAS"),
        target=weights_fingerprint(target),
        draft="" if draft is None else weights_fingerprint(draft),
    )
