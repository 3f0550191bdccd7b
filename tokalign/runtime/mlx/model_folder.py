"""Writing a model into a folder that is like another one's but for the weights."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx

from tokalign.runtime.mlx.published_drafter import read_weights
from tokalign.runtime.mlx.weights import write_weights
from tokalign.runtime.rounds import Array
from tokalign.storage import appearing
from tokalign.tables.finding import TRAINING_RECORD

_WEIGHTS = "*.safetensors", "*.safetensors.index.json", "*.bin", "*.pth", "*.gguf"
_NOT_COPIED = *_WEIGHTS, TRAINING_RECORD
_CONFIG = "config.json"


def save_like(own: Path, folder: Path, weights: Mapping[str, Array]) -> None:
    """Write weights, in the number format of those in the folder `own`, and copy its other files.

    `config.json` is last: until then the folder has the model that it had before. Raises:
    UsageError or OutputError if it cannot be written.
    """
    dtype = _number_format(own)
    stored = {
        name: weight.astype(dtype) if mx.issubdtype(weight.dtype, mx.floating) else weight
        for name, weight in weights.items()
    }
    write_weights(folder / "model.safetensors", stored, {"format": "mlx"})
    files = [path for path in own.iterdir() if not any(map(path.match, _NOT_COPIED))]
    for path in sorted(filter(Path.is_file, files), key=lambda path: path.name == _CONFIG):
        with appearing(folder / path.name) as temporary:
            shutil.copyfile(path, temporary)


def _number_format(folder: Path) -> Any:
    """The number format that most floating-point weights of a folder have."""
    counts: Counter[Any] = Counter()
    for weight in read_weights(folder).values():  # lazy: only headers are read
        if mx.issubdtype(weight.dtype, mx.floating):
            counts[weight.dtype] += weight.size
    return counts.most_common(1)[0][0]
