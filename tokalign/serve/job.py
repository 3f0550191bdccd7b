"""A request on its way through the server: its prompt, its text and what becomes of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

import mlx.core as mx
from mlx_lm.sample_utils import make_sampler

from tokalign.conversation.blocks import TEXT_ONLY, AnswerForm
from tokalign.runtime.chat import Prompt
from tokalign.runtime.draft.suffix_automaton import SuffixAutomaton
from tokalign.runtime.generate import TextStream
from tokalign.runtime.grammar import Constraint
from tokalign.runtime.mlx.contexts import NOTHING, Chain, Held
from tokalign.runtime.mlx.sampling import LogitsProcessor, Sampling, masking
from tokalign.runtime.rounds import TARGET, Array, Outcome, Reading
from tokalign.serve.request import Request
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import TargetId

if TYPE_CHECKING:
    from tokalign.serve.decoding import Batch, Speculation

NO_TOKEN = -1
"""The token of a response that only says why the answer ends."""

Key = tuple[str | None, str | None, str | None]
"""Names of a model, its adapter and its draft model."""

Reason = Literal["stop", "length"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Emitted:
    """One token of an answer.

    text: what can be shown once the token is known. finish_reason: of the last one. top_tokens:
    `{"id": ..., "logprob": ...}` of the most probable ones, if they were requested.
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


@dataclass(kw_only=True, eq=False)
class Job:
    """A request from its arrival to the end of its answer.

    put: called from other threads with every `Item` of the answer, in order. key: its models.
    failure: what ended it alone; others in its batch go on.

    `preparing.prepare` sets the next group. prompt: for both models; ids: prompt and answer so far.
    marks: numbers of ids after which the target's cache is worth keeping, and whether other
    conversations begin so as well; None for a cache that is kept on disk alone. ends: ids that end
    the answer. form: what its text is searched for; opens_in: the kind of block that it begins in.
    max_tokens: there is room for so many.
    constraint: what it has to match; not_enforced: what of it cannot be enforced, by path.
    prediction: what it may repeat.

    The last group is the scheduler's, from the start on. opening: the caches that were found for
    the prompt, until they are used; cached: ids of the prompt that were in them. chain: what is
    kept of the request. place: where its cache is. speculation: of a job that has been alone; the
    draft model's cache waits in it while the job is in a batch. passes: of the target, after the
    prompt. plain_seconds: per token of plain decoding, if known. stop_text: the
    one that ended the answer, if one did. ended: why it ended.
    """

    request: Request
    put: Callable[[Item], None]
    key: Key = (None, None, None)
    is_submitted: bool = False
    is_prepared: bool = False
    failure: Exception | None = None

    tokenizer: Tokenizer[TargetId] = field(init=False)
    prompt: Prompt = Prompt(target=())  # noqa: RUF009  # it is frozen
    ids: list[TargetId] = field(default_factory=list)
    marks: Mapping[int, bool | None] = field(default_factory=dict)
    ends: frozenset[TargetId] = frozenset()
    form: AnswerForm = TEXT_ONLY
    opens_in: Literal["text", "thought"] = "text"
    max_tokens: int = 0
    constraint: Constraint | None = None
    not_enforced: tuple[str, ...] = ()
    prediction: SuffixAutomaton | None = None

    sampler: Sampling = field(init=False)
    chain: Chain = field(init=False)
    opening: Held = NOTHING
    place: Speculation | Batch | None = None
    speculation: Speculation | None = None
    cached: int = 0
    completion_tokens: int = 0
    accepted: int = 0
    rejected: int = 0
    passes: int = 0
    plain_seconds: float | None = None
    stop_text: str | None = None
    ended: Reason | None = None

    @cached_property
    def _text(self) -> TextStream:
        silent = self.ends
        if self.request.messages is not None:  # the text of a completion is what its ids say
            silent |= self.form.silent_ids(self.tokenizer.vocabulary)
        return TextStream(
            self.tokenizer,
            prompt=self.prompt.target,
            silent=silent,
            stop_strings=self.request.stop_texts,
        )

    @property
    def emitted(self) -> list[TargetId]:
        """The answer so far."""
        return self.ids[len(self.prompt.target) :]

    @property
    def room(self) -> int:
        """How many ids the answer may still have."""
        return self.max_tokens - self.completion_tokens

    def leave(self) -> Held:
        """Take the target's cache out of where it is; it holds a prefix of the ids."""
        if self.place is not None:
            return self.place.leave(self)
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
        if self.constraint is not None:
            processors.append(masking(self.constraint.masks))
        return [self._guarded(processor) for processor in processors]

    def _guarded(self, processor: LogitsProcessor) -> LogitsProcessor:
        def process(ids: Array, logits: Array) -> Array:
            if self.failure is None:
                try:
                    return processor(ids, logits)
                except Exception as error:  # its client gets it; the batch goes on
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
        self.completion_tokens += 1
        text = self._text.push(token)
        self.stop_text = self._text.stop_string
        if self.stop_text is not None or token in self.ends:
            self.ended = "stop"
        elif self.room <= 0:
            self.ended = "length"
        logprob, top = self._logprobs(token, logprobs)
        self.put(
            Emitted(
                text=text if self.ended is None else text + self._text.finish(),
                token=token,
                logprob=logprob,
                finish_reason=self.ended,
                top_tokens=top,
                source=source,
                outcome=outcome,
                number=self.passes,
            )
        )
        return self.ended is not None

    def end(self, reason: Reason) -> None:
        """End the answer without another id."""
        self.ended = reason
        self.put(Emitted(text=self._text.finish(), token=NO_TOKEN, finish_reason=reason))

    def _logprobs(
        self, token: TargetId, logprobs: Array | None
    ) -> tuple[float, tuple[Mapping[str, Any], ...]]:
        """The log-probability of an id, and the most probable ones, as far as they are wanted."""
        most = max(0, self.request.top_logprobs)
        if logprobs is None or not (self.request.logprobs or most):
            return 0.0, ()
        row = logprobs.astype(mx.float32)
        ranked = mx.argpartition(-row, kth=most - 1) if most else mx.array([], dtype=mx.uint32)
        ids = cast("list[int]", ranked[:most].tolist())
        values = cast("list[float]", row[mx.array([token, *ids])].tolist())
        top = zip(ids, values[1:], strict=True)
        return values[0], tuple({"id": other, "logprob": value} for other, value in top)


Item: TypeAlias = Job | Reading | Emitted | Exception | None
"""The job when its answer begins, every step of a long prompt, every token, and at the end None or
an error."""
