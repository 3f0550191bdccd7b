"""One call of the API: a generation that leaves caches as mlx-lm leaves them.

With it, mlx-lm's `speculative_generate_step`, which gives ids, for any two tokenizers.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, nullcontext
from dataclasses import replace
from inspect import GEN_RUNNING, getgeneratorstate
from typing import Any, cast

import mlx.core as mx
from mlx_lm.utils import does_model_support_input_embeddings

from tokalign.api.assemble import assemble
from tokalign.api.objects import (
    AnyTokenizer,
    check_model,
    check_stream,
    language_model,
    make_sampler,
    note_user,
    read_ids,
    split_cache,
)
from tokalign.errors import UsageError, require_integer, shown
from tokalign.runtime.chat import Prompt
from tokalign.runtime.decoder import Decoder, LanguageModel
from tokalign.runtime.generate import Generation, Piece
from tokalign.runtime.mlx.layers import least_positions, remembered
from tokalign.runtime.mlx.sampling import LogitsProcessor
from tokalign.runtime.mlx.weights import vocabulary_size
from tokalign.runtime.options import DEFAULT_DRAFT_TOKENS, CacheOptions, DraftingOptions
from tokalign.runtime.remembered import OutputStore
from tokalign.runtime.request import Request
from tokalign.runtime.rounds import Array
from tokalign.tables.finding import Note, no_note
from tokalign.tokenizer.foreign import any_ids
from tokalign.tokenizer.vocabulary import DraftId, TargetId


class Call:
    """One generation, which may go on with the caches that its caller keeps. One that was left at
    a token ends where another call goes on with its caches.

    prompt: what follows what the target's cache holds. prompt_cache: the target's layers, then the
    draft's. embeddings: f[n, dimension], read in the place of the prompt's ids. max_tokens: -1 for
    no bound. stream: of mlx. store: earlier outputs, to which this one is added. how: further
    keywords of a `Request`.
    """

    def __init__(
        self,
        decoder: Decoder,
        prompt: Sequence[TargetId],
        prompt_cache: list[Any] | None,
        *,
        draft_prompt: Sequence[DraftId] | None = None,
        embeddings: Array | None = None,
        max_tokens: int,
        stream: Any,
        store: OutputStore | None = None,
        note: Note = no_note,
        **how: Any,
    ) -> None:
        self._decoder, self._prompt_cache, self._stream = decoder, prompt_cache, stream
        self._store = store
        self._pieces: Generator[Piece, None, None] | None = None
        ours, theirs = split_cache(prompt_cache, decoder)
        self._begin = _content(prompt_cache)
        self._target = decoder.open_target(ours)
        self._draft = decoder.open_draft(theirs)
        draft, translation = decoder.draft, decoder.drafting.options.translation
        if prompt_cache is not None and self._draft is not None and draft is not None:
            # Where ids are shared, mlx-lm trims both caches alike.
            specials = draft.tokenizer.spec.specials
            self._draft.reads_all = translation == "none" and not specials
        for name, session in (("target", self._target), ("draft", self._draft)):
            if session is not None and session.unknown_positions:
                note(
                    f"the {name}'s prompt cache holds text that was read without tokalign, so its "
                    "ids are not known; processors and drafters see what follows it, as in mlx-lm"
                )
        self.prompt = list(prompt) if embeddings is None else self._embed(prompt, embeddings)
        request = Request(
            Prompt(target=[*self._target.held, *self.prompt], draft=draft_prompt),
            max_tokens=None if max_tokens < 0 else max_tokens,
            outputs=() if store is None else (store.text,),
            logits=None if store is None else store.logits,
            **how,
        )
        self.generation = Generation(
            decoder, request, target_session=self._target, draft_session=self._draft
        )

    def pieces(
        self, *, keeps_last: bool = True, report: Callable[[int, int], None] | None = None
    ) -> Generator[Piece, None, None]:
        """The output, piece by piece.

        Afterwards the caches hold the prompt and every token that was taken, the last one only if
        `keeps_last`; after an error, what was read by then. report: called with how many ids of the
        prompt have been read, and of how many.
        Raises: UsageError if the caches are not as they were when the call was made.
        """
        self._pieces = self._taken(keeps_last, report)
        return self._pieces

    def end_use(self, prompt_cache: list[Any]) -> None:
        """Leave these caches, if they are its own, as after the last token that was taken; not from
        within a call of it."""
        pieces, is_own = self._pieces, prompt_cache is self._prompt_cache
        if is_own and pieces is not None and getgeneratorstate(pieces) != GEN_RUNNING:
            pieces.close()

    def _taken(
        self, keeps_last: bool, report: Callable[[int, int], None] | None
    ) -> Generator[Piece, None, None]:
        if (cache := self._prompt_cache) is not None and _content(cache) != self._begin:
            raise UsageError(
                "prompt_cache has changed since it was passed; take all of a response before you "
                "ask for the next one"
            )
        context, total = self.generation.context, len(self.prompt)
        held = first = len(context.prompt) - (not keeps_last)
        cached = len(context.prompt) - total
        report = report or (lambda done, total: None)
        try:
            if cache is not None:
                note_user(cache, self)
            report(0, total)
            for pieces in self._rounds():
                if not pieces and (reading := self.generation.reading) is not None:
                    report(reading.done - cached, total)
                for piece in pieces:
                    if held == first:
                        report(total, total)
                    held += 1
                    yield piece
        except (Exception, KeyboardInterrupt):
            held = min(held, len(self._target.held))
            raise
        finally:
            try:
                self._settle(context.ids[:held])
            except KeyboardInterrupt:  # a cache in the middle would be of no use
                self._settle(context.ids[:held])
                raise
            finally:
                if self._store is not None:
                    self._store.add(context.emitted)
                self._decoder.remember()

    def _embed(self, ids: Sequence[TargetId], embeddings: Array) -> list[TargetId]:
        if not does_model_support_input_embeddings(self._decoder.target.model):
            raise UsageError("input_embeddings: this model reads ids alone; pass a prompt instead")
        shape: tuple[int, ...] = tuple(getattr(embeddings, "shape", ()))
        if len(shape) != 2 or (ids and len(ids) != shape[0]):
            raise UsageError(
                f"input_embeddings has to be an array f[{len(ids) or 'n'}, dimension], one row for "
                f"each id of the prompt, not {shown(embeddings)} of shape {shape}"
            )
        self._target.embed(len(self._target.held), embeddings)
        return list(ids) or [TargetId(0)] * shape[0]

    def _rounds(self) -> Iterator[list[Piece]]:
        rounds = self.generation.by_round()
        while True:
            with nullcontext() if self._stream is None else mx.stream(self._stream):
                pieces = next(rounds, None)
            if pieces is None:
                return
            yield pieces

    def _settle(self, ids: Sequence[TargetId]) -> None:
        """Leave exactly these ids in the caller's cache of the target, and in the draft model's
        those that it has read, if it left none out."""
        if (prompt_cache := self._prompt_cache) is None:
            return
        self._target.settle(ids)
        rest = prompt_cache[len(self._target.layers) :]
        draft = self._decoder.draft
        if self._draft is not None and draft is not None:
            known = self._draft.kept
            if self._draft.reads_all:
                known = [DraftId(i) for i in ids if i < vocabulary_size(draft.model)]
            self._draft.settle(known)
            rest = self._draft.layers
        prompt_cache[:] = [*self._target.layers, *rest]
        note_user(prompt_cache, None)


def _content(prompt_cache: list[Any] | None) -> tuple[list[int] | None, int]:
    """What the first caches hold, as far as it is known, and how much."""
    layers = prompt_cache or []
    return remembered(layers), least_positions(layers)


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
) -> Generator[tuple[int, Array, bool], None, None]:
    """mlx-lm's function of this name, for any two tokenizers; its own options are as in mlx-lm.

    max_tokens: -1 for no bound. No id stops the output.
    tokenizer, draft_tokenizer: of the two models, as in `stream_generate`. Without them the models
    share their ids, as in mlx-lm; with both, `translation` turns draft ids into target ids.
    prompt_cache: as in `stream_generate`, but at the end without the last token.
    Yields: (token, logprobs f[vocabulary], from_draft).
    Raises: UsageError, IncompatibleError.
    """
    check_stream(stream)
    require_integer("max_tokens", max_tokens, least=-1)
    require_integer("num_draft_tokens", num_draft_tokens, least=0)
    if (tokenizer is None) is not (draft_tokenizer is None):
        raise UsageError("only one tokenizer is given; pass both, or none if ids are shared")
    if tokenizer is None and translation not in (None, "none"):
        raise UsageError(
            f"translation {translation} needs the tokenizers of both models; pass tokenizer and "
            "draft_tokenizer"
        )
    target: LanguageModel[TargetId] = _model(model, tokenizer)
    draft: LanguageModel[DraftId] = _model(draft_model, draft_tokenizer, "draft_")
    decoder = assemble(
        target,
        draft,
        DraftingOptions(method="draft", translation=translation, num_draft_tokens=num_draft_tokens),
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
        sampler=make_sampler(None, sampler, logits_processors),
        ends_with_context=False,
    )
    with closing(call.pieces(keeps_last=False)) as pieces:
        for piece in pieces:
            yield piece.token, piece.logprobs, piece.from_draft


def _model(model: Any, tokenizer: AnyTokenizer, role: str = "") -> LanguageModel[Any]:
    check_model(f"{role}model", model)
    if tokenizer is None:
        return LanguageModel(model=model, tokenizer=any_ids(vocabulary_size(model)))
    return replace(language_model(model, tokenizer, role), stop_ids=frozenset())
