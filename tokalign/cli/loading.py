"""Loading a pair with its tables, for commands that run more than one method."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokalign.cost.curve import Machine
    from tokalign.runtime.decoder import Decoder
    from tokalign.tables.alignment import Alignment
    from tokalign.tokenizer.tokenizer import Tokenizer
    from tokalign.tokenizer.vocabulary import DraftId, TargetId


def pair_tables(
    target: Tokenizer[TargetId],
    draft: Tokenizer[DraftId],
    *,
    beside: Path,
    file: Path | None = None,
    note: Callable[[str], None],
) -> Callable[[], Alignment]:
    """Gives the tables of a pair, opened or computed when they are first asked for.

    beside: a model's folder, looked through first. Arguments otherwise as `lookup.open_alignment`.
    """

    def opened() -> Alignment:
        from tokalign.build.alignment.alignment_bundle import align
        from tokalign.tables.opening import open_alignment

        return open_alignment(target, draft, otherwise=align, file=file, beside=beside, note=note)

    return cache(opened)


def keep_loaded() -> None:
    """Spare the garbage collector what is loaded by now and stays until the command ends.

    Else it walks the vocabularies, a million objects, in the middle of some round: of 300 rounds
    the slowest took 3 ms of the host instead of 2.
    """
    gc.freeze()


def choose_dtype(asked: str | None, *, note: Callable[[str], None]) -> str | None:
    """Return the number format to load weights in; `note` is told if the device decides it."""
    from tokalign.runtime.mlx.weights import default_dtype

    chosen = asked or default_dtype()
    if chosen != asked:
        note(f"weights are converted to {chosen}, the default on a CPU; --dtype chooses another")
    return chosen


@dataclass(frozen=True, slots=True)
class LoadedPair:
    """A decoder with everything that any method needs, of which it has no method yet.

    folders: of the target, and of the draft model if there is one. machine: what a cost curve of
    the two holds for.
    """

    decoder: Decoder
    folders: tuple[Path, ...]
    machine: Machine


def load_pair(
    target_name: str,
    draft_name: str | None,
    *,
    sampling: Mapping[str, Any],
    dtype: str | None,
    dictionary: Path | None,
    alignment: Path | None,
    note: Callable[[str], None],
) -> LoadedPair:
    """Find and load models and tables; `note` is told which ones.

    sampling: fields of `Sampling`. dictionary, alignment: files; found or computed otherwise.
    Raises: MissingAssetError and other kinds of TokalignError.
    """
    from tokalign.runtime.decoder import Decoder, LanguageModel
    from tokalign.runtime.drafting import Drafting
    from tokalign.runtime.methods import choose_translation
    from tokalign.runtime.mlx.machine import machine_of
    from tokalign.runtime.mlx.sampling import Sampling
    from tokalign.tables.opening import open_dictionary
    from tokalign.tokenizer.registry import resolve_model

    places = [resolve_model(name) for name in (target_name, draft_name) if name is not None]
    for place in places:
        note(place.description)
    models = [LanguageModel.from_folder(place.folder, dtype=dtype) for place in places]
    target, draft = models[0], models[1] if len(models) > 1 else None
    beside = places[0].folder
    drafting = Drafting(
        dictionary=open_dictionary(target.tokenizer, file=dictionary, beside=beside, note=note)
    )
    if draft is not None:
        drafting = replace(
            drafting,
            translation=choose_translation(None, target.tokenizer, draft.tokenizer),
            alignment=pair_tables(
                target.tokenizer, draft.tokenizer, beside=beside, file=alignment, note=note
            ),
        )
    keep_loaded()
    return LoadedPair(
        Decoder(target=target, draft=draft, drafting=drafting, sampler=Sampling(**sampling)),
        tuple(place.folder for place in places),
        machine_of(target.model, draft and draft.model),
    )
