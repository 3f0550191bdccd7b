"""The recurrent drafter of a loaded target: named by the user, or found as tables are.

It stays loaded as long as its target does: the next decoder of the same model gets the same object,
and with it what was learned about it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokalign.arguments import shown_path
from tokalign.errors import TokalignError
from tokalign.runtime.mlx.drafter_folder import load_drafter
from tokalign.runtime.mlx.hidden_state import HiddenStates
from tokalign.runtime.mlx.recurrent_drafter import RecurrentDrafter
from tokalign.tables.drafter_files import read_drafter_config
from tokalign.tables.finding import Note, drafter_folders

if TYPE_CHECKING:
    from tokalign.runtime.decoder import LanguageModel
    from tokalign.tokenizer.vocabulary import TargetId

_LOADED = "_tokalign_drafter"


def named_drafter(
    folder: Path, target: LanguageModel[TargetId], *, note: Note = lambda _: None
) -> RecurrentDrafter:
    """The drafter in a folder. `note` is told where it is.

    Raises: as `load_drafter`; IncompatibleError for a target whose hidden states cannot be had.
    """
    HiddenStates(target.model)
    drafter = _loaded(folder, target)
    note(f"drafter -> {shown_path(folder)}")
    return drafter


def find_drafter(
    target: LanguageModel[TargetId], *, note: Note = lambda _: None
) -> RecurrentDrafter | None:
    """The first drafter of this target in its folder or in those of tables; None without one.

    One of another tokenizer is passed over. `note` is told which is used, and of one that should
    fit and does not.
    """
    for folder in drafter_folders(target.folder):
        try:
            made_for = read_drafter_config(folder)["target"]
            if made_for.get("tokenizer") == target.tokenizer.fingerprint:
                return named_drafter(folder, target, note=note)
        except TokalignError as error:
            note(f"{error}; it is not used")
    return None


def _loaded(folder: Path, target: LanguageModel[TargetId]) -> RecurrentDrafter:
    """The drafter in a folder as it is now; it is read once for a model."""
    state = folder.absolute(), read_drafter_config(folder)["sha256"]
    known: Any = vars(target.model).get(_LOADED)
    if known is None or known[0] != state:
        known = state, load_drafter(folder, target)
        vars(target.model)[_LOADED] = known
    drafter: RecurrentDrafter = known[1]
    return drafter
