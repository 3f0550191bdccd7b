"""A request while it is answered: its ids, its text, its tool calls, and the queue it goes to."""

from __future__ import annotations

import select
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from queue import Queue
from time import monotonic
from typing import Any, Literal, NamedTuple

import mlx.core as mx
from mlx_lm.sample_utils import make_sampler
from mlx_lm.server import (
    CompletionRequest,
    GenerationArguments,
    Response,
    _format_top_logprobs,
)

from tokalign.runtime.grammar import Constraint, Grammar
from tokalign.runtime.mlx.sampling import LogitsProcessor, Sampling, masking
from tokalign.runtime.rounds import TARGET, Array, Outcome
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import TargetId

NO_TOKEN = -1
"""The token of a response that only says why the answer ends."""

Key = tuple[str | None, str | None, str | None]
"""Names of a model, its adapter and its draft model."""

Owner = tuple[Key, str]
"""Kept caches and outputs serve later requests to the same models with the same API key."""

Reason = Literal["stop", "length"]


class Held(NamedTuple):
    """The KV caches of a text: the target's and exactly the ids that it holds, and the draft's.

    layers: None if nothing is held. draft: layers that know their ids themselves (`layers.py`),
    as a draft model may have another tokenizer; none without a draft model.
    """

    layers: list[Any] | None
    ids: list[int]
    draft: Sequence[Any] = ()


NOTHING = Held(None, [])


@dataclass
class Answer:
    """What the handler is told about an answer.

    tokenizer: the target's. prompt: its ids, of which prompt_cache_count were not read again.
    text_sm, initial_state: what finds thoughts and calls in its text; tool_parser: what reads a
    call. stop_text: what ended it, if a stop text did. passes: of the target, after the prompt.
    plain_seconds: per token of plain decoding, if that is known. is_wanted: whether anyone waits
    for it.
    """

    tokenizer: Tokenizer[TargetId]
    prompt: list[TargetId]
    text_sm: Any
    initial_state: str
    tool_parser: Any
    prompt_cache_count: int = 0
    stop_text: str | None = None
    completion_tokens: int = 0
    accepted: int = 0
    rejected: int = 0
    passes: int = 0
    plain_seconds: float | None = None
    is_wanted: bool = True


@dataclass
class Emitted(Response):  # type: ignore[misc]
    """One token of an answer, and how it came about.

    source: who proposed it, or "target". number: of the pass that it came from, the first being 1.
    """

    source: str = TARGET
    outcome: Outcome = Outcome.UNDRAFTED
    number: int = 0


@dataclass(kw_only=True)
class Asked(CompletionRequest, GenerationArguments):  # type: ignore[misc]
    """A request as the handler hands it over: what is asked, and how it is to be decoded.

    prompt: a text, or its ids. suffix: what the answer has to end before. grammar: what it has to
    match. tool_choice: the tool that has to be called, see `structured.tool_choice`; several_calls:
    whether more than once. only_counts: whether the prompt is all that is asked about. connection:
    the client's socket.
    """

    prompt: str | list[int]
    seed: int | None
    api_key: str = ""
    prediction: str | None = None
    grammar: Grammar | None = None
    tool_choice: str | None = None
    several_calls: bool = False
    suffix: str = ""
    only_counts: bool = False
    connection: socket.socket | None = None
    arrived: float = field(default_factory=monotonic)

    @property
    def is_gone(self) -> bool:
        """Whether the client has closed the connection. Cost: one system call or two."""
        if self.connection is None:
            return False
        try:
            poll = select.poll()
            poll.register(self.connection, select.POLLIN)
            return bool(poll.poll(0)) and not self.connection.recv(1, socket.MSG_PEEK)
        except (OSError, ValueError):  # ValueError: the handler has closed its socket
            return True


