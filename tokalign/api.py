"""The Python API: mlx-lm's functions and responses, for a draft model of any tokenizer.

import mlx_lm, tokalign

model, tokenizer = mlx_lm.load("speakleash/Bielik-11B-v3.0-Instruct-MLX-8bit")
draft_model, draft_tokenizer = mlx_lm.load("mlx-community/Llama-3.2-1B-Instruct-4bit")
for response in tokalign.stream_generate(
    model, tokenizer, prompt, draft_model=draft_model, draft_tokenizer=draft_tokenizer
):
    print(response.text, end="", flush=True)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from numbers import Integral
from pathlib import Path
from typing import Any, cast

from tokalign.arguments import (
    require_callable,
    require_callables,
    require_integer,
    require_text,
    shown,
)
from tokalign.assemble import DraftingOptions, assemble, no_note, pair_tables
from tokalign.errors import UsageError
from tokalign.runtime.chat import encode_prompt
from tokalign.runtime.context import Context
from tokalign.runtime.decoder import LanguageModel, Prompt, make_translation, stop_ids
from tokalign.runtime.draft.neural import NeuralDrafter
from tokalign.runtime.generate import Generation, Piece
from tokalign.runtime.interfaces import DraftSampler, Sampler
from tokalign.runtime.limits import Limits
from tokalign.runtime.loop import decode
from tokalign.runtime.methods import (
    AUTO,
    DEFAULT_ALTERNATIVES,
    DEFAULT_DRAFT_TOKENS,
    HYBRID_ORDER,
    check_draft_tokens,
    check_translation,
    choose_translation,
)
from tokalign.runtime.mlx.cache import CacheOptions
from tokalign.runtime.mlx.draft_session import DraftModelSession
from tokalign.runtime.mlx.sampling import CallableSampler, LogitsProcessor, Sampling
from tokalign.runtime.mlx.target_session import TargetModelSession
from tokalign.runtime.mlx.weights import peak_memory, read_config
from tokalign.runtime.proposal import Array
from tokalign.runtime.rounds import Round
from tokalign.runtime.session_store import OutputStore, session_store
from tokalign.runtime.translation.base import Pair, Translation
from tokalign.runtime.translation.shared_ids import SharedIds
from tokalign.runtime.verify import TargetVerifier
from tokalign.tables.finding import Note
from tokalign.tables.opening import FilePath
from tokalign.tokenizer.registry import resolve_tokenizer
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import DraftId, Id, TargetId

AnyTokenizer = Any
"""A tokalign `Tokenizer`, a path to a model's folder, or mlx-lm's or transformers' tokenizer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationResponse:
    """mlx-lm's GenerationResponse, and `source`: the drafter of the token, or "target".

    text: what can be printed now; the last response has all the rest.
    logprobs: f[vocabulary], lazy. prompt_tps, generation_tps: tokens per second. peak_memory: GB.
    finish_reason: "stop" or "length" in the last response, else None.
    """

    text: str
    token: int
    logprobs: Array
    from_draft: bool
    prompt_tokens: int
    prompt_tps: float
    generation_tokens: int
    generation_tps: float
    peak_memory: float
    finish_reason: str | None
    source: str


