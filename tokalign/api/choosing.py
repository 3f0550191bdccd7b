"""What two tokenizers decide: the method, the translation and the tables. No model is loaded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any

from tokalign.runtime.drafting import Drafting, no_alignment
from tokalign.runtime.options import AUTO, DraftingOptions, choose_method, several
from tokalign.tables.alignment import Alignment
from tokalign.tables.bundle import read_header
from tokalign.tables.finding import Note, no_note
from tokalign.tables.opening import open_alignment, open_dictionary, open_logit_rows
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import DraftId, TargetId


def fail_early(options: DraftingOptions, *, with_model: bool) -> None:
    """Refuse what will fail before any model is loaded. Raises: UsageError, BundleError,
    MissingAssetError."""
    choose_method(options.method, draft=with_model, dictionary=True, drafter=True)
    for file in (*options.dictionaries, *several(options.alignment)):
        read_header(Path(file))


def choose_drafting(
    target: Tokenizer[TargetId],
    draft: Tokenizer[DraftId] | None,
    options: DraftingOptions,
    *,
    with_drafter: bool = False,
    model_folder: Path | None = None,
    background: bool = False,
    note: Note = no_note,
) -> Drafting:
    """The method, the translation and the tables for two tokenizers. Raises: UsageError,
    MissingAssetError, BundleError, FingerprintError. background: as in `assemble`."""
    packs = grown = dictionary = None
    if options.uses_dictionary:
        opened = partial(
            open_dictionary,
            target,
            files=options.dictionaries,
            languages=options.languages,
            model_folder=model_folder,
            note=note,
        )
        if options.languages or not options.dictionaries:
            from tokalign.build.installed_packs import InstalledPacks

            packs = InstalledPacks(
                target, opened, model_folder=model_folder, waits=not background, note=note
            )
            packs.compile(options.languages)
        dictionary = opened() if packs is None else packs.open()
    if packs is not None and packs.can_grow and not options.languages:
        grown = packs.for_prompt
    method = choose_method(
        options.method,
        draft=draft is not None,
        dictionary=dictionary is not None or grown is not None,
        drafter=with_drafter,
    )
    translation, alignment = "none", no_alignment
    if draft is not None:
        default = "none" if target.fingerprint == draft.fingerprint else "exact"
        translation = options.translation or default
        file = None if options.alignment is None else Path(options.alignment)
        alignment = pair_tables(target, draft, file=file, model_folder=model_folder, note=note)
    drafting = Drafting(
        options=replace(options, method=method, translation=translation),
        dictionary=dictionary,
        packs=grown,
        alignment=alignment,
    )
    if drafting.uses_logits:
        rows = open_logit_rows(
            target, languages=options.languages, model_folder=model_folder, note=note
        )
        drafting = replace(drafting, known_rows=rows)
    if options.method == AUTO:
        note(_explanation(drafting, with_model=draft is not None, with_drafter=with_drafter))
    return drafting


def pair_tables(
    target: Tokenizer[TargetId],
    draft: Tokenizer[DraftId],
    *,
    file: Path | None = None,
    model_folder: Path | None = None,
    note: Note = no_note,
) -> Callable[[], Alignment]:
    """A function that opens the alignment of a pair, or computes it once per process."""
    how: dict[str, Any] = {"file": file, "model_folder": model_folder, "note": note}
    how["otherwise"] = lambda *_: _aligned(draft, target)
    return cache(partial(open_alignment, target, draft, **how))


@lru_cache(maxsize=8)
def _aligned(draft: Tokenizer[DraftId], target: Tokenizer[TargetId]) -> Alignment:
    from tokalign.build.alignment import align

    return align(draft.vocabulary, target.vocabulary)


def _explanation(drafting: Drafting, *, with_model: bool, with_drafter: bool) -> str:
    sources, missing = ["context copy"], []
    if (dictionary := drafting.dictionary) is not None:
        sources += dictionary.by_source
    elif drafting.packs is not None:
        sources.append("a dictionary of the prompt's language, if there is a pack of it")
    else:
        missing.append(
            "no dictionary is in use (tokalign build makes one, tokalign tables pull NAME fetches "
            "some)"
        )
    if with_model:
        sources.append(f"draft model, translation {drafting.options.translation}")
    if with_drafter:
        sources.append("trained drafter")
    if not (with_model or with_drafter):
        missing.append("no draft model is given")
    return "; ".join([f"guesses come from {', '.join(sources)}", *missing])
