"""Finding the tables that fit a model: by fingerprint, not by name.

A fine-tune under any name finds the tables of its tokenizer. Looked through in this order: the
model's own folder (tables ship beside models), $TOKALIGN_TABLES, the tables of this project.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from tokalign.errors import BundleError
from tokalign.tables.bundle import Bundle, open_bundle

SHIPPED = Path(__file__).resolve().parents[2] / "tables"


def table_folder() -> Path:
    """Where `tokalign build` writes by default and where tables are looked for last."""
    return Path(os.environ.get("TOKALIGN_TABLES", SHIPPED))


def find_table(
    kind: str, *, target: str, draft: str | None = None, beside: Path | None = None
) -> tuple[Path, Bundle] | None:
    """The first table of `kind` whose fingerprints are `target` and `draft`.

    A file whose header is damaged is passed over, unless it is asked for by name. Reads headers,
    and every byte of the table it returns, because look-ups in a damaged trie are not safe.
    Raises: BundleError if that table is damaged.
    """
    wanted = {"target": target} if draft is None else {"target": target, "draft": draft}
    for path in _candidates(kind, beside):
        try:
            bundle = open_bundle(path)
        except BundleError:
            continue
        if bundle.kind == kind and dict(bundle.fingerprints) == wanted:
            return path, open_bundle(path, verify=True)
    return None


def _candidates(kind: str, beside: Path | None) -> Iterator[Path]:
    folders = [beside] if beside is not None else []
    for folder in dict.fromkeys([*folders, table_folder(), SHIPPED]):
        yield from sorted(folder.glob(f"*.{kind}.tok"))
        yield from sorted(folder.glob(f"*/*.{kind}.tok"))