def stream_generate(
    model: Any,
    tokenizer: AnyTokenizer,
    prompt: str | Sequence[int],
    *,
    max_tokens: int = 256,
    draft_model: Any = None,
    draft_tokenizer: AnyTokenizer = None,
    draft_prompt: str | Sequence[int] | None = None,
    method: str = AUTO,
    translation: str | None = None,
    num_draft_tokens: int | None = None,
    alternatives: int = DEFAULT_ALTERNATIVES,
    order: Sequence[str] = HYBRID_ORDER,
    dictionary: FilePath | None = None,
    language: str | None = None,
    alignment: FilePath | None = None,
    sampling: Sampling | None = None,
    sampler: Callable[[Array], Array] | None = None,
    logits_processors: Sequence[LogitsProcessor] | None = (),
    stop: str | Sequence[str] = (),
    cache_options: CacheOptions | None = None,
    session: str | None = None,
    note: Note = no_note,
) -> Iterator[GenerationResponse]:
    """Generate text, one response per token. Drafting changes the speed, never the output.

    model: the target, an mlx-lm model.
    tokenizer: the target's: mlx-lm's or transformers' one, a path to the model's folder, or a
        tokalign `Tokenizer`. Tables are looked for in its folder first, if that is known.
    prompt: text after the chat template was applied (special tokens spelled out), or ids.
    max_tokens: tokens to generate at most; -1 for as many as the context holds.
    draft_model: a smaller mlx-lm model to draft with. Without one, text is drafted from a
        dictionary, if one fits the tokenizer, and from the context.
    draft_tokenizer: the draft model's, required with it; `tokenizer` again if they share one.
    draft_prompt: the draft's own rendering of the prompt; by default it reads the target's.
    method: "auto" for every source there is, or "plain", "dictionary", "copy", "prompt-lookup",
        "draft", "hybrid", "hybrid-fixed".
    translation: how draft ids become target ids: "none", "naive", "context:P", "intersection" or
        "exact". By default "none" if the tokenizers are equal, else "exact".
    num_draft_tokens: tokens drafted in a round. With None every round chooses its own number, zero
        included, by expected gain; what is learned about these models serves later calls.
    alternatives: tokens that the draft model proposes besides its first one, in a tree.
    order: the order in which "hybrid-fixed" asks its sources.
    dictionary, alignment: table files to use; otherwise they are found by the tokenizers, and an
        alignment that is not found is computed.
    language: of the dictionary, such as "pl", where dictionaries of several languages fit.
    sampling: temperature, filters and seed; greedy decoding by default.
    sampler: a sampler as mlx-lm's `make_sampler` returns it, instead of `sampling`.
    logits_processors: as in mlx-lm.
    stop: texts before which the output ends.
    cache_options: how the key-value caches are filled and quantized.
    session: a name; the outputs of a session are kept, and later ones may be drafted from them,
        until `clear_session(name)`.
    note: told in one line each what was found and chosen, for example which dictionary is used.

    Raises: UsageError for arguments that cannot be honoured, IncompatibleError for parts that do
    not fit together, BundleError for a damaged table, MissingAssetError for what is not there.
    """
    _check_model("model", model)
    require_integer("max_tokens", max_tokens, least=-1)
    for name, value, kind in (
        ("sampling", sampling, Sampling),
        ("cache_options", cache_options, CacheOptions),
        ("session", session, str),
    ):
        if not isinstance(value, kind | None):
            raise UsageError(f"{name} has to be of type {kind.__name__}, not {shown(value)}")
    require_callable("note", note)
    chooser = _sampler(sampling, sampler, logits_processors)
    target: LanguageModel[TargetId] = _language_model(model, tokenizer, "tokenizer")
    draft = None
    if draft_model is not None:
        _check_model("draft_model", draft_model)
    if draft_model is not None:
        if draft_tokenizer is None:
            raise UsageError(
                "draft_tokenizer is missing; pass the draft model's tokenizer, or "
                "draft_tokenizer=tokenizer if the two models share one"
            )
        draft = _language_model(draft_model, draft_tokenizer, "draft_tokenizer")
    store = None if session is None else session_store(session, target.tokenizer.fingerprint)
    decoder = assemble(
        target,
        draft,
        DraftingOptions(
            method=method,
            translation=translation,
            num_draft_tokens=num_draft_tokens,
            alternatives=alternatives,
            order=order,
            dictionary=dictionary,
            language=language,
            alignment=alignment,
        ),
        sampler=chooser,
        cache=cache_options,
        outputs=None if store is None else store.text,
        note=note,
    )
    rendered = Prompt(
        target=_encode("prompt", target, prompt),
        draft=None
        if draft is None or draft_prompt is None
        else _encode("draft_prompt", draft, draft_prompt),
    )
    generation = Generation(
        decoder, rendered, max_tokens=None if max_tokens < 0 else max_tokens, stop=stop
    )
    return _responses(generation) if store is None else _kept(generation, store)


def _kept(generation: Generation, store: OutputStore) -> Iterator[GenerationResponse]:
    """The responses; what was emitted is kept even if the caller stops early."""
    try:
        yield from _responses(generation)
    finally:
        store.add(generation.context.emitted)


def _responses(generation: Generation) -> Iterator[GenerationResponse]:
    """One response per token; the last one has the finish reason and the rest of the text."""
    held: Piece | None = None
    for number, piece in enumerate(generation):
        if held is not None:
            yield _response(generation, held, number, held.text, None)
        held = piece
    if held is not None:
        statistics = generation.statistics
        total = statistics.generation_tokens
        text = held.text + generation.rest()
        yield _response(generation, held, total, text, statistics.finish_reason)


