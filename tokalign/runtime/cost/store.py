"""Where measured cost curves are kept: one file per target and draft in the user's cache folder.

`runtime/draft_length/opening_knowledge.py` reads them when a decoder starts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

from tokalign.runtime.cost.curve import CostCurve, Machine
from tokalign.storage import cache_folder, parse_json, write_file


def curve_path(machine: Machine) -> Path:
    """Return the file for a pair of models on a device; every version of mlx has the same file."""
    key = sha256("\n".join((machine.device, machine.target, machine.draft)).encode())
    return cache_folder() / "curves" / f"{key.hexdigest()[:20]}.json"


def find_curve(machine: Machine) -> CostCurve | None:
    """Find the stored curve; None if there is none, or if it is stale.

    A curve of the same target with another draft model, or with none, is used for the target's
    part, because the cost of the target's passes does not depend on the draft.
    """
    own = _read(curve_path(machine))
    if own is not None and not own.is_stale(machine):
        return own
    for other in _stored():
        if other.machine is not None and replace(other.machine, draft=machine.draft) == machine:
            return other.without_draft()
    return None


def find_curve_of_tokenizers(target: str, draft: str) -> CostCurve | None:
    """Find a curve of models with these tokenizers (by fingerprint), or of the target alone."""
    found = None
    for curve in _stored():
        of = curve.notes.get("tokenizers")
        if of == [target, draft]:
            return curve
        if of and of[0] == target:
            found = curve.without_draft()
    return found


def store_curve(curve: CostCurve, path: Path | None = None) -> Path:
    """Write a measured curve to `path`, or to its place in the cache; returns where it is.

    The file is written whole or not at all.
    Raises: UsageError if it cannot be written; ValueError for a curve that was not measured.
    """
    remedy = "choose a file that you may write"
    if path is None:
        if curve.machine is None:
            raise ValueError("only a measured curve has a place in the cache")
        path = curve_path(curve.machine)
        remedy = "set TOKALIGN_CACHE to a folder that you may write to"
    content = json.dumps(curve.to_json(), ensure_ascii=False) + "\n"
    write_file(path, content, parents=True, remedy=remedy)
    return path


def _stored() -> Iterator[CostCurve]:
    """Every curve in the cache that can be read."""
    for path in sorted((cache_folder() / "curves").glob("*.json")):
        if (curve := _read(path)) is not None:
            yield curve


def _read(path: Path) -> CostCurve | None:
    """Read a curve; a damaged or outdated file counts as none, and will be measured again."""
    try:
        return CostCurve.from_json(parse_json(path.read_text("utf-8")), name=str(path))
    except (OSError, ValueError):
        return None
