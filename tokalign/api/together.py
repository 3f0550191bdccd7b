"""mlx-lm's `batch_generate`: several prompts at once, with drafts, in passes that they share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Sized
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import mlx.core as mx
from mlx_lm.generate import BatchResponse, BatchStats

from tokalign.api.assemble import assemble
from tokalign.api.objects import (
    AnyTokenizer,
    check_draft_model,
    check_stream,
    encode,
    language_model,
    make_sampler,
    split_cache,
)
from tokalign.api.text import shows_options, take_options, totals
from tokalign.errors import UsageError, require_callable, require_integer, shown
from tokalign.runtime.batch import Batch
from tokalign.runtime.chat import Prompt
from tokalign.runtime.decoder import Decoder
from tokalign.runtime.generate import Generation, Piece, together
from tokalign.runtime.mlx.machine import peak_memory, wired
from tokalign.runtime.mlx.sampling import LogitsProcessor, Sampler, Sampling
from tokalign.runtime.mlx.session import TargetModelSession
from tokalign.runtime.request import Request
from tokalign.runtime.rounds import Array
from tokalign.tables.finding import Note, no_note
from tokalign.tokenizer.vocabulary import TargetId


@shows_options
def batch_generate(
    model: Any,
    tokenizer: AnyTokenizer,
    prompts: Sequence[str | Sequence[int]],
    prompt_caches: Sequence[list[Any]] | None = None,
    max_tokens: int | Sequence[int] = 128,
    verbose: bool = False,
    return_prompt_caches: bool = False,
    return_token_ids: bool = False,
    return_logprobs: bool = False,
    *,
    draft_model: Any = None,
    draft_tokenizer: AnyTokenizer = None,
    sampling: Sampling | None = None,
    sampler: Callable[[Array], Array] | None = None,
    logits_processors: Sequence[LogitsProcessor] | None = None,
    completion_batch_size: int = 32,
    prefill_batch_size: int = 8,
    stream: Any = None,
    note: Note = no_note,
    **options: Any,
) -> BatchResponse:
    """mlx-lm's function of this name with drafts: those of all prompts are verified together.

    Each text is the one that its prompt gets alone. If the model cannot share passes, the prompts
    take turns, and `note` says so.
    prompts: texts or ids. What is not named here is as in `stream_generate`.
    prompt_caches: of the target, one for each prompt; copies of them go on.
    max_tokens: of each, or one number for all; at least 1.
    sampler: it draws for all in turns, so texts depend on the batch; not so with `sampling`.
    completion_batch_size: how many are decoded at once. prefill_batch_size: as in mlx-lm, not used.
    Raises: as `stream_generate`.
    """
    check_draft_model(draft_model, draft_tokenizer=draft_tokenizer, **options)
    drafting, cache = take_options("batch_generate", options)
    require_integer("completion_batch_size", completion_batch_size, least=1)
    require_integer("prefill_batch_size", prefill_batch_size, least=1)
    require_callable("note", note)
    check_stream(stream)
    decoder = assemble(
        language_model(model, tokenizer),
        None if draft_model is None else language_model(draft_model, draft_tokenizer, "draft_"),
        drafting,
        cache=cache,
        note=note,
    )
    chooser = make_sampler(sampling, sampler, logits_processors)
    answers = _answers(
        decoder,
        tokenizer,
        prompts,
        prompt_caches,
        max_tokens,
        kept=return_prompt_caches,
        scored=return_logprobs,
    )
    batch = decoder.open_batch()
    if len(answers) > 1 and not batch.shares_passes:
        note("the model cannot share passes: the prompts take turns")
    with wired(model), nullcontext() if stream is None else mx.stream(stream):
        stats = _answer(decoder, batch, answers, chooser, completion_batch_size)
    decoder.remember()
    if verbose:
        print(totals(stats))
    decode = getattr(tokenizer, "decode", decoder.target.tokenizer.decode)
    return BatchResponse(
        [decode(answer.ids) for answer in answers],
        stats,
        [answer.cache for answer in answers] if return_prompt_caches else None,
        [answer.ids for answer in answers] if return_token_ids else None,
        [answer.logprobs for answer in answers] if return_logprobs else None,
    )


@dataclass(slots=True)
class _Answer:
    """What one prompt gets. cache: the layers that it begins with, then those at its end, if they
    are `kept`. ids: without the one that ended them. logprobs: of the ids, if they are wanted."""

    prompt: list[TargetId]
    cache: list[Any] | None
    max_tokens: int
    kept: bool
    logprobs: list[float] | None
    ids: list[TargetId] = field(default_factory=list)
    session: TargetModelSession | None = None

    def begin(self, decoder: Decoder, sampler: Sampler) -> Generation:
        self.session = decoder.open_target(deepcopy(self.cache))
        request = Request(
            Prompt(target=[*self.session.held, *self.prompt]),
            max_tokens=self.max_tokens,
            sampler=sampler,
            ends_with_context=False,
        )
        return Generation(decoder, request, target_session=self.session)

    def take(self, pieces: Sequence[Piece]) -> None:
        for piece in pieces:
            if piece.ends == "stop":
                return
            self.ids.append(piece.token)
            if self.logprobs is not None and piece.logprobs is not None:
                self.logprobs.append(float(piece.logprobs[piece.token].item()))

    def end(self, generation: Generation) -> None:
        assert self.session is not None
        if self.kept:
            self.session.settle(generation.context.ids)
            self.cache = self.session.layers
        self.session = None


def _answer(
    decoder: Decoder, batch: Batch, answers: Sequence[_Answer], sampler: Sampler, at_once: int
) -> BatchStats:
    """Decode all of them. The time of first rounds counts as reading."""
    stats, answer_of = BatchStats(), dict[Generation, _Answer]()

    def begin() -> Iterator[Generation]:
        for answer in answers:
            generation = answer.begin(decoder, sampler)
            answer_of[generation] = answer
            yield generation

    began = before = perf_counter()
    for results in together(begin(), batch, at_once=at_once):
        for generation, pieces in results:
            answer_of[generation].take(pieces)
            if generation.decoding.ends is not None:
                answer_of.pop(generation).end(generation)
                stats.prompt_tokens += generation.statistics.prompt_tokens
                stats.generation_tokens += generation.statistics.generation_tokens
        now = perf_counter()
        reads = all(generation.statistics.rounds <= 1 for generation, _ in results)
        stats.prompt_time += (now - before) * reads
        stats.decode_time += (now - before) * (not reads)
        stats.generation_steps += any(pieces for _, pieces in results)
        before = now
    stats.wall_time, stats.peak_memory = before - began, peak_memory()
    return stats


def _answers(
    decoder: Decoder,
    tokenizer: AnyTokenizer,
    prompts: Sequence[str | Sequence[int]],
    caches: Sequence[list[Any] | None] | None,
    max_tokens: int | Sequence[int],
    *,
    kept: bool,
    scored: bool,
) -> list[_Answer]:
    """Raises: UsageError for a wrong argument."""
    if isinstance(prompts, str) or not isinstance(prompts, Sized):
        raise UsageError(
            f"prompts has to be a list of texts or of lists of ids, not {shown(prompts)}"
        )
    count = len(prompts)
    caches = [None] * count if caches is None else caches
    lengths = max_tokens if isinstance(max_tokens, Sequence) else [max_tokens] * count
    for name, values in (("prompt_caches", caches), ("max_tokens", lengths)):
        if not isinstance(values, Sized):
            raise UsageError(f"{name} has to be a list, one for each prompt, not {shown(values)}")
        if len(values) != count:
            raise UsageError(f"{name} has {len(values)} items for {count} prompts; give {count}")
    answers, checking = [], decoder.open_target()
    for place, (prompt, cache, length) in enumerate(zip(prompts, caches, lengths, strict=True)):
        ids = encode(name := f"prompts[{place}]", tokenizer, prompt)
        if not ids:
            raise UsageError(f"{name} is empty; give some text")
        checking.require_ids(name, ids)
        require_integer("max_tokens", length, least=1)
        own, draft = split_cache(cache, decoder)
        if draft is not None:
            raise UsageError(f"prompt_caches[{place}] has more caches than the model has layers")
        answers.append(_Answer(ids, own, length, kept, [] if scored else None))
    return answers
