"""Assembling a decoder: names or loaded models and options in, a `Decoder` with its tables out.

The command line, the server and the Python API assemble their decoders here, so equal options give
equal decoders. What two tokenizers decide is in `choosing.py`. `note` gets a line for each thing
that was found. mlx is imported when a model is loaded, not before.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tokalign.api.choosing import choose_drafting, fail_early
from tokalign.names.memory import require_bytes, weights_bytes
from tokalign.names.published_drafters import named_or_published
from tokalign.names.registry import resolve_model
from tokalign.runtime.options import ALL_ENDS, AUTO, CacheOptions, DraftingOptions
from tokalign.tables.finding import Detail, Note, no_note
from tokalign.tokenizer.spec import Level
from tokalign.tokenizer.vocabulary import DraftId, TargetId

if TYPE_CHECKING:
    from tokalign.runtime.decoder import Decoder, LanguageModel
    from tokalign.runtime.mlx.trained_drafter import TrainedDrafter

T = TypeVar("T")

LOADING = ("dtype", "adapter", "trust_remote_code", "ends", "extra_eos_token")
"""Keywords of `load_models`."""


# -- models ----------------------------------------------------------------------------------------


def choose_dtype(dtype: str | None, *, note: Note = no_note) -> str | None:
    """The weights' number format: `dtype`, else this device's; None leaves them as they are."""
    from tokalign.runtime.mlx.weights import default_dtype

    chosen = dtype or default_dtype()
    if chosen != dtype:
        note(Detail(f"weights in {chosen}, the default here"))
    return chosen


def load_models(
    names: Sequence[str],
    *,
    dtype: str | None = None,
    adapter: Path | None = None,
    trust_remote_code: bool = False,
    ends: str = ALL_ENDS,
    extra_eos_token: Sequence[str] = (),
    note: Note = no_note,
) -> list[LanguageModel[Any]]:
    """Load models by their names, the target first; all are found before one is loaded.

    dtype: as in `choose_dtype`. adapter: laid over the target. extra_eos_token: further tokens that
    end the target's output. Raises: as `resolve_model`, `LanguageModel.from_folder` and
    `tokens_that_stop`.
    """
    from tokalign.runtime.decoder import LanguageModel, tokens_that_stop

    places = [resolve_model(name) for name in names]
    for place in places:
        note(Detail(place.description))
    dtype = choose_dtype(dtype, note=note)
    require_bytes(sum(weights_bytes(place.folder, dtype=dtype) for place in places))
    models: list[LanguageModel[Any]] = [
        replace(
            LanguageModel.from_folder(
                place.folder,
                dtype=dtype,
                adapter=None if index else adapter,
                trust_remote_code=trust_remote_code,
                ends=ends,
            ),
            name=place.source or str(Path(place.name).resolve()),
        )
        for index, place in enumerate(places)
    ]
    extra = tokens_that_stop(models[0].tokenizer, extra_eos_token)
    return [replace(models[0], stop_ids=models[0].stop_ids | extra), *models[1:]]


def keep_loaded() -> None:
    """Exempt all that is loaded from garbage collection, which would add 1 ms to some round."""
    gc.freeze()


def let_go() -> None:
    """Give back the memory of models that nothing uses any more. A recurrent drafter leads back to
    itself, so only garbage collection frees it, and with it the target's embedding and head."""
    import mlx.core as mx

    gc.unfreeze()
    gc.collect()
    mx.clear_cache()


# -- decoders --------------------------------------------------------------------------------------


def load_decoder(
    target: str, draft: str | None, options: DraftingOptions, *, note: Note = no_note, **how: Any
) -> Decoder:
    """Load two models by their names and assemble a decoder. A draft model that the method does not
    use is not loaded. how: further keywords of `load_models` and `assemble`. Raises: as both."""
    fail_early(options, with_model=draft is not None)
    draft = _used_draft(draft, options, note)
    if options.drafter is not None and options.uses_drafter:
        options = replace(options, drafter=named_or_published(str(options.drafter), target))
    loading = {name: how.pop(name) for name in LOADING if name in how}
    names = [target] if draft is None else [target, draft]
    ours, *theirs = load_models(names, note=note, **loading)
    return assemble(ours, theirs[0] if theirs else None, options, note=note, **how)


