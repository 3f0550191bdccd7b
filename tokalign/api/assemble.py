"""Assembling a decoder: names or loaded models and options in, a `Decoder` with its tables out.

The command line and the Python API assemble their decoders here, so that equal options give equal
decoders. What two tokenizers decide is in `choosing.py`. What was found is told to `note`, one line
at a time. mlx is imported when a model is loaded, not before.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tokalign.api.choosing import choose_drafting, fail_early
from tokalign.errors import UsageError
from tokalign.names.registry import resolve_model
from tokalign.runtime.options import ALL_ENDS, AUTO, CacheOptions, DraftingOptions
from tokalign.tables.finding import Note, no_note
from tokalign.tokenizer.spec import Level
from tokalign.tokenizer.vocabulary import DraftId, TargetId

if TYPE_CHECKING:
    from tokalign.runtime.decoder import Decoder, LanguageModel
    from tokalign.runtime.draft.context_copy import SuffixAutomaton
    from tokalign.runtime.draft.lookup import LogitStore
    from tokalign.runtime.mlx.recurrent_drafter import RecurrentDrafter
    from tokalign.runtime.mlx.sampling import Sampler

T = TypeVar("T")

BeforeCosts = Callable[[Any, Any], object]
"""What is called with two mlx models before the costs of their passes are looked up."""


# -- models ----------------------------------------------------------------------------------------


def choose_dtype(asked: str | None, *, note: Note = no_note) -> str | None:
    """The number format to load weights in: as asked, else by device; None leaves them as they are.

    `note` is told if the device decides.
    """
    from tokalign.runtime.mlx.weights import default_dtype

    chosen = asked or default_dtype()
    if chosen != asked:
        note(f"weights in {chosen}, the default on this device; --dtype chooses another format")
    return chosen


def load_models(
    names: Sequence[str],
    *,
    dtype: str | None = None,
    adapter: Path | None = None,
    trust_remote_code: bool = False,
    ends: str = ALL_ENDS,
    note: Note = no_note,
) -> list[LanguageModel[Any]]:
    """Load the models that `names` stand for; `note` is told where each was found.

    dtype: as asked in `choose_dtype`. adapter: laid over the first model. trust_remote_code, ends:
    as in `LanguageModel.from_folder`, for all of them. All models are found before the first one is
    loaded.
    Raises: as `resolve_model` and `LanguageModel.from_folder`.
    """
    from tokalign.runtime.decoder import LanguageModel

    places = [resolve_model(name) for name in names]
    for place in places:
        note(place.description)
    dtype = choose_dtype(dtype, note=note)
    adapters = [adapter, *[None] * len(places)]
    return [
        LanguageModel.from_folder(
            place.folder,
            dtype=dtype,
            adapter=over,
            trust_remote_code=trust_remote_code,
            ends=ends,
        )
        for place, over in zip(places, adapters, strict=False)
    ]


def keep_loaded() -> None:
    """Exempt everything loaded so far from garbage collection, for commands that keep it anyway.

    Otherwise a collection walks the vocabularies, a million objects, during some round: of 300
    rounds the slowest took 3 ms of host time instead of 2.
    """
    gc.freeze()


# -- decoders --------------------------------------------------------------------------------------


def load_decoder(
    target: str,
    draft: str | None,
    options: DraftingOptions,
    *,
    dtype: str | None = None,
    adapter: Path | None = None,
    trust_remote_code: bool = False,
    ends: str = ALL_ENDS,
    sampler: Sampler | None = None,
    cache: CacheOptions | None = None,
    before_costs: BeforeCosts = lambda _target, _drafts: None,
    background: bool = False,
    note: Note = no_note,
) -> Decoder:
    """Load the models that two names stand for and assemble a decoder from them.

    A draft model that the method does not use is not loaded. dtype, adapter, trust_remote_code,
    ends: as in `load_models`. The rest is as in `assemble`. Raises: as both.
    """
    fail_early(options, with_model=draft is not None)
    draft = _used_draft(draft, options, note)
    ours, *theirs = load_models(
        [target, *([] if draft is None else [draft])],
        dtype=dtype,
        adapter=adapter,
        trust_remote_code=trust_remote_code,
        ends=ends,
        note=note,
    )
    return assemble(
        ours,
        theirs[0] if theirs else None,
        options,
        sampler=sampler,
        cache=cache,
        before_costs=before_costs,
        background=background,
        note=note,
    )


def assemble(
    target: LanguageModel[TargetId],
    draft: LanguageModel[DraftId] | None,
    options: DraftingOptions,
    *,
    sampler: Sampler | None = None,
    cache: CacheOptions | None = None,
    outputs: Sequence[SuffixAutomaton] = (),
    logits: LogitStore | None = None,
    before_costs: BeforeCosts = lambda _target, _drafts: None,
    background: bool = False,
    note: Note = no_note,
) -> Decoder:
    """A decoder of loaded models with the tables that the options ask for.

    sampler: greedy by default. outputs, logits: as in `Drafting`. background: whether packs of
    languages that prompts turn out to be in are compiled while decoding goes on.
    before_costs: called with the target and with the draft model or recurrent drafter that is used
    (None without one), as mlx models, before the costs of their passes are looked up; not called
    where no decision depends on these costs.
    What the planner learns of two models is shared by all decoders of a process.
    Raises: as `choose_drafting`.
    """
    from tokalign.runtime.decoder import Decoder
    from tokalign.runtime.draft.opening_knowledge import shared_knowledge
    from tokalign.runtime.mlx.sampling import Sampling
    from tokalign.runtime.mlx.weights import content_fingerprint, vocabulary_size
    from tokalign.runtime.remembered import RememberedStore, open_remembered

    options, draft = _what_caches_allow(target, draft, options, note)
    draft = _readable_draft(target, _used_draft(draft, options, note), options, note)
    drafter = _open_drafter(target, draft is not None, options, note)
    drafting = choose_drafting(
        target.tokenizer,
        None if draft is None else draft.tokenizer,
        options,
        with_drafter=drafter is not None,
        model_folder=target.folder,
        background=background,
        note=note,
    )
    size = vocabulary_size(target.model)
    model = drafter if draft is None else draft.model
    if options.chooses_lengths:
        before_costs(target.model, model)
        knowledge = shared_knowledge(target.model, model, note=note)
        drafting = replace(drafting, knowledge=knowledge)
    if options.remember and drafting.uses_logits:
        logits = open_remembered(
            content_fingerprint(target.model),
            target.tokenizer.fingerprint,
            size,
            known=None if drafting.known_rows is None else drafting.known_rows.within(size),
            note=note,
        )
        if isinstance(logits, RememberedStore):
            drafting = replace(drafting, mixing=logits.mixing)
    return Decoder(
        target=target,
        draft=draft,
        drafter=drafter,
        drafting=replace(drafting, outputs=outputs, logits=logits),
        sampler=sampler or Sampling(),
        cache=cache or CacheOptions(),
    )


def _used_draft(draft: T | None, options: DraftingOptions, note: Note) -> T | None:
    """The draft model, or its name, if the method uses one; `note` is told if it does not."""
    if draft is None or options.uses_model:
        return draft
    note(f"method {options.method} drafts without a model: the draft model is not used")
    return None


def _readable_draft(
    target: LanguageModel[TargetId],
    draft: LanguageModel[DraftId] | None,
    options: DraftingOptions,
    note: Note,
) -> LanguageModel[DraftId] | None:
    """The draft model, unless a tokenizer is used by its ids only; `note` is told.

    Raises: IncompatibleError where the draft model or its translation was asked for by name.
    """
    if draft is None or options.translation == "none":
        return draft
    ours, theirs = target.tokenizer, draft.tokenizer
    if ours.fingerprint == theirs.fingerprint:
        return draft
    for name, one in (("target", ours), ("draft model", theirs)):
        if one.level is Level.IDS_ONLY:
            if options.method != AUTO or options.translation is not None:
                one.require(Level.BY_TEXT)
            note(
                f"the tokenizer of the {name} is used by its ids only ({one.spec.why}): the draft "
                "model, which has another tokenizer, is not used"
            )
            return None
    return draft


def _what_caches_allow(
    target: LanguageModel[TargetId],
    draft: LanguageModel[DraftId] | None,
    options: DraftingOptions,
    note: Note,
) -> tuple[DraftingOptions, LanguageModel[DraftId] | None]:
    """The options and the draft model, without what needs a cache that cannot be rewound.

    Only method auto leaves something out, and `note` is told. Any other method is left as it is:
    opening the session is the error then.
    """
    from tokalign.runtime.mlx.cache import kinds_without_rewinding

    if options.method != AUTO:
        return options, draft
    cannot = "keeps its context in {}, which cannot be rewound after a rejected guess: {}"
    if kinds := kinds_without_rewinding(target.model):
        note(f"the target {cannot.format(', '.join(kinds), 'it decodes plainly')}")
        return DraftingOptions(method="plain"), None
    if draft is not None and (kinds := kinds_without_rewinding(draft.model)):
        note(f"the draft model {cannot.format(', '.join(kinds), 'it is not used')}")
        draft = None
    return options, draft


def _open_drafter(
    target: LanguageModel[TargetId], with_model: bool, options: DraftingOptions, note: Note
) -> RecurrentDrafter | None:
    """The recurrent drafter that is named or, without a draft model, found.

    Raises: UsageError if there is a draft model besides; as `named_drafter`.
    """
    from tokalign.runtime.mlx.drafter_folder import find_drafter, named_drafter

    if options.drafter is not None and with_model:
        raise UsageError(
            "--drafter and --draft exclude each other: one of them drafts in a round; leave one out"
        )
    if options.drafter is not None and not options.uses_drafter:
        note(f"method {options.method} drafts without it: the drafter is not used")
    if not options.uses_drafter or with_model:
        return None
    if options.drafter is not None:
        return named_drafter(Path(options.drafter), target, note=note)
    return find_drafter(target, note=note)
