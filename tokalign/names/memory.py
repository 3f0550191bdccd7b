"""Whether models fit into this machine's memory, before they are loaded."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from tokalign.errors import UsageError
from tokalign.storage import parse_json

COMFORT = 2 / 3
"""The share of the memory that weights may take, so that contexts and other programs have room."""

_WORKING_SET = 0.75
LONGEST_HEADER = 1 << 24
"""Bytes of the header of a safetensors file, which is JSON."""


def working_set() -> float:
    """Bytes that weights and caches may take together: what Metal recommends, which ends a process
    that asks for more; elsewhere a part of the memory."""
    recommended = _device().get("max_recommended_working_set_size", 0)
    return recommended or _WORKING_SET * machine_memory()


def machine_memory() -> int:
    """Bytes of memory that this process may use at most: the machine's, or its container's; those
    of the card if mlx computes on one that has its own."""
    if card := _device().get("total_memory", 0):  # of CUDA; Metal shares the machine's
        return card
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for limit in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError):  # "max" is no number
            memory = min(memory, int(Path(limit).read_text()))
    return memory


def _device() -> Mapping[str, int]:
    """What mlx tells of its device in numbers. Where no model was loaded mlx may not be either."""
    mlx = sys.modules.get("mlx.core")
    return {} if mlx is None else cast("Mapping[str, int]", mlx.device_info())


_GARBLED = (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError)


def _arrays(file: Path) -> tuple[int, dict[str, Any]]:
    """Where the data of a safetensors file begin, and what its header says of each array. Raises:
    as `_GARBLED`."""
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        arrays = parse_json(opened.read(min(length, LONGEST_HEADER)))
    arrays.pop("__metadata__", None)
    return 8 + length, arrays


def is_cut_short(file: Path) -> bool:
    """Whether a safetensors file ends before its last array, or is none. mlx loads what is there
    of it."""
    try:
        begin, arrays = _arrays(file)
        last = max((array["data_offsets"][1] for array in arrays.values()), default=0)
        return bool(file.stat().st_size < begin + last)
    except _GARBLED:
        return True


def weights_bytes(folder: Path, *, dtype: str | None = None) -> int:
    """Bytes of a model's weights in memory. dtype: the format of those that are not quantized."""
    return round(sum(_file_bytes(file, dtype) for file in folder.glob("model*.safetensors")))


def require_bytes(needed: int) -> None:
    """Raises: UsageError if `needed` bytes of weights do not fit into memory."""
    memory = machine_memory()
    if needed > memory:
        raise UsageError(
            f"the weights take {needed / 1e9:.1f} GB and this machine has {memory / 1e9:.1f} GB of "
            "memory; choose a smaller model, or a build in fewer bits (`tokalign models` says what "
            "fits)"
        )


def _file_bytes(file: Path, dtype: str | None) -> float:
    """Source: the format of safetensors; a header of JSON has the type and place of each array."""
    size = file.stat().st_size
    if dtype is None:
        return size
    wide = 4 if dtype == "float32" else 2
    factors = {"F16": wide / 2, "BF16": wide / 2, "F32": wide / 4}
    try:
        _, arrays = _arrays(file)
        sizes = (
            (array["data_offsets"][1] - array["data_offsets"][0]) * factors.get(array["dtype"], 1)
            for array in arrays.values()
        )
        return float(sum(sizes))
    except _GARBLED:
        return size  # loading says what is wrong with it
