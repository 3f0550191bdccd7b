"""What a generation yields to a caller of the API: one `GenerationResponse` per token."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from tokalign.runtime.generate import Generation, Piece
from tokalign.runtime.mlx.weights import peak_memory
from tokalign.runtime.proposal import Array
from tokalign.runtime.session_store import OutputStore
from tokalign.tokenizer.vocabulary import TargetId


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationResponse:
    """mlx-lm's GenerationResponse, and `source`: the drafter of the token, or "target".

    text: what can be printed now; the last response has all the rest. If the tokenizer is mlx-lm's
    and there are no stop texts, it writes the text.
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


def responses_of(
    pieces: Iterator[Piece], rest: Callable[[], str], generation: Generation, prompt_tokens: int
) -> Iterator[GenerationResponse]:
    """One response per token; the last one has the finish reason and the rest of the text."""
    for number, piece in enumerate(pieces, 1):
        statistics = generation.statistics
        share = prompt_tokens / max(1, statistics.prompt_tokens)  # the rest was in the cache
        yield GenerationResponse(
            text=piece.text if piece.ends is None else piece.text + rest(),
            token=piece.token,
            logprobs=piece.logprobs,
            from_draft=piece.from_draft,
            prompt_tokens=prompt_tokens,
            prompt_tps=statistics.prompt_tokens_per_second * share,
            generation_tokens=number,
            generation_tps=statistics.tokens_per_second,
            peak_memory=peak_memory(),
            finish_reason=piece.ends,
            source=piece.source,
        )


class OwnText:
    """The text of the pieces as mlx-lm's tokenizer writes it: without a space at the beginning."""

    def __init__(self, detokenizer: Any, silent: frozenset[TargetId]) -> None:
        self._detokenizer, self._silent = detokenizer, silent

    def spell(self, piece: Piece) -> Piece:
        """The piece with the text that can be printed once its token is known."""
        if piece.token in self._silent:
            return replace(piece, text="")
        self._detokenizer.add_token(piece.token)
        return replace(piece, text=self._detokenizer.last_segment)

    def rest(self) -> str:
        """The text that was still held back."""
        self._detokenizer.finalize()
        return str(self._detokenizer.last_segment)


def kept_in(
    store: OutputStore, responses: Iterator[GenerationResponse], generation: Generation
) -> Iterator[GenerationResponse]:
    """The responses; what was emitted is kept even if the caller stops early."""
    try:
        yield from responses
    finally:
        store.add(generation.context.emitted)
