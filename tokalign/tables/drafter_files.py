"""The files of a recurrent drafter's folder, read and checked without mlx.

`config.json` says what the drafter is, which target it was trained on, and which file holds its
weights with which digest. `runtime/mlx/drafter_folder.py` writes such folders and loads drafters.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import file_digest
from pathlib import Path
from typing import Any

from tokalign.errors import BundleError, MissingAssetError
from tokalign.storage import parse_json

FORMAT, VERSION = "tokalign recurrent drafter", 1
CONFIG = "config.json"
WEIGHTS = "drafter-{digest}.safetensors"
"""The name of the weights. It is none that mlx-lm would take for weights of the target."""

REMEDY = "tokalign train"


def read_drafter_config(folder: Path) -> dict[str, Any]:
    """The configuration of the drafter in a folder; its weights are not read.

    Raises: MissingAssetError if there is none; BundleError for one that cannot be read.
    """
    path = folder / CONFIG
    if not path.is_file():
        raise MissingAssetError(f"there is no drafter in {folder}; train one with: {REMEDY}")
    try:
        config = parse_json(path.read_bytes())
    except ValueError as error:
        raise damaged(folder, f"{CONFIG} is no JSON") from error
    if not isinstance(config, dict) or config.get("format") != FORMAT:
        raise BundleError(
            f"{folder} holds no drafter: its {CONFIG} is not of the format {FORMAT!r}; give a "
            f"folder that {REMEDY} wrote"
        )
    if config.get("version") != VERSION:
        raise BundleError(
            f"the drafter in {folder} has format version {config.get('version')!r}, and this "
            f"program reads {VERSION}; train it again with: {REMEDY}"
        )
    kinds = {"drafter": dict, "target": dict, "weights": str, "sha256": str, "training": dict}
    for name, kind in kinds.items():
        if not isinstance(config.get(name), kind):
            raise damaged(folder, f"{CONFIG} has no sound {name!r}")
    return config


def find_weights(folder: Path, config: Mapping[str, Any]) -> Path:
    """The weights file of a drafter, every byte of which was checked. Raises: BundleError."""
    path = folder / str(config["weights"])
    if path.parent != folder or not path.is_file():
        raise damaged(folder, f"its weights, {config['weights']}, are not there")
    if file_sha256(path) != config["sha256"]:
        raise damaged(folder, f"{path.name} does not hold what was written")
    return path


def damaged(folder: Path, reason: str) -> BundleError:
    """The error about a drafter that cannot be used as it is."""
    return BundleError(
        f"the drafter in {folder} is damaged: {reason}; fetch it or train it again with: {REMEDY}"
    )


def file_sha256(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()
