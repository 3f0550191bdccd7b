"""mlx-lm's `speculative_generate_step`, which gives ids, for any two tokenizers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any, cast

import mlx.core as mx

from tokalign.api.objects import (
    AnyTokenizer,
    as_tokenizer,
    check_model,
    check_stream,
    folder_of,
    make_sampler,
    read_ids,
    split_cache,
)
from tokalign.api.random_state import leave_random_state
from tokalign.arguments import require_integer, require_text
from tokalign.assemble import pair_tables
from tokalign.errors import UsageError
from tokalign.runtime.context import Context
from tokalign.runtime.decoder import Prompt, make_translation
from tokalign.runtime.draft.neural import NeuralDrafter
from tokalign.runtime.interfaces import DraftSampler
from tokalign.runtime.limits import Limits
from tokalign.runtime.loop import decode
from tokalign.runtime.methods import (
    DEFAULT_ALTERNATIVES,
    DEFAULT_DRAFT_TOKENS,
    check_draft_tokens,
    check_translation,
    choose_translation,
)
from tokalign.runtime.mlx.cache import CacheOptions
from tokalign.runtime.mlx.draft_session import DraftModelSession
from tokalign.runtime.mlx.model_arguments import vocabulary_size
from tokalign.runtime.mlx.processors import LogitsProcessor
from tokalign.runtime.mlx.target_session import TargetModelSession
from tokalign.runtime.proposal import Array
from tokalign.runtime.rounds import Round
from tokalign.runtime.translation.base import Pair, Translation
from tokalign.runtime.translation.shared_ids import SharedIds
from tokalign.runtime.verify import TargetVerifier
from tokalign.tokenizer.vocabulary import TargetId


def speculative_generate_step(
    prompt: Sequence[int],
    model: Any,
    draft_model: Any,
    stream: Any = None,
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
    prompt_cache: the target's cache, then the draft's; at the end both hold the prompt and what was
    yielded, except for the last token.
    Yields: (token, logprobs f[vocabulary], from_draft).
    Raises: UsageError, IncompatibleError.
    """
    check_model("model", model)
    check_model("draft_model", draft_model)
    check_stream(stream)
    require_integer("max_tokens", max_tokens, least=-1)
    require_integer("num_draft_tokens", num_draft_tokens, least=0)
    check_draft_tokens(num_draft_tokens)
    if translation is not None:
        require_text("translation", translation)
    check_translation(translation)
    options = CacheOptions(
        prefill_step_size=prefill_step_size,
        kv_bits=kv_bits,
        kv_group_size=kv_group_size,
        quantized_kv_start=quantized_kv_start,
    )
    ours, theirs = split_cache(prompt_cache, model)
    target_session = TargetModelSession(model, options, cache=ours)
    draft_session = DraftModelSession(draft_model, options, cache=theirs)
    ids = cast("list[TargetId]", read_ids("prompt", prompt))
    if not ids:
        raise UsageError("prompt is empty; pass at least one id")
    target_session.require_ids("prompt", ids)
    context = Context([*target_session.held, *ids])
    chooser = make_sampler(None, sampler, logits_processors)
    sizes = vocabulary_size(draft_model), vocabulary_size(model)
    sampling = chooser.draft_sampler(sizes[1])
    passed = _pass_ids(tokenizer, draft_tokenizer, translation, context, sizes, sampling)
    drafter = NeuralDrafter(
        draft_session,
        passed,
        num_draft_tokens=num_draft_tokens,
        alternatives=DEFAULT_ALTERNATIVES if target_session.can_branch else 0,
    )
    limits = Limits(
        max_tokens=None if max_tokens < 0 else max_tokens,
        drafted_length=target_session.rewindable,
        quantized_from=target_session.quantized_from,
        read_again=target_session.read_again,
        drafts_last_id=True,
    )
    events = decode(context, drafter, TargetVerifier(target_session, chooser), limits=limits)
    prompted = yielded = len(context.ids)
    try:
        for event in on_stream(stream, events):
            if isinstance(event, Round) and event.logprobs is not None:
                for row, token in enumerate(event.emitted):
                    yielded += 1
                    yield token, event.logprobs[row], row < event.accepted
    finally:
        leave_random_state(chooser, yielded - prompted)
        if prompt_cache is not None:
            target_session.settle(context.ids[: yielded - 1])
            if isinstance(passed, SharedIds):
                draft_session.settle(passed.known(context.ids[: yielded - 1]))
            else:
                draft_session.settle(draft_session.held)
            prompt_cache[:] = [*target_session.layers, *draft_session.layers]


def on_stream(stream: Any, steps: Iterator[Any]) -> Iterator[Any]:
    """Take every step of an iterator on this stream of mlx; None leaves the stream as it is."""
    done = object()
    while True:
        with nullcontext() if stream is None else mx.stream(stream):
            step = next(steps, done)
        if step is done:
            return
        yield step


def _pass_ids(
    tokenizer: AnyTokenizer,
    draft_tokenizer: AnyTokenizer,
    translation: str | None,
    context: Context,
    sizes: tuple[int, int],
    sampler: DraftSampler | None,
) -> Translation:
    """The translation of `speculative_generate_step`; without tokenizers, ids are shared.

    sizes: as in `SharedIds`.
    """
    if tokenizer is None or draft_tokenizer is None:
        if tokenizer is not draft_tokenizer:
            raise UsageError("only one tokenizer is given; pass both, or none if ids are shared")
        if translation not in (None, "none"):
            raise UsageError(
                f"translation {translation} needs the tokenizers of both models; pass tokenizer "
                "and draft_tokenizer"
            )
        return SharedIds(sizes, sampler)
    target = as_tokenizer(tokenizer, "tokenizer")
    draft = as_tokenizer(draft_tokenizer, "draft_tokenizer")
    return make_translation(
        choose_translation(translation, target, draft),
        Pair(target, draft),
        Prompt(target=context.ids[:]),
        pair_tables(target, draft, beside=folder_of(tokenizer)),
        sampler,
    )
