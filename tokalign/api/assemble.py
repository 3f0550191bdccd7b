"""Assembling a decoder: names or loaded models and options in, a `Decoder` with its tables out.

The command line and the Python API assemble their decoders here, so that equal options give equal
decoders. Tables come from the files that are named, else from the target's folder, else from the
places in `tables/finding.py`; without a table, an alignment is computed. What was found is told to
`note`, one line at a time. mlx is imported when a model is loaded, not before.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar

from tokalign.errors import UsageError
from tokalign.names.registry import resolve_model
from tokalign.runtime.draft.mixing import Mixing
from tokalign.runtime.drafting import Drafting, no_alignment
from tokalign.runtime.methods import AUTO, choose_method, choose_translation
from tokalign.runtime.options import DraftingOptions
from tokalign.storage import FilePath
from tokalign.tables.alignment import Alignment
from tokalign.tables.dictionary import Dictionaries
from tokalign.tables.finding import Note
from tokalign.tables.logit_rows import LogitRows
from tokalign.tables.opening import open_alignment, open_dictionary, open_logit_rows
from tokalign.tokenizer.spec import Level
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import DraftId, TargetId

if TYPE_CHECKING:
    from tokalign.runtime.decoder import Decoder, LanguageModel
    from tokalign.runtime.draft.context_copy import SuffixAutomaton
    from tokalign.runtime.draft.lookup import LogitStore
    from tokalign.runtime.mlx.recurrent_drafter import RecurrentDrafter
    from tokalign.runtime.mlx.sampling import Sampler
    from tokalign.runtime.options import CacheOptions

T = TypeVar("T")

BeforeCosts = Callable[[Any, Any], object]
"""What is called with two mlx models before the costs of their passes are looked up."""


def no_note(_line: str) -> None:
    """A `note` that does nothing."""


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
    note: Note = no_note,
) -> list[LanguageModel[Any]]:
    """Load the models that `names` stand for; `note` is told where each was found.

    dtype: as asked in `choose_dtype`. adapter: laid over the first model. trust_remote_code: as in
    `load_weights`, for all of them. All models are found before the first one is loaded.
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
            place.folder, dtype=dtype, adapter=over, trust_remote_code=trust_remote_code
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
    sampler: Sampler | None = None,
    cache: CacheOptions | None = None,
    before_costs: BeforeCosts = lambda _target, _drafts: None,
    note: Note = no_note,
) -> Decoder:
    """Load the models that two names stand for and assemble a decoder from them.

    A draft model that the method does not use is not loaded. dtype, trust_remote_code: as in
    `load_models`. adapter: laid over the target.
    before_costs: as in `assemble`.
    Raises: as `load_models` and `assemble`.
    """
    choose_method(
        options.method, draft=draft is not None, dictionary=True, drafter=True
    )  # fail before loading
    draft = _used_draft(draft, options, note)
    ours, *theirs = load_models(
        [target, *([] if draft is None else [draft])],
        dtype=dtype,
        adapter=adapter,
        trust_remote_code=trust_remote_code,
        note=note,
    )
    return assemble(
        ours,
        theirs[0] if theirs else None,
        options,
        sampler=sampler,
        cache=cache,
        before_costs=before_costs,
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
    from tokalign.runtime.draft_length.opening_knowledge import shared_knowledge
    from tokalign.runtime.mlx.sampling import Sampling
    from tokalign.runtime.options import CacheOptions

    options, draft = _what_caches_allow(target, draft, options, note)
    drafts = options.method != "plain"
    exact_rows = _exact_rows(target.model, note) if options.exact and drafts else None
    if exact_rows == 1:
        options, draft = DraftingOptions(method="plain"), None
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
    model = drafter if draft is None else draft.model
    if options.chooses_lengths:
        before_costs(target.model, model)
        knowledge = shared_knowledge(target.model, model, note=note)
        drafting = replace(drafting, knowledge=knowledge)
    if options.remember and drafting.uses_logits:
        logits, mixing = _remembered(target, drafting.known_rows, note)
        drafting = replace(drafting, mixing=mixing)
    return Decoder(
        target=target,
        draft=draft,
        drafter=drafter,
        drafting=replace(drafting, outputs=outputs, logits=logits, exact_rows=exact_rows),
        sampler=sampler or Sampling(),
        cache=cache or CacheOptions(),
    )


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
    """The part of a decoder that two tokenizers decide: method, translation and tables.

    with_drafter: whether there is a recurrent drafter, too. background: as in `assemble`.
    model_folder: the target's folder, in which tables are looked for first.
    Raises: UsageError or MissingAssetError for a method that lacks what it needs; BundleError,
    FingerprintError, MissingAssetError for a table that is named.
    """
    packs, dictionary = None, None
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
    grows = packs is not None and packs.can_grow and not options.languages
    method = choose_method(
        options.method,
        draft=draft is not None,
        dictionary=dictionary is not None or grows,
        drafter=with_drafter,
    )
    translation, alignment = "none", no_alignment
    if draft is not None:
        translation = choose_translation(options.translation, target, draft)
        alignment = pair_tables(
            target, draft, file=options.alignment, model_folder=model_folder, note=note
        )
    drafting = Drafting.of(
        options,
        method=method,
        translation=translation,
        dictionary=dictionary,
        packs=packs if grows else None,
        alignment=alignment,
    )
    if drafting.uses_logits:
        rows = open_logit_rows(
            target, languages=options.languages, model_folder=model_folder, note=note
        )
        drafting = replace(drafting, known_rows=rows)
    if options.method == AUTO:
        explained = _explanation(drafting, with_model=draft is not None, with_drafter=with_drafter)
        note(explained)
    return drafting


def pair_tables(
    target: Tokenizer[TargetId],
    draft: Tokenizer[DraftId],
    *,
    file: FilePath | None = None,
    model_folder: Path | None = None,
    note: Note = no_note,
) -> Callable[[], Alignment]:
    """Gives the alignment of a pair, which is opened or computed when it is first asked for.

    One that has to be computed is computed once per pair in a process. Arguments as in
    `open_alignment`.
    """

    def computed(*vocabularies: Any) -> Alignment:
        from tokalign.build.alignment.alignment_bundle import align

        pair = draft.fingerprint, target.fingerprint
        with _computing:
            if pair not in _computed:
                if len(_computed) >= _MOST_COMPUTED:
                    _computed.clear()
                _computed[pair] = align(*vocabularies)
            return _computed[pair]

    def opened() -> Alignment:
        return open_alignment(
            target, draft, otherwise=computed, file=file, model_folder=model_folder, note=note
        )

    return cache(opened)


_MOST_COMPUTED = 8
_computed: dict[tuple[str, str], Alignment] = {}
_computing = Lock()


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
    """What is left of method auto with models whose caches cannot be rewound; `note` is told.

    A method that was asked for by its name is left as it is: opening the session is the error then.
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


def _exact_rows(model: Any, note: Note) -> int:
    """Up to how many rows a pass is exact, as it was measured before, or else is now.

    `note` is told. It is kept with the model's cost curve, if there is one.
    """
    from tokalign.runtime.cost.store import find_curve, store_curve
    from tokalign.runtime.mlx.exact_rows import exact_rows
    from tokalign.runtime.mlx.weights import machine_of

    curve = find_curve(machine_of(model))
    rows = None if curve is None else curve.exact_rows
    if rows is None:
        note(
            "trying for seconds up to how many rows a pass gives the last bits of single rows; "
            "tokalign calibrate keeps the answer"
        )
        rows = exact_rows(model) or 1
        if curve is not None:
            store_curve(replace(curve, exact_rows=rows))
    note(
        "--exact: a pass over two rows gives other last bits here, so decoding is plain"
        if rows == 1
        else f"--exact: passes have at most {rows} rows, which changes no bit of their logits"
    )
    return rows


def _remembered(
    target: LanguageModel[TargetId], known: LogitRows | None, note: Note
) -> tuple[LogitStore, Mixing]:
    """The store of this target that is kept between processes, and what is kept about sources.

    known: rows from a table.
    """
    from tokalign.runtime.mlx.weights import content_fingerprint, vocabulary_size
    from tokalign.runtime.remembered import RememberedStore, open_remembered

    store = open_remembered(
        content_fingerprint(target.model),
        target.tokenizer.fingerprint,
        vocabulary_size(target.model),
        note=note,
    )
    if known is not None:
        store.begin_with(known)
    return store, store.mixing if isinstance(store, RememberedStore) else Mixing()


def _explanation(drafting: Drafting, *, with_model: bool, with_drafter: bool) -> str:
    """What `auto` stands for here, and which sources are missing."""
    sources, missing = ["context copy"], []
    if isinstance(drafting.dictionary, Dictionaries):
        sources += drafting.dictionary.by_source
    elif drafting.dictionary is not None:
        sources.append("dictionary")
    elif drafting.packs is not None:
        sources.append("a dictionary of the prompt's language, if there is a pack of it")
    else:
        missing.append(
            "no dictionary is in use (tokalign build makes one, tokalign tables pull NAME fetches "
            "some)"
        )
    if with_model:
        sources.append(f"draft model, translation {drafting.translation}")
    elif with_drafter:
        sources.append("recurrent drafter")
    else:
        missing.append("no draft model is given (--draft)")
    return "; ".join([f"method auto -> hybrid of {', '.join(sources)}", *missing])
