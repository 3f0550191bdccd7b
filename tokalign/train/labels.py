"""Labels on disk: written once, window by window, and read in any order as often as wanted.

Two plain arrays grow at their ends, and `labels.json` says after which window how many of their
rows are whole. A killed run leaves rows beyond that, which the next one overwrites.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from tokalign.atomic_file import unwritable, write_file
from tokalign.errors import BundleError, IncompatibleError
from tokalign.json_text import parse_json

_HIDDEN, _IDS, _STATE = "hidden.f16", "ids.i32", "labels.json"
_WINDOWS_PER_NOTE = 4


@dataclass(frozen=True, slots=True)
class Labels:
    """hidden: f16[n, H], the target's last hidden states. ids: i32[n, future], what follows."""

    hidden: NDArray[np.float16]
    ids: NDArray[np.int32]


def write_labels(
    folder: Path,
    recipe: Mapping[str, Any],
    windows: Sequence[Any],
    label: Callable[[Any, int], Labels],
    *,
    enough: int | None = None,
) -> Iterator[int]:
    """Label the windows that are not labelled yet; yields the positions of each as it is done.

    recipe: what the labels depend on, as JSON; labels in the folder have to be of an equal one.
    label: gives the labels of a window and its number. enough: positions after which the windows
        that are left are not labelled; None for all windows.
    Raises: IncompatibleError if the folder has labels of another recipe; BundleError if they are
    damaged; UsageError or OutputError if they cannot be written.
    """
    state = _read_state(folder, recipe)
    done = int(state["windows"])
    if done:
        yield int(state["positions"])
    if state.get("complete"):
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _growing(folder / _HIDDEN) as hidden, _growing(folder / _IDS) as ids:
            _cut(folder, state, hidden, ids)
            for number in range(done, len(windows)):
                labels = label(windows[number], number)
                hidden.write(labels.hidden.tobytes())
                ids.write(labels.ids.tobytes())
                state["positions"] += len(labels.ids)
                state["windows"] = number + 1
                state["hidden_size"] = labels.hidden.shape[1]
                state["future"] = labels.ids.shape[1]
                all_done = state["windows"] == len(windows)
                has_enough = enough is not None and state["positions"] >= enough
                state["complete"] = all_done or has_enough
                if state["complete"] or state["windows"] % _WINDOWS_PER_NOTE == 0:
                    for file in (hidden, ids):  # on the disk before anything says so
                        file.flush()
                        os.fsync(file.fileno())
                    write_file(folder / _STATE, json.dumps(state))
                yield len(labels.ids)
                if state["complete"]:
                    break
    except OSError as error:
        raise unwritable(folder, error) from error


def are_complete(folder: Path, recipe: Mapping[str, Any]) -> bool:
    """Whether a folder has all labels of a recipe. Raises: as `write_labels`."""
    return bool(_read_state(folder, recipe).get("complete"))


def open_labels(folder: Path) -> Labels:
    """All labels of a folder, memory-mapped. Raises: BundleError if they are damaged or missing."""
    state = _read_state(folder, None)
    rows = int(state["positions"])
    if not rows:
        raise BundleError(f"there are no labels in {folder}; {_remedy(folder)}")
    hidden, ids = folder / _HIDDEN, folder / _IDS
    shapes = ((rows, int(state["hidden_size"])), (rows, int(state["future"])))
    for path, (_, wide), size in ((hidden, shapes[0], 2), (ids, shapes[1], 4)):
        _require_size(path, rows * wide * size)
        if state.get("complete") and path.stat().st_size != rows * wide * size:
            raise BundleError(f"{path} does not hold rows of {wide} values; {_remedy(folder)}")
    return Labels(
        np.memmap(hidden, np.float16, "r", shape=shapes[0]),
        np.memmap(ids, np.int32, "r", shape=shapes[1]),
    )


def _read_state(folder: Path, recipe: Mapping[str, Any] | None) -> dict[str, Any]:
    """The state of a folder; that of an empty one if it has none."""
    path = folder / _STATE
    if not path.is_file():
        return {"recipe": recipe, "windows": 0, "positions": 0}
    try:
        state = parse_json(path.read_bytes())
        found, whole = state["recipe"], int(state["windows"]) >= 0 <= int(state["positions"])
        if state["positions"]:
            whole = whole and int(state["hidden_size"]) > 0 < int(state["future"])
    except (ValueError, KeyError, TypeError) as error:
        raise BundleError(f"{path} is damaged; {_remedy(folder)}") from error
    if not whole:
        raise BundleError(f"{path} is damaged; {_remedy(folder)}")
    if recipe is not None and found != recipe:
        names = [name for name in {**recipe, **found} if recipe.get(name) != found.get(name)]
        raise IncompatibleError(
            f"the labels in {folder} were made with another {' and another '.join(names)}; "
            f"give the same as then, another --workspace, or remove that folder"
        )
    return dict(state)


def _growing(path: Path) -> BinaryIO:
    path.touch()
    return path.open("r+b")


def _cut(folder: Path, state: Mapping[str, Any], hidden: BinaryIO, ids: BinaryIO) -> None:
    """Let the files end after the rows that are known to be whole, and go on from there."""
    rows = int(state["positions"])
    for file, name, per_row in (
        (hidden, _HIDDEN, 2 * int(state.get("hidden_size", 0))),
        (ids, _IDS, 4 * int(state.get("future", 0))),
    ):
        _require_size(folder / name, rows * per_row)
        file.truncate(rows * per_row)
        file.seek(0, 2)


def _require_size(path: Path, least: int) -> None:
    if not path.is_file() or path.stat().st_size < least:
        raise BundleError(f"{path} is shorter than it was; {_remedy(path.parent)}")


def _remedy(folder: Path) -> str:
    return f"remove {folder}, and label the corpus again with: tokalign train"