def assemble(
    target: LanguageModel[TargetId],
    draft: LanguageModel[DraftId] | None,
    options: DraftingOptions,
    *,
    cache: CacheOptions | None = None,
    before_costs: Callable[[Any, Any, Any], object] = lambda _target, _drafts, _ids: None,
    background: bool = False,
    note: Note = no_note,
) -> Decoder:
    """A decoder of loaded models with the tables that the options ask for.

    background: whether packs of languages that prompts turn out to be in are compiled while
    decoding goes on.
    before_costs: called with the target, what drafts and the ids that its head is shortened to,
    unless no decision depends on costs.
    All decoders of a process share what the controller learns of two models.
    Raises: as `choose_drafting`; CacheError for a draft model whose cache cannot be quantized.
    """
    from tokalign.runtime.decoder import Decoder
    from tokalign.runtime.draft.opening_knowledge import shared_knowledge
    from tokalign.runtime.mlx.weights import content_fingerprint, vocabulary_size
    from tokalign.runtime.remembered import RememberedStore, open_remembered

    if problem := _unrewindable("target", target, options):
        note(f"{problem}: it decodes plainly")
        options, draft = DraftingOptions(method="plain"), None
    draft = _used_draft(draft, options, note)
    if draft is not None and (problem := _why_unusable(target, draft, options)):
        note(f"{problem}: the draft model is not used")
        draft = None
    drafter = _open_drafter(target, options, note, finds=draft is None)
    drafting = choose_drafting(
        target.tokenizer,
        None if draft is None else draft.tokenizer,
        options,
        with_drafter=drafter is not None,
        model_folder=target.folder,
        background=background,
        note=note,
    )
    if options.remember and drafting.uses_logits:
        size, known = vocabulary_size(target.model), drafting.known_rows
        store = open_remembered(
            content_fingerprint(target.model),
            target.tokenizer.fingerprint,
            size,
            known=None if known is None else known.within(size),
            note=note,
        )
        drafting = replace(drafting, logits=store)
        if isinstance(store, RememberedStore):
            drafting = replace(drafting, mixing=store.mixing)
    decoder = Decoder(
        target=target,
        draft=draft,
        drafter=drafter,
        drafting=drafting,
        cache=cache or CacheOptions(),
    )
    if options.chooses_lengths:
        models, heads = decoder.drafting_models, decoder.heads
        for model, ids in zip(models, heads, strict=True) if models else ((None, None),):
            before_costs(target.model, model, ids)
        knowledge = shared_knowledge(target.model, *models, heads=heads, note=note)
        decoder = replace(decoder, drafting=replace(decoder.drafting, knowledge=knowledge))
    # Whether and when a draft model is asked hangs on the clock, so its cache is tried here.
    require_quantizable(decoder, Decoder.open_draft)
    return decoder


def require_quantizable(decoder: Decoder, open_session: Callable[[Decoder], Any]) -> None:
    """Raises: CacheError unless a pass with a quantized cache succeeds, where one is asked for."""
    import mlx.core as mx

    if decoder.cache.kv_bits is None:
        return
    session = open_session(replace(decoder, cache=replace(decoder.cache, quantized_kv_start=0)))
    if session is not None:
        mx.eval(session.logits([0] * 3, last=1))


def _used_draft(draft: T | None, options: DraftingOptions, note: Note) -> T | None:
    if draft is None or options.uses_model:
        return draft
    note(f"method {options.method} drafts without a model: the draft model is not used")
    return None


def _why_unusable(
    target: LanguageModel[TargetId], draft: LanguageModel[DraftId], options: DraftingOptions
) -> str | None:
    """Why a draft model cannot be used: its cache, or a tokenizer that is used by its ids only.
    Raises: IncompatibleError where the draft model or its translation was asked for by name."""
    ours, theirs = target.tokenizer, draft.tokenizer
    if problem := _unrewindable("draft model", draft, options):
        return problem
    if options.translation == "none" or ours.fingerprint == theirs.fingerprint:
        return None
    for name, tokenizer in (("target", ours), ("draft model", theirs)):
        if tokenizer.level is Level.IDS_ONLY:
            if options.method != AUTO or options.translation is not None:
                tokenizer.require(Level.BY_TEXT)
            why = tokenizer.spec.why
            return f"the tokenizers differ, and the {name}'s is used by its ids only ({why})"
    return None


def _unrewindable(name: str, model: LanguageModel[Any], options: DraftingOptions) -> str | None:
    """Why method auto cannot draft with a model's cache; with others, a session's error says it."""
    from tokalign.runtime.mlx.cache import kinds_without_rewinding

    if options.method != AUTO or not (kinds := kinds_without_rewinding(model.model)):
        return None
    context = f"the {name} keeps its context in {', '.join(kinds)}"
    return f"{context}, which cannot be rewound after a rejected guess"


def _open_drafter(
    target: LanguageModel[TargetId], options: DraftingOptions, note: Note, *, finds: bool
) -> TrainedDrafter | None:
    """The trained drafter that is named or, where one `finds` it, is there. Raises: as
    `named_drafter`."""
    from tokalign.runtime.mlx.drafter_folder import find_drafter, named_drafter

    if options.drafter is not None and not options.uses_drafter:
        note(f"method {options.method} drafts without it: the drafter is not used")
    if not options.uses_drafter:
        return None
    if options.drafter is not None:
        folder = named_or_published(str(options.drafter), target.folder)
        return named_drafter(folder, target, note=note)
    return find_drafter(target, note=note) if finds else None
