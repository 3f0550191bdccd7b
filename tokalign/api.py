"""The Python API: mlx-lm's shapes over tokalign's event stream.

import mlx_lm, tokalign

model, tokenizer = mlx_lm.load("speakleash/Bielik-11B-v3.0-Instruct-MLX-8bit")
draft_model, draft_tokenizer = mlx_lm.load("mlx-community/Llama-3.2-1B-Instruct-4bit")
for response in tokalign.stream_generate(
    model, tokenizer, prompt, draft_model=draft_model, draft_tokenizer=draft_tokenizer
):
    print(response.text, end="", flush=True)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, cast

from tokalign.build.alignment.alignment_bundle import align
from tokalign.errors import UsageError
from tokalign.runtime.chat import encode_prompt
from tokalign.runtime.context import Context
from tokalign.runtime.decoder import Decoder, LanguageModel, Prompt, make_translation
from tokalign.runtime.draft.neural import NeuralDrafter
from tokalign.runtime.draft_length.known_costs import shared_pace
from tokalign.runtime.draft_length.pace import Pace
from tokalign.runtime.drafting import Drafting, no_alignment
from tokalign.runtime.generate import Generation, Piece
from tokalign.runtime.interfaces import DraftSampler, Sampler
from tokalign.runtime.limits import Limits
from tokalign.runtime.loop import decode
from tokalign.runtime.methods import (
    DEFAULT_ALTERNATIVES,
    check_draft_tokens,
    check_translation,
    choose_method,
    choose_translation,
)
from tokalign.runtime.mlx.cache import CacheOptions
from tokalign.runtime.mlx.draft_session import DraftModelSession
from tokalign.runtime.mlx.sampling import CallableSampler, LogitsProcessor, Sampling
from tokalign.runtime.mlx.target_session import TargetModelSession
from tokalign.runtime.mlx.weights import peak_memory
from tokalign.runtime.proposal import Array
from tokalign.runtime.rounds import Round
from tokalign.runtime.session_store import OutputStore, session_store
from tokalign.runtime.translation.base import Pair, Translation
from tokalign.runtime.translation.shared_ids import SharedIds
from tokalign.runtime.verify import TargetVerifier
from tokalign.tables.alignment import Alignment
from tokalign.tables.opening import open_alignment, open_dictionary
from tokalign.tokenizer.registry import resolve_tokenizer
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import DraftId, TargetId

AnyTokenizer = Any
"""A tokalign `Tokenizer`, a path to a model's folder, or mlx-lm's or transformers' tokenizer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationResponse:
    """mlx-lm's GenerationResponse, and `source`: which drafter the token is from, or "target".

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
    method: str = "auto",
    translation: str | None = None,
    num_draft_tokens: int | None = None,
    dictionary: Path | None = None,
    alignment: Path | None = None,
    sampling: Sampling | None = None,
    sampler: Callable[[Array], Array] | None = None,
    logits_processors: Sequence[LogitsProcessor] = (),
    stop: Sequence[str] = (),
    cache_options: CacheOptions | None = None,
    session: str | None = None,
) -> Iterator[GenerationResponse]:
    """Generate text; drafting changes how fast, never what.

    prompt: text, special tokens spelled out (apply the chat template first), or ids.
    max_tokens: -1 for as many as the context holds.
    draft_tokenizer: of the draft model; by default it has the target's.
    draft_prompt: the draft's own rendering; by default it reads the target's prompt.
    method, translation, dictionary, alignment: as options of `tokalign decode`.
    num_draft_tokens: None to choose it in every round, zero included, by what drafting is expected
    to gain; what is learned of these models serves later calls.
    sampling: greedy by default. sampler: mlx-lm's kind, instead of `sampling`.
    session: a name; outputs of one session are kept to copy from until `clear_session(name)`.
    Raises: UsageError, IncompatibleError, MissingAssetError and their kinds.
    """
    check_draft_tokens(num_draft_tokens)
    target = _language_model(model, tokenizer)
    own = tokenizer if draft_tokenizer is None else draft_tokenizer
    draft = None if draft_model is None else _language_model(draft_model, own)
    table = open_dictionary(target.tokenizer, file=dictionary)
    store = None if session is None else session_store(session, target.tokenizer.fingerprint)
    decoder = Decoder(
        target=target,
        draft=draft,
        drafting=Drafting(
            method=choose_method(method, draft=draft is not None, dictionary=table is not None),
            translation=_choose_translation(translation, target, draft),
            num_draft_tokens=num_draft_tokens,
            dictionary=table,
            alignment=_alignment(target, draft, alignment),
            outputs=None if store is None else store.text,
            pace=_pace(method, num_draft_tokens, model, draft_model),
        ),
        sampler=_sampler(sampling, sampler, logits_processors),
        cache=cache_options or CacheOptions(),
    )
    rendered = Prompt(
        target=_encode(target, prompt),
        draft=None if draft is None or draft_prompt is None else _encode(draft, draft_prompt),
    )
    generation = Generation(
        decoder, rendered, max_tokens=None if max_tokens < 0 else max_tokens, stop=stop
    )
    return _responses(generation) if store is None else _kept(generation, store)


def _kept(generation: Generation, store: OutputStore) -> Iterator[GenerationResponse]:
    """The responses; what was emitted is kept, also where the caller stops early."""
    try:
        yield from _responses(generation)
    finally:
        store.add(generation.context.emitted)


def _responses(generation: Generation) -> Iterator[GenerationResponse]:
    """One response per token; the last one carries the finish reason and the rest of the text."""
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
    num_draft_tokens: int = 2,
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

    Without tokenizers both models speak the same ids, as in mlx-lm; with both of them,
    `translation` puts the draft's into the target's. It knows no stop ids: the caller stops.
    max_tokens: -1 for no bound. prompt_cache: the target's cache, then the draft's, for models that
    share their ids; in the end both hold the prompt and what was yielded, but for the last token.
    Yields: (token, logprobs f[vocabulary], from_draft).
    """
    check_draft_tokens(num_draft_tokens)
    if prompt_cache is not None and tokenizer is not None:
        raise UsageError("prompt_cache is for models that share their ids; leave it out")
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
    context = Context([TargetId(int(i)) for i in prompt])
    chooser = _sampler(None, sampler, logits_processors or ())
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


