"""What comes with tokalign besides its code: tables, a small corpus and prompts.

In the repository they are folders at the top level. A wheel has them in the package, under `data`,
with the same relative names (see `pyproject.toml`).
"""

from __future__ import annotations

from pathlib import Path

from tokalign.errors import MissingAssetError

CORPUS = "corpora/pl-mini.txt"
TABLES = "tables"
PROMPTS = "benchmarks/prompts"

_PACKAGE = Path(__file__).parent
_INSTALLED = _PACKAGE / "data"


def shipped(name: str) -> Path:
    """The path of a file or folder that comes with tokalign, such as `CORPUS`.

    It is part of the installation, so only read it. Raises: MissingAssetError.
    """
    path = (_INSTALLED if _INSTALLED.is_dir() else _PACKAGE.parent) / name
    if not path.exists():
        raise MissingAssetError(
            f"{path}, which comes with tokalign, is missing; "
            "install again with: pip install --force-reinstall tokalign"
        )
    return path