class StopTexts:
    """Finds the first stop text in an answer that comes in parts."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = tuple(texts)
        self._kept = max(map(len, self._texts), default=1) - 1
        self._tail = ""

    def end_in(self, part: str) -> tuple[int, str] | None:
        """The stop text that ends first in `part`, and the index after it; None for none."""
        text, before = self._tail + part, len(self._tail)
        ends = [(at + len(stop), stop) for stop in self._texts if (at := text.find(stop)) >= 0]
        self._tail = text[-self._kept :] if self._kept else ""
        if not ends:
            return None
        end, stop = min(ends)
        return end - before, stop


@dataclass(kw_only=True, eq=False)
class Job:
    """A request that has been started. Only the scheduler's thread uses it.

    queue: to the handler's thread. It gets how many ids of the prompt have been read, and of how
    many; every token as an `Emitted`; and None, or an error, as the end.
    owner: whose later requests go on with its caches. ids: prompt and answer so far. max_tokens: of
    the answer; the context has room for them.
    ended: why it ended; None until then. tokenizer: mlx-lm's.
    opening: the caches that were found for the prompt, until they are used.
    grammar: what the answer has to match; constraint: the same after this prompt.
    marks: numbers of prompt ids after which the cache is worth keeping, and what ends there.
    """

    queue: Queue[Any]
    asked: Asked
    owner: Owner
    answer: Answer
    tokenizer: Any
    sampler: Sampling
    max_tokens: int
    opening: Held = NOTHING
    marks: dict[int, str] = field(default_factory=dict)
    grammar: Grammar | None = None
    constraint: Constraint | None = None
    ended: Reason | None = None

    def __post_init__(self) -> None:
        self.ids: list[TargetId] = list(self.answer.prompt)
        self._detokenizer = self.tokenizer.detokenizer
        self._stop_texts = StopTexts(self.asked.stop_words)

    @property
    def emitted(self) -> list[TargetId]:
        """The answer so far."""
        return self.ids[len(self.answer.prompt) :]

    @property
    def room(self) -> int:
        """How many ids the answer may still have."""
        return self.max_tokens - self.answer.completion_tokens

    @property
    def is_abandoned(self) -> bool:
        """Whether nobody waits for the answer any more."""
        return not self.answer.is_wanted or self.asked.is_gone

    def take_opening(self) -> Held:
        """The target's cache that was found for the prompt. It is handed out once."""
        opening, self.opening = self.opening, NOTHING._replace(draft=self.opening.draft)
        return opening

    def batch_sampler(self) -> Callable[[Array], Array]:
        """The sampler from the next id on, as mlx-lm's batches call it, once for each id.

        It counts positions, so that a seed gives the same ids in a batch as in speculation.
        """
        if self.sampler.temperature == 0:
            return make_sampler(0.0)  # type: ignore[no-any-return]  # one for all, so one call
        positions = count(len(self.ids))
        return lambda logprobs: self.sampler.pick(logprobs, [next(positions)])

    def batch_processors(self) -> list[LogitsProcessor]:
        """What changes the logits, as mlx-lm's batches call it."""
        processors = list(self.sampler.processors)
        if self.constraint is not None:
            processors.append(masking(self.constraint))
        return processors

    def deliver(
        self,
        token: TargetId,
        logprobs: Array | None,
        *,
        source: str = TARGET,
        outcome: Outcome = Outcome.UNDRAFTED,
    ) -> bool:
        """Hand over one id of the answer, with its log-probabilities f[vocabulary].

        source, outcome: as in a `Piece`. Returns: whether the answer ends with it.
        """
        assert self.ended is None
        if self.constraint is not None and self.constraint.failure is not None:
            raise self.constraint.failure
        self.ids.append(token)
        self.answer.completion_tokens += 1
        reason: Reason | None = "length" if self.room <= 0 else None
        if token in self.tokenizer.eos_token_ids:
            reason = "stop"
        else:
            self._detokenizer.add_token(token)
        if reason is not None:
            self._detokenizer.finalize()
        text = self._detokenizer.last_segment
        found = self._stop_texts.end_in(text)
        if found is not None:
            # The handler takes the stop text away, which it may have held back in part.
            end, self.answer.stop_text = found
            text, reason = text[:end], "stop"
        top: tuple[dict[str, Any], ...] = ()
        most, logprob = max(0, self.asked.top_logprobs), 0.0
        if logprobs is not None and (self.asked.logprobs or most):
            row = logprobs.astype(mx.float32)
            logprob = float(row[token].item())
            top = _format_top_logprobs(row, most, self.tokenizer)
        number = self.answer.passes
        self.queue.put(Emitted(text, token, logprob, reason, top, source, outcome, number))
        self.ended = reason
        return reason is not None

    def end(self, reason: Reason) -> None:
        """End the answer without another id."""
        self.ended = reason
        self.queue.put(Emitted("", NO_TOKEN, 0.0, reason, ()))