def _language_model(model: Any, tokenizer: AnyTokenizer) -> LanguageModel:
    ours = as_tokenizer(tokenizer)
    ends = frozenset(getattr(tokenizer, "eos_token_ids", ()))
    return LanguageModel(model=model, tokenizer=ours, stop_ids=ours.vocabulary.roles.eos | ends)


def as_tokenizer(tokenizer: AnyTokenizer) -> Tokenizer[Any]:
    """A tokalign tokenizer from whatever names or wraps one. Raises: UsageError; see registry."""
    if isinstance(tokenizer, Tokenizer):
        return tokenizer
    named = isinstance(tokenizer, str | Path)
    name = tokenizer if named else getattr(tokenizer, "name_or_path", None)
    if not name:
        raise UsageError(
            f"cannot tell which tokenizer a {type(tokenizer).__name__} is; "
            "pass a path to the model's folder, or a tokalign Tokenizer"
        )
    return _resolve(str(name))


@lru_cache(maxsize=8)
def _resolve(name: str) -> Tokenizer[Any]:
    return resolve_tokenizer(name).tokenizer


def _encode(model: LanguageModel, prompt: str | Sequence[int]) -> list[Any]:
    if isinstance(prompt, str):
        return encode_prompt(model.tokenizer, None, prompt)
    return [int(i) for i in prompt]


def _sampler(
    sampling: Sampling | None,
    sampler: Callable[[Array], Array] | None,
    processors: Sequence[LogitsProcessor],
) -> Sampler:
    if sampler is not None:
        return CallableSampler(sampler, processors)
    sampling = sampling or Sampling()
    return replace(sampling, processors=(*sampling.processors, *processors))


def _choose_translation(
    asked: str | None, target: LanguageModel, draft: LanguageModel | None
) -> str:
    if asked is not None:
        check_translation(asked)
    if draft is None:
        return "none"
    return choose_translation(asked, target.tokenizer, draft.tokenizer)


def _pace(method: str, num_draft_tokens: int | None, model: Any, draft_model: Any) -> Pace | None:
    if num_draft_tokens is not None or method == "plain":
        return None
    return shared_pace(model, draft_model)


def _alignment(
    target: LanguageModel, draft: LanguageModel | None, file: Path | None
) -> Callable[[], Alignment]:
    if draft is None:
        return no_alignment
    ours, own = target.tokenizer, draft.tokenizer
    return cache(lambda: open_alignment(ours, own, otherwise=align, file=file))


def _pass_ids(
    tokenizer: AnyTokenizer,
    draft_tokenizer: AnyTokenizer,
    translation: str | None,
    context: Context,
    sampler: DraftSampler | None,
) -> Translation:
    """The translation of `speculative_generate_step`: none without tokenizers."""
    if tokenizer is None or draft_tokenizer is None:
        if tokenizer is not draft_tokenizer:
            raise UsageError("only one tokenizer is given; pass both, or none for a shared one")
        return SharedIds(sampler)
    target, draft = as_tokenizer(tokenizer), as_tokenizer(draft_tokenizer)
    return make_translation(
        choose_translation(translation, target, draft),
        Pair(target, draft),
        Prompt(target=context.ids[:]),
        cache(lambda: open_alignment(target, draft, otherwise=align)),
        sampler,
    )
