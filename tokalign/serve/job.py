"""A request while it is answered: its ids, its text, and what is told of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

import mlx.core as mx
from mlx_lm.sample_utils import make_sampler

from tokalign.conversation.blocks import TEXT_ONLY, AnswerForm
from tokalign.runtime.chat import Prompt
from tokalign.runtime.draft.context_copy import SuffixAutomaton
from tokalign.runtime.generate import TextStream
from tokalign.runtime.grammar import Constraint
from tokalign.runtime.mlx.contexts import NOTHING, Chain, Held
from tokalign.runtime.mlx.sampling import LogitsProcessor, Sampling, masking
from tokalign.runtime.rounds import TARGET, Array, Outcome
from tokalign.serve.request import Asked
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import TargetId

if TYPE_CHECKING:
    from tokalign.serve.decoding import Batch, Speculation

NO_TOKEN = -1
"""The token of a response that only says why the answer ends."""

Key = tuple[str | None, str | None, str | None]
"""Names of a model, its adapter and its draft model."""

Reason = Literal["stop", "length"]


@dataclass(slots=True, kw_only=True)
class Answer:
    """An answer, from the time that its request has been read; see `preparing.prepare`.

    tokenizer: the target's. prompt: for both models. marks: numbers of its ids after which the
    target's cache is worth keeping, and whether other conversations begin so as well.
    ends: ids that end the answer. form: what is looked for in its text, which begins in a block of
    the kind opens_in. max_tokens: there is room for so many. constraint: what it has to match;
    not_enforced: what was asked of it besides, by path. prediction: what it may repeat.

    The rest grows with the answer. cached: ids of the prompt that were not read again. stop_text:
    the one that ended it, if one did. passes: of the target, after the prompt. plain_seconds: per
    token of plain decoding, if that is known.
    """

    tokenizer: Tokenizer[TargetId]
    prompt: Prompt
    marks: Mapping[int, bool] = field(default_factory=dict)
    ends: frozenset[TargetId] = frozenset()
    form: AnswerForm = TEXT_ONLY
    opens_in: Literal["text", "thought"] = "text"
    max_tokens: int = 0
    constraint: Constraint | None = None
    not_enforced: tuple[str, ...] = ()
    prediction: SuffixAutomaton | None = None
    cached: int = 0
    stop_text: str | None = None
    completion_tokens: int = 0
    accepted: int = 0
    rejected: int = 0
    passes: int = 0
    plain_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Emitted:
    """One token of an answer, and how it came about.

    text: what can be shown once the token is known. finish_reason: of the last one. top_tokens:
    `{"id": ..., "logprob": ...}` of the most probable ones, if they were asked for.
    source: who proposed it, or "target". number: of the pass that it came from, the first being 1.
    """

    text: str
    token: int
    logprob: float = 0.0
    finish_reason: Reason | None = None
    top_tokens: tuple[Mapping[str, Any], ...] = ()
    source: str = TARGET
    outcome: Outcome = Outcome.UNDRAFTED
    number: int = 0


Item: TypeAlias = Answer | Emitted | Exception | None
"""What is told of an answer: the answer when it begins, every token, and at the end None or an
error."""


@dataclass(kw_only=True, eq=False)
class Job:
    """A request that has been started. Only the scheduler's thread uses it.

    put: tells whoever waits for the answer. chain: what is kept of it. opening: the caches that
    were found for the prompt, until they are used. place: where its cache is since then.
    speculation: of a job that has been alone; a draft model's cache waits in it while the job is
    in the batch.
    ids: prompt and answer so far. ended: why it ended; failure: what ended it alone, while others
    in its batch go on.
    """

    put: Callable[[Item], None]
    asked: Asked
    answer: Answer
    chain: Chain
    sampler: Sampling
    opening: Held = NOTHING
    place: Speculation | Batch | None = None
    speculation: Speculation | None = None
    ended: Reason | None = None
    failure: Exception | None = None

    def __post_init__(self) -> None:
        answer = self.answer
        self.ids: list[TargetId] = list(answer.prompt.target)
        silent = answer.ends
        if self.asked.messages is not None:  # the text of a completion is what its ids say
            silent |= answer.form.silent_ids(answer.tokenizer.vocabulary)
        self._text = TextStream(
            answer.tokenizer,
            prompt=self.ids,
            silent=silent,
            stop_strings=self.asked.stop_texts,
        )

    @property
    def emitted(self) -> list[TargetId]:
        """The answer so far."""
        return self.ids[len(self.answer.prompt.target) :]

    @property
    def room(self) -> int:
        """How many ids the answer may still have."""
        return self.answer.max_tokens - self.answer.completion_tokens

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
        """What changes the logits, as mlx-lm's batches call it. What fails there ends this job."""
        processors = list(self.sampler.processors)
        if self.answer.constraint is not None:
            processors.append(masking(self.answer.constraint.rows))
        return [self._guarded(one) for one in processors]

    def _guarded(self, processor: LogitsProcessor) -> LogitsProcessor:
        def process(ids: Array, logits: Array) -> Array:
            if self.failure is None:
                try:
                    return processor(ids, logits)
                except Exception as error:  # its client is told; the batch goes on
                    self.failure = error
            return logits

        return process

    def deliver(
        self,
        token: TargetId,
        logprobs: Array | None,
        *,
        source: str = TARGET,
        outcome: Outcome = Outcome.UNDRAFTED,
    ) -> bool:
        """Hand over one id of the answer, with its log-probabilities f[vocabulary].

        source, outcome: as in an `Emitted`. Returns: whether the answer ends with it.
        """
        assert self.ended is None
        self.ids.append(token)
        self.answer.completion_tokens += 1
        text = self._text.push(token)
        self.answer.stop_text = self._text.stop_string
        reason: Reason | None = "length" if self.room <= 0 else None
        if self.answer.stop_text is not None or token in self.answer.ends:
            reason = "stop"
        logprob, top = self._logprobs(token, logprobs)
        self.put(
            Emitted(
                text=text if reason is None else text + self._text.finish(),
                token=token,
                logprob=logprob,
                finish_reason=reason,
                top_tokens=top,
                source=source,
                outcome=outcome,
                number=self.answer.passes,
            )
        )
        self.ended = reason
        return reason is not None

    def end(self, reason: Reason) -> None:
        """End the answer without another id."""
        self.ended = reason
        text = self._text.finish()
        self.put(Emitted(text=text, token=NO_TOKEN, finish_reason=reason))

    def _logprobs(
        self, token: TargetId, logprobs: Array | None
    ) -> tuple[float, tuple[Mapping[str, Any], ...]]:
        """The log-probability of an id, and the most probable ones, as far as they are wanted."""
        most = max(0, self.asked.top_logprobs)
        if logprobs is None or not (self.asked.logprobs or most):
            return 0.0, ()
        row = logprobs.astype(mx.float32)
        ranked = mx.argpartition(-row, kth=most - 1) if most else mx.array([], dtype=mx.uint32)
        ids = cast("list[int]", ranked[:most].tolist())
        values = cast("list[float]", row[mx.array([token, *ids])].tolist())
        top = zip(ids, values[1:], strict=True)
        return values[0], tuple({"id": one, "logprob": value} for one, value in top)
