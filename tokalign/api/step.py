"""mlx-lm's `speculative_generate_step`, which gives ids, for any two tokenizers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any, cast

from tokalign.api.call import Call
from tokalign.api.objects import (
    AnyTokenizer,
    check_model,
    check_stream,
    language_model,
    make_sampler,
    read_ids,
)
from tokalign.arguments import require_integer, require_text
from tokalign.assemble import assemble, no_note
from tokalign.drafting_options import DraftingOptions
from tokalign.errors import UsageError
from tokalign.runtime.decoder import LanguageModel
from tokalign.runtime.methods import DEFAULT_DRAFT_TOKENS
from tokalign.runtime.mlx.cache import CacheOptions
from tokalign.runtime.mlx.model_arguments import vocabulary_size
from tokalign.runtime.mlx.processors import LogitsProcessor
from tokalign.runtime.proposal import Array
from tokalign.tokenizer.foreign import any_ids
from tokalign.tokenizer.vocabulary import DraftId, TargetId


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
    if translation is not None:
        require_text("translation", translation)
    if (tokenizer is None) is not (draft_tokenizer is None):
        raise UsageError("only one tokenizer is given; pass both, or none if ids are shared")
    if tokenizer is None and translation not in (None, "none"):
        raise UsageError(
            f"translation {translation} needs the tokenizers of both models; pass tokenizer and "
            "draft_tokenizer"
        )
    target: LanguageModel[TargetId] = _model(model, tokenizer, "tokenizer")
    draft: LanguageModel[DraftId] = _model(draft_model, draft_tokenizer, "draft_tokenizer")
    decoder = assemble(
        target,
        draft,
        DraftingOptions(method="draft", translation=translation, num_draft_tokens=num_draft_tokens),
        sampler=make_sampler(None, sampler, logits_processors),
        cache=CacheOptions(
            prefill_step_size=prefill_step_size,
            kv_bits=kv_bits,
            kv_group_size=kv_group_size,
            quantized_kv_start=quantized_kv_start,
        ),
    )
    call = Call(
        decoder,
        cast("list[TargetId]", read_ids("prompt", prompt)),
        prompt_cache,
        max_tokens=max_tokens,
        stream=stream,
        note=no_note,
    )
    with closing(call.pieces(keeps_last=False)) as pieces:
        for piece in pieces:
            yield piece.token, piece.logprobs, piece.from_draft


def _model(model: Any, tokenizer: AnyTokenizer, name: str) -> LanguageModel[Any]:
    """A model that no id stops. Without a tokenizer its ids are those of the other model."""
    if tokenizer is None:
        return LanguageModel(model=model, tokenizer=any_ids(vocabulary_size(model)))
    found = language_model(model, tokenizer, name)
    return replace(found, stop_ids=frozenset())
