"""Which model was measured: a fingerprint that goes with a record."""

from __future__ import annotations

import os
from hashlib import sha256
from pathlib import Path

_MIB = 1 << 20


def model_fingerprint(folder: Path) -> str:
    """Return twelve hexadecimal digits of a model's configuration and parts of its weights.

    The length and the first and last MiB of each weight file count: enough to tell fine-tunes and
    quantizations apart without reading gigabytes.
    """
    digest = sha256((folder / "config.json").read_bytes())
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            for start in (0, max(0, size - _MIB)):
                file.seek(start)
                digest.update(b"%d %d " % (size, start) + file.read(_MIB))
    return digest.hexdigest()[:12]
