"""For what a measured cost curve is valid: chip, mlx version, BLAS and the models.

mlx's wheels for Linux bring the reference BLAS of netlib, whose time is linear in the rows of a
pass. A library that is preloaded takes its place.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import mlx.core as mx

from tokalign.cost.curve import Machine
from tokalign.runtime.mlx.weights import device_name, mlx_version, weights_fingerprint

_MAPPED = Path("/proc/self/maps")
_DEBIAN = "openblas-pthread/libopenblas.so.0"
_FAST = "libopenblas", "libmkl", "libblis"


def slow_blas() -> str | None:
    """What to do about a slow BLAS, in one line; None where mlx does not compute with one."""
    if mx.default_device() != mx.cpu or not _MAPPED.exists():
        return None
    loaded = _MAPPED.read_text("utf-8", errors="replace").splitlines()
    return remedy(loaded, Path("/usr/lib").glob(f"*/{_DEBIAN}"))


def remedy(loaded: Iterable[str], installed: Iterable[Path]) -> str | None:
    """The same of the files that a process has loaded, and of the OpenBLAS that is installed.

    loaded: lines that end in a path. installed: Debian's libraries, which may be none.
    """
    names = {line.rpartition("/")[2] for line in loaded}
    if not any(name.startswith("libblas") for name in names):
        return None
    if any(name.startswith(_FAST) for name in names):
        return None
    library = next(iter(installed), None)
    install = "" if library else "apt install libopenblas0-pthread, then "
    return (
        "mlx computes with the reference BLAS here, which is several times slower than OpenBLAS: "
        f"{install}LD_PRELOAD={library or f'/usr/lib/$(uname -m)-linux-gnu/{_DEBIAN}'} tokalign ..."
    )


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
