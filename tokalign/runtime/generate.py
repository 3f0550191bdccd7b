"""One generation: its events as output tokens with their text, and the statistics so far."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from tokalign.errors import require_integer, require_texts
from tokalign.runtime.decoder import Decoder, Prompt
from tokalign.runtime.loop import Limits
from tokalign.runtime.mlx.draft_session import DraftModelSession
from tokalign.runtime.mlx.session import TargetModelSession
from tokalign.runtime.mlx.weights import peak_memory, wired
from tokalign.runtime.rounds import Array, FinishReason, Outcome, Round
from tokalign.runtime.statistics import Statistics
from tokalign.runtime.text import TextStream
from tokalign.tokenizer.vocabulary import TargetId


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """One output token.

    text: the text that can be printed once this token is known, see `TextStream.push`.
    source: the drafter that proposed the token, or "target". logprobs: f[vocabulary], lazy; None
    if no model was asked. ends: of the last token, why it is the last.
    """

    token: TargetId
    text: str
    source: str
    outcome: Outcome
    logprobs: Array | None = None
    ends: FinishReason | None = None

    @property
    def from_draft(self) -> bool:
        """Whether a drafter proposed the token."""
        return self.outcome is Outcome.ACCEPTED


class Generation:
    """One request. Iterate over its pieces; text, ids and statistics so far can be read any time.

    max_tokens: None for as many as the context holds. stop: the output ends before these texts, or
    this text.
    target_session, draft_session, statistics: ones to reuse; new ones are made otherwise.
    ends_with_context: as in `Decoder.run`.
    Raises: as `Decoder.run`; UsageError for a wrong argument.
    """

    def __init__(
        self,
        decoder: Decoder,
        prompt: Prompt,
        *,
        max_tokens: int | None = None,
        stop: str | Sequence[str] = (),
        target_session: TargetModelSession | None = None,
        draft_session: DraftModelSession | None = None,
        statistics: Statistics | None = None,
        ends_with_context: bool = True,
    ) -> None:
        if max_tokens is not None:
            require_integer("max_tokens", max_tokens, least=0)
        stop = (stop,) if isinstance(stop, str) else stop
        require_texts("stop", stop)
        text = partial(
            TextStream,
            decoder.target.tokenizer,
            prompt=prompt.target,
            silent=decoder.target.stop_ids,
            stop_strings=stop,
        )
        limits = Limits(
            max_tokens=max_tokens,
            stop_ids=decoder.target.stop_ids,
            text=text() if stop else None,
        )
        self._decoder = decoder
        self.context, self.events = decoder.run(
            prompt,
            limits,
            target=target_session,
            draft=draft_session,
            ends_with_context=ends_with_context,
        )
        self._text = text()
        self._shown: list[str] = []
        self.statistics = statistics or Statistics()
        self.rounds: list[Round] = []

    def __iter__(self) -> Iterator[Piece]:
        """One piece per token; after the last one, `rest` has the text that no token completed."""
        for pieces in self.by_round():
            yield from pieces

    def by_round(self) -> Generator[list[Piece], None, None]:
        """The pieces of each round. Between two rounds a generation may be left for good."""
        with wired(self._decoder.target.model):
            for event in self.events:
                self.statistics.observe(event)
                if isinstance(event, Round):
                    self.rounds.append(replace(event, logprobs=None))  # too large to keep
                    yield list(self._pieces(event))

    def texts(self) -> Iterator[tuple[str, Outcome]]:
        """The text as it can be printed, each part with the outcome of the latest token."""
        outcome = Outcome.UNDRAFTED
        for piece in self:
            outcome = piece.outcome
            yield piece.text, outcome
        yield self.rest(), outcome

    def rest(self) -> str:
        """The text that was still held back when the output ended."""
        self._shown.append(self._text.finish())
        return self._shown[-1]

    def summary(self) -> dict[str, Any]:
        """Text, ids and all statistics so far, under the names of `docs/metrics.md`."""
        drafting = self._decoder.drafting
        return {
            "text": "".join(self._shown),
            "token_ids": list(self.context.emitted),
            "method": drafting.method,
            "translation": drafting.translation if self._decoder.draft is not None else None,
            **self.statistics.summary(),
            "peak_memory_gb": peak_memory(),
            "seed": self._decoder.seed,
        }

    def _pieces(self, one: Round) -> Iterator[Piece]:
        for index, (token, source) in enumerate(zip(one.emitted, one.sources, strict=True)):
            self._shown.append(self._text.push(token))
            yield Piece(
                token=token,
                text=self._shown[-1],
                source=source,
                outcome=one.outcome(index),
                logprobs=None if one.logprobs is None else one.logprobs[index],
                ends=one.ends if index == len(one.emitted) - 1 else None,
            )
