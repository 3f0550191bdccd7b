"""Finding the tables that fit a tokenizer: by its fingerprint, not by its name.

Folders are searched in this order, each with the folders in it: the model's own; $TOKALIGN_TABLES;
the user's data folder, where `tokalign build` writes; what `tokalign learn` made of the user's
documents; the tables that come with tokalign. After $TOKALIGN_TABLES and the user's data folder
come the tables that `tokalign tables pull` put there. Dictionaries that were compiled of packs come
after all these: what somebody built, pulled or learned takes their place. Last are dictionaries of
the small texts that come with tokalign, which `tokalign build` counts without FILEs.

Trained drafters are found in the same places, each a folder of its own; its `config.json` says what
it is. `runtime/mlx/drafter_folder.py` loads them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from platformdirs import user_data_path

from tokalign.errors import BundleError, MissingAssetError, UsageError
from tokalign.names.hub import missing_from_drafter, weights_files
from tokalign.names.memory import is_cut_short
from tokalign.storage import TABLES, FileState, as_path, file_state, listed, parse_json, shipped
from tokalign.tables.bundle import read_header
from tokalign.tables.header import Header

Note = Callable[[str], None]
"""Receives one line that says what was found, or what is done instead."""


class Detail(str):
    """A line that only says where something was found; `decode` and `chat` show it on request."""


def no_note(_line: str) -> None:
    """A `note` that does nothing."""


def table_folder() -> Path:
    """Where `tokalign build` writes by default: $TOKALIGN_TABLES, else the user's data folder.
    Raises: UsageError if the former is a file."""
    return _own_folders()[0]


def compiled_folder(target: str) -> Path:
    """Where dictionaries that were compiled of packs are. target: fingerprint of the tokenizer."""
    return table_folder() / target[:16]


def pulled_folder() -> Path:
    """Where `tokalign tables pull` writes: in the table folder, searched after all else in it."""
    return table_folder() / _PULLED


def learned_folder() -> Path:
    """Where `tokalign learn` keeps its tables, whatever $TOKALIGN_TABLES is: that may be shared."""
    return _user_data() / "learned"


def table_files(folder: Path, kind: str) -> list[Path]:
    """The files in a folder, and in the folders in it, that are tables by their names."""
    return listed(folder, f"*.{kind}.tok", f"*/*.{kind}.tok")


def find_tables(
    kind: str,
    *,
    target: str | None = None,
    draft: str | None = None,
    model_folder: Path | None = None,
    note: Note = no_note,
) -> list[tuple[Path, Header]]:
    """The tables of `kind` with exactly these fingerprints, in the order above.

    target, draft: None for a kind that has none; a pack has neither. model_folder: the model's own.
    A damaged file is left out with a note. Only headers are read, and only of files that have
    changed.
    """
    roles = {"target": target, "draft": draft}
    wanted = {role: fingerprint for role, fingerprint in roles.items() if fingerprint is not None}
    compiled = None if target is None else compiled_folder(target).name
    found = list[tuple[Path, Header]]()
    for path in (path for folder in _folders(model_folder) for path in table_files(folder, kind)):
        try:
            header = _header(path, file_state(path))
        except (BundleError, MissingAssetError) as error:
            note(f"{error}; it is not used")
            continue
        if header.kind == kind and dict(header.fingerprints) == wanted:
            found.append((path, header))
    return sorted(found, key=lambda of: (of[1].is_of_sample, of[0].parent.name == compiled))


def packs_to_compile(
    target: str, packs: Mapping[str, Path], model_folder: Path | None = None
) -> dict[str, Path]:
    """Those of the packs, by language, that are worth compiling for a tokenizer: it has no
    dictionary of the language but a sample's, one that `learn` made and called so, or one that was
    compiled of another pack, as an older tokalign has, before this one was there."""
    left, compiled, learned = dict(packs), compiled_folder(target).name, learned_folder()
    for path, header in find_tables("dictionary", target=target, model_folder=model_folder):
        pack = left.get(header.language)
        is_known = not header.is_of_sample and learned not in path.parents
        if pack is not None and path.parent.name == compiled:
            # When the pack came to this machine, whatever time its archive or image has kept.
            is_newer = pack.stat().st_ctime > path.stat().st_mtime
            is_known = not is_newer or read_header(pack).corpus == header.corpus
        if is_known:
            left.pop(header.language, None)
    return left


def same_dictionaries(path: Path) -> list[Path]:
    """The dictionaries in the folders that are searched of the tokenizer, language and file name of
    this table, of which the first is used; nothing if it is no dictionary. Raises: as
    `read_header`."""
    header = _header(path, file_state(path))
    if header.kind != "dictionary":
        return []
    found = find_tables("dictionary", target=header.fingerprints.get("target"))
    same = header.language, path.name
    return [other for other, of in found if (of.language, other.name) == same]


def find_packs(*, model_folder: Path | None = None, note: Note = no_note) -> dict[str, Path]:
    """The pack of each language, the first that is found. As `find_tables`."""
    packs = dict[str, Path]()
    for path, header in find_tables("pack", model_folder=model_folder, note=note):
        packs.setdefault(header.language, path)
    return packs


@lru_cache(maxsize=512)
def _header(path: Path, _state: FileState | None) -> Header:
    """The header of a file in this state."""
    return read_header(path)


def drafter_folders(model_folder: Path | None) -> Iterator[Path]:
    """Folders that hold drafters by their names, in the order of the folders."""
    for folder in _folders(model_folder):
        yield from drafters_in(folder)


def drafters_in(folder: Path) -> Iterator[Path]:
    """The folders in a folder, and in the folders in it, called `drafter` or NAME.drafter."""
    return filter(Path.is_dir, listed(folder, "drafter", "*.drafter", "*/drafter", "*/*.drafter"))


DRAFTER_PATTERNS = ("*drafter/*.json", "*drafter/*.safetensors", "*drafter/*.md")
"""The files of drafters in a repository."""

_PULLED = "pulled"


def _folders(model_folder: Path | None) -> Iterable[Path]:
    theirs = [inner for folder in _own_folders() for inner in (folder, folder / _PULLED)]
    before = [] if model_folder is None else [model_folder]
    return dict.fromkeys([*before, *theirs, learned_folder(), shipped(TABLES)])


def _own_folders() -> list[Path]:
    default = _user_data() / "tables"
    if not (name := os.environ.get("TOKALIGN_TABLES")):
        return [default]
    named = as_path(name)
    if os.path.isfile(named):  # false for a name that is too long, where Path raises
        raise UsageError(f"TOKALIGN_TABLES names a file, {name}; name a folder, or unset it")
    return [named, default]


def _user_data() -> Path:
    return user_data_path("tokalign", appauthor=False)


# -- the folder of a drafter -----------------------------------------------------------------------

DRAFTER_CONFIG = "config.json"

TRAINING_RECORD = "training.json"
"""How a drafter or a draft model was trained, and for which target."""

HOW_TO_TRAIN = "tokalign train"


def read_drafter_json(folder: Path) -> dict[str, Any]:
    """The configuration of a drafter in any format. Raises: MissingAssetError, BundleError."""
    path = folder / DRAFTER_CONFIG
    if not path.is_file():
        raise MissingAssetError(f"there is no drafter in {folder}; train one with: {HOW_TO_TRAIN}")
    try:
        config = parse_json(path.read_bytes())
    except (OSError, ValueError) as error:
        remedy = f"fetch it again, or train one with: {HOW_TO_TRAIN}"
        raise BundleError(f"{path} cannot be read: {error}; {remedy}") from error
    if not isinstance(config, dict):
        raise BundleError(f"{path} is no object; give the folder of a drafter")
    return config


def drafter_weights(folder: Path) -> list[Path]:
    """The weights files of a drafter in any format, without what an older version has left. Raises:
    BundleError if some are not there, or are cut short."""
    if missing := missing_from_drafter(folder):
        raise BundleError(f"{folder} lacks {', '.join(missing)}; fetch a version that has them")
    own = weights_files(folder)
    found = listed(folder, "*.safetensors", "mtp/*.safetensors")
    files = [path for path in found if path.name in own or not path.name.startswith("model")]
    if cut := next(filter(is_cut_short, files), None):
        raise BundleError(f"{cut} is cut short; fetch it again")
    return files