def _response(
    generation: Generation, piece: Piece, number: int, text: str, reason: str | None
) -> GenerationResponse:
    statistics = generation.statistics
    return GenerationResponse(
        text=text,
        token=piece.token,
        logprobs=piece.logprobs,
        from_draft=piece.from_draft,
        prompt_tokens=statistics.prompt_tokens,
        prompt_tps=statistics.prompt_tokens_per_second,
        generation_tokens=number,
        generation_tps=statistics.tokens_per_second,
        peak_memory=peak_memory(),
        finish_reason=reason,
        source=piece.source,
    )


def speculative_generate_step(
    prompt: Sequence[int],
    model: Any,
    draft_model: Any,
    *,
    num_draft_tokens: int = DEFAULT_DRAFT_TOKENS,
    max_tokens: int = 256,
    sampler: Callable[[Array], Array] | None = None,
    logits_processors: Sequence[LogitsProcessor] | None = None,
    prompt_cache: list[Any] | None = None,
    prefill_step_size: int = 512,
    kv_bits: int | None = None,
    kv_group_size: int = 64,
    quantized_kv_start: int = 5000,
    tokenizer: AnyTokenizer = None,
    draft_tokenizer: AnyTokenizer = None,
    translation: str | None = None,
) -> Iterator[tuple[int, Array, bool]]:
    """mlx-lm's function of this name, for any two tokenizers.

    prompt, model, draft_model and the options that mlx-lm has too: as in mlx-lm. max_tokens: -1 for
    no bound. It knows no stop ids: the caller stops.
    tokenizer, draft_tokenizer: of the two models, as in `stream_generate`. Without them the models
    share their ids, as in mlx-lm; with both, `translation` turns draft ids into target ids.
    prompt_cache: the target's cache, then the draft's, for models that share their ids; at the end
    both hold the prompt and what was yielded, except for the last token.
    Yields: (token, logprobs f[vocabulary], from_draft).
    Raises: UsageError, IncompatibleError.
    """
    _check_model("model", model)
    _check_model("draft_model", draft_model)
    require_integer("max_tokens", max_tokens, least=-1)
    require_integer("num_draft_tokens", num_draft_tokens, least=0)
    check_draft_tokens(num_draft_tokens)
    if translation is not None:
        require_text("translation", translation)
    check_translation(translation)
    if prompt_cache is not None and tokenizer is not None:
        raise UsageError("prompt_cache is for models that share their ids; leave it out")
    if prompt_cache is not None:
        _check_cache(prompt_cache, len(model.layers) + len(draft_model.layers))
    options = CacheOptions(
        prefill_step_size=prefill_step_size,
        kv_bits=kv_bits,
        kv_group_size=kv_group_size,
        quantized_kv_start=quantized_kv_start,
    )
    layers = len(model.layers)
    caches = (
        (None, None) if prompt_cache is None else (prompt_cache[:layers], prompt_cache[layers:])
    )
    target_session = TargetModelSession(model, options, cache=caches[0])
    draft_session = DraftModelSession(draft_model, options, cache=caches[1])
    ids = cast("list[TargetId]", _ids("prompt", prompt))
    if not ids:
        raise UsageError("prompt is empty; pass at least one id")
    target_session.require_ids("prompt", ids)
    context = Context(ids)
    chooser = _sampler(None, sampler, logits_processors)
    drafter = NeuralDrafter(
        draft_session,
        _pass_ids(tokenizer, draft_tokenizer, translation, context, chooser.draft_sampler),
        num_draft_tokens=num_draft_tokens,
        alternatives=DEFAULT_ALTERNATIVES if target_session.can_branch else 0,
    )
    verifier = TargetVerifier(target_session, chooser)
    limits = Limits(
        max_tokens=None if max_tokens < 0 else max_tokens,
        context_length=target_session.context_length,
        drafts_last_id=True,
    )
    yielded = len(context.ids)
    try:
        for event in decode(context, drafter, verifier, limits=limits):
            if isinstance(event, Round) and event.logprobs is not None:
                for row, token in enumerate(event.emitted):
                    yielded += 1
                    yield token, event.logprobs[row], row < event.accepted
    finally:
        if prompt_cache is not None:
            target_session.settle(context.ids[: yielded - 1])
            shared_ids = cast("Sequence[DraftId]", context.ids)
            draft_session.settle(shared_ids[: yielded - 1])


# -- mlx-lm's objects as tokalign's ----------------------------------------------------------------


def _language_model(model: Any, tokenizer: AnyTokenizer, name: str) -> LanguageModel[Any]:
    ours, folder = as_tokenizer(tokenizer, name), _folder_of(tokenizer)
    ends = frozenset(getattr(tokenizer, "eos_token_ids", ()))
    config = {} if folder is None else read_config(folder)
    return LanguageModel(
        model=model, tokenizer=ours, folder=folder, stop_ids=stop_ids(ours, config) | ends
    )


