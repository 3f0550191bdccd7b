"""A trained drafter in a folder: its weights, its shape, and the target that it was trained on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, cast

import mlx.core as mx

from tokalign.errors import (
    BundleError,
    FingerprintError,
    IncompatibleError,
    TokalignError,
    shown_path,
)
from tokalign.names.published_drafters import AUTO, published_for
from tokalign.runtime.mlx.dflash import make_dflash
from tokalign.runtime.mlx.eagle3 import make_eagle3
from tokalign.runtime.mlx.gemma4_assistant import make_assistant
from tokalign.runtime.mlx.mtp import holds_mtp, make_mtp
from tokalign.runtime.mlx.published_drafter import Weights, read_weights
from tokalign.runtime.mlx.recurrent_drafter import make_redrafter
from tokalign.runtime.mlx.trained_drafter import TrainedDrafter
from tokalign.runtime.mlx.weights import content_fingerprint, once_per_model
from tokalign.storage import FileState, file_state
from tokalign.tables.drafter_config import known_format, reading, trained_for
from tokalign.tables.drafter_formats import BLOCK_FORMATS, DrafterFormat
from tokalign.tables.finding import (
    DRAFTER_CONFIG,
    HOW_TO_TRAIN,
    Note,
    drafter_folders,
    read_drafter_json,
)
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import TargetId


class Target(Protocol):
    """A drafter's target, such as a `decoder.LanguageModel`. folder: of its files, if any."""

    @property
    def model(self) -> Any: ...
    @property
    def tokenizer(self) -> Tokenizer[TargetId]: ...
    @property
    def folder(self) -> Path | None: ...


def target_fingerprints(target: Target) -> dict[str, str]:
    """What a drafter belongs to: the target's tokenizer, and its weights in any number format."""
    return {"tokenizer": target.tokenizer.fingerprint, "weights": content_fingerprint(target.model)}


_MAKERS: dict[DrafterFormat, Callable[[Mapping[str, Any], Weights, Any], TrainedDrafter]] = {
    **dict.fromkeys(BLOCK_FORMATS, make_dflash),
    DrafterFormat.EAGLE_3: make_eagle3,
    DrafterFormat.MTP: make_mtp,
    DrafterFormat.GEMMA_4: make_assistant,
    DrafterFormat.REDRAFTER: make_redrafter,
}
"""What makes a published drafter of its `config.json`, its weights, and a loaded target."""


def read_drafter(folder: Path, model: Any) -> TrainedDrafter:
    """The drafter in a folder, of whatever kind, for a loaded model, whose number format it takes.
    Raises: MissingAssetError; BundleError for one that is damaged, or cannot be read or run;
    IncompatibleError for another target, or one whose hidden states cannot be had."""
    config = read_drafter_json(folder)
    make = _MAKERS[known_format(config, str(folder))]
    with reading(str(folder)):
        return make(config, read_weights(folder), model)


def require_target(folder: Path, target: Target) -> None:
    """Raises, where its folder says what a drafter was trained for: FingerprintError for another
    tokenizer; IncompatibleError for a recurrent one of other weights. MissingAssetError and
    BundleError as `read_drafter`."""
    kind = known_format(read_drafter_json(folder), str(folder))
    record = trained_for(folder, kind)
    if (wanted := record.get("tokenizer")) is not None and wanted != target.tokenizer.fingerprint:
        raise FingerprintError(
            f"the drafter in {folder}",
            expected=str(wanted),
            found=target.tokenizer.fingerprint,
            remedy=HOW_TO_TRAIN,
        )
    if kind is not DrafterFormat.REDRAFTER or (wanted := record.get("weights")) is None:
        return
    if wanted != (own := content_fingerprint(target.model)):
        raise IncompatibleError(
            f"the drafter in {folder} was trained on another model with this tokenizer (weights "
            f"{str(wanted)[:12]}, and not {own[:12]}; quantization and adapters count); give its "
            f"own target, or train one with: {HOW_TO_TRAIN}"
        )


@once_per_model
def _loaded(_: Any) -> dict[tuple[Path, FileState | None], TrainedDrafter]:
    """The drafter that was loaded last for a model, by its folder and the state of its config."""
    return {}


def named_drafter(folder: Path, target: Target, *, note: Note = lambda _: None) -> TrainedDrafter:
    """The drafter in a folder as it is now, read once for a model. `note` is told where it is.
    Raises: as `require_target` and `read_drafter`."""
    loaded = _loaded(target.model)
    key = folder.absolute(), file_state(folder / DRAFTER_CONFIG)
    if key not in loaded:
        require_target(folder, target)  # one that does not fit is passed by
        loaded.clear()
        high, low = cast("Any", mx.random.state)[0].tolist()
        try:
            loaded[key] = read_drafter(folder, target.model)
        finally:  # layers draw weights when they are made, but a caller's seed is for the text
            mx.random.seed(high << 32 | low)
    note(f"drafter -> {shown_path(folder)}")
    return loaded[key]


def find_drafter(target: Target, *, note: Note = lambda _: None) -> TrainedDrafter | None:
    """The first drafter of this target in its folder or in those of tables, else the published one
    if it is downloaded, else the MTP layer in its checkpoint; None without one.

    note: told which is used, of one that should fit and does not, and of one to download.
    """
    published = published_for(target.folder)
    downloaded = None if published is None else published.downloaded()
    folders = [*drafter_folders(target.folder), *([downloaded] if downloaded else [])]
    try:
        if target.folder is not None and holds_mtp(target.folder, target.model):
            folders.append(target.folder)
    except BundleError as error:
        note(f"{error}; no MTP layer is looked for")
    for folder in folders:
        try:
            return named_drafter(folder, target, note=note)
        except FingerprintError:
            continue
        except TokalignError as error:
            note(f"{error}; it is not used")
    if published is not None and downloaded is None:
        note(f"published for this target: {published}; drafter {AUTO} downloads and uses it")
    return None