def as_tokenizer(tokenizer: AnyTokenizer, argument: str = "tokenizer") -> Tokenizer[Any]:
    """The tokalign tokenizer that an object is, wraps or names.

    argument: its name, for the message.
    Raises: UsageError if it does not say which tokenizer it is; as `resolve_tokenizer`.
    """
    if isinstance(tokenizer, Tokenizer):
        return tokenizer
    name = _name_of(tokenizer)
    if name is None:
        raise UsageError(
            f"{argument}: cannot tell which tokenizer a {type(tokenizer).__name__} is; "
            "pass a path to the model's folder, or a tokalign Tokenizer"
        )
    return _resolve(name)


def _name_of(tokenizer: AnyTokenizer) -> str | None:
    """The path or repository that an object was loaded from."""
    named = isinstance(tokenizer, str | Path)
    return str(tokenizer if named else getattr(tokenizer, "name_or_path", "")) or None


def _folder_of(tokenizer: AnyTokenizer) -> Path | None:
    """The folder that a tokenizer was loaded from, if it is one on this machine."""
    name = _name_of(tokenizer)
    folder = None if name is None else Path(name).expanduser()
    return folder if folder is not None and folder.is_dir() else None


@lru_cache(maxsize=8)
def _resolve(name: str) -> Tokenizer[Any]:
    return resolve_tokenizer(name).tokenizer


def _encode(name: str, model: LanguageModel[Id], prompt: str | Sequence[int]) -> list[Id]:
    if isinstance(prompt, str):
        require_text(name, prompt)
        return encode_prompt(model.tokenizer, prompt)
    return cast("list[Id]", _ids(name, prompt))


def _ids(name: str, given: Any) -> list[int]:
    """The ids in a list, or in an array of mlx or numpy. Raises: UsageError."""
    values = given.tolist() if hasattr(given, "tolist") else given
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise UsageError(f"{name} has to be a text or a list of ids, not {shown(given)}")
    ids = list(values)
    for place, value in enumerate(ids):
        if isinstance(value, bool) or not isinstance(value, Integral):
            raise UsageError(f"{name}[{place}] has to be an id, not {shown(value)}")
    return [int(i) for i in ids]


def _check_model(name: str, model: Any) -> None:
    """Raises: UsageError for what is no model, such as the pair that `mlx_lm.load` returns."""
    if not callable(model) or not hasattr(model, "layers"):
        raise UsageError(f"{name} has to be a model as mlx_lm.load returns it, not {shown(model)}")


def _check_cache(cache: Any, layers: int) -> None:
    """Raises: UsageError for what is no prompt cache of two models with so many layers together."""
    is_cache = isinstance(cache, list) and all(hasattr(c, "is_trimmable") for c in cache)
    if not is_cache or len(cache) != layers:
        raise UsageError(
            f"prompt_cache has to be a list of {layers} caches, the model's and then the draft "
            "model's, as make_prompt_cache of mlx-lm returns them"
        )


def _sampler(
    sampling: Sampling | None,
    sampler: Callable[[Array], Array] | None,
    processors: Sequence[LogitsProcessor] | None,
) -> Sampler:
    """How ids are chosen. Raises: UsageError."""
    processors = () if processors is None else processors
    require_callables("logits_processors", processors)
    if sampler is not None:
        require_callable("sampler", sampler)
        return CallableSampler(sampler, processors)
    sampling = sampling or Sampling()
    return replace(sampling, processors=(*sampling.processors, *processors))


def _pass_ids(
    tokenizer: AnyTokenizer,
    draft_tokenizer: AnyTokenizer,
    translation: str | None,
    context: Context,
    sampler: DraftSampler | None,
) -> Translation:
    """The translation of `speculative_generate_step`; without tokenizers, ids are shared."""
    if tokenizer is None or draft_tokenizer is None:
        if tokenizer is not draft_tokenizer:
            raise UsageError("only one tokenizer is given; pass both, or none if ids are shared")
        return SharedIds(sampler)
    target = as_tokenizer(tokenizer, "tokenizer")
    draft = as_tokenizer(draft_tokenizer, "draft_tokenizer")
    return make_translation(
        choose_translation(translation, target, draft),
        Pair(target, draft),
        Prompt(target=context.ids[:]),
        pair_tables(target, draft, beside=_folder_of(tokenizer)),
        sampler,
    )
