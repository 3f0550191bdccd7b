"""A request on its way through the server: its prompt, its text and what becomes of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Literal, TypeAlias, cast

import mlx.core as mx

from tokalign.conversation.answer_form import TEXT_ONLY, AnswerForm
from tokalign.runtime.chat import Prompt
from tokalign.runtime.draft.suffix_automaton import SuffixAutomaton
from tokalign.runtime.generate import Piece
from tokalign.runtime.grammar import Constraint
from tokalign.runtime.mlx.contexts import Chain
from tokalign.runtime.rounds import TARGET, Array, FinishReason, Outcome, Reading
from tokalign.runtime.statistics import Statistics
from tokalign.serve.request import ApiRequest
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import TargetId

if TYPE_CHECKING:
    from tokalign.serve.decoding import Answering

NO_TOKEN = -1
"""The token of a response that only says why the answer ends."""

Key = tuple[str | None, str | None, str | None]
"""Names of a model, its adapter and its draft model."""


class State(StrEnum):
    """Where a job is. It goes on downwards, and from any state to the end."""

    ARRIVED = "arrived"
    PREPARING = "preparing"
    PREPARED = "prepared"
    READING = "reading"
    DECODING = "decoding"
    ENDED = "ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class Emitted:
    """One token of an answer.

    text: what can be shown once the token is known. finish_reason: of the last one. top_tokens: the
    most probable ones, each with its log-probability, if they were requested.
    source: who proposed it, or "target". number: of the pass that it came from, the first being 1.
    """

    text: str
    token: int
    logprob: float = 0.0
    finish_reason: FinishReason | None = None
    top_tokens: tuple[tuple[int, float], ...] = ()
    source: str = TARGET
    outcome: Outcome = Outcome.UNDRAFTED
    number: int = 0


@dataclass(kw_only=True, eq=False)
class Job:
    """A request from its arrival to the end of its answer.

    put: called from other threads with every `Item` of the answer, in order. key: its models.
    failure: why it could not be prepared.

    `preparing.prepare` sets the next group. prompt: for both models; ids: prompt and answer so far.
    marks: numbers of ids after which the target's cache is worth keeping, and whether other
    conversations begin so as well; None for a cache that is kept on disk alone. ends: ids that end
    the answer. form: what its text is searched for; opens_in: the kind of block that it begins in.
    max_tokens: there is room for so many.
    constraint: what it has to match; not_enforced: what of it cannot be enforced, by path.
    prediction: what it may repeat.

    The last group is the scheduler's, from the start on. answering: decodes it; cached: ids of the
    prompt whose caches were found. chain: what is kept of the request. statistics: of the answer.
    stop_text: the one that ended it, if one did. ended: why it ended. is_enough: set by its reader,
    who takes no more of it.
    """

    request: ApiRequest
    put: Callable[[Item], None]
    key: Key = (None, None, None)
    state: State = State.ARRIVED
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

    chain: Chain = field(init=False)
    answering: Answering | None = None
    cached: int = 0
    statistics: Statistics = field(default_factory=Statistics)
    stop_text: str | None = None
    ended: FinishReason | None = None
    is_enough: bool = False

    def enter(self, state: State) -> None:
        """Go on to another state."""
        assert list(State).index(state) > list(State).index(self.state), (self.state, state)
        self.state = state

    @property
    def emitted(self) -> list[TargetId]:
        """The answer so far."""
        return self.ids[len(self.prompt.target) :]

    def deliver(self, piece: Piece, *, rest: str = "") -> None:
        """Hand over one id of the answer. rest: the text that was held back, after the last one."""
        self.ids.append(piece.token)
        self.ended = piece.ends
        logprob, top = self._logprobs(piece.token, piece.logprobs)
        self.put(
            Emitted(
                text=piece.text + rest,
                token=piece.token,
                logprob=logprob,
                finish_reason=piece.ends,
                top_tokens=top,
                source=piece.source,
                outcome=piece.outcome,
                number=self.statistics.rounds,
            )
        )

    def end(self, reason: FinishReason) -> None:
        """End the answer without another id."""
        self.ended = reason
        text = "" if self.answering is None else self.answering.generation.rest()
        self.put(Emitted(text=text, token=NO_TOKEN, finish_reason=reason))

    def _logprobs(
        self, token: TargetId, logprobs: Array | None
    ) -> tuple[float, tuple[tuple[int, float], ...]]:
        """The log-probability of an id, and the most probable ones, as far as they are wanted."""
        most = self.request.top_logprobs
        if logprobs is None or most is None:
            return 0.0, ()
        row = logprobs.astype(mx.float32)
        ranked = mx.argpartition(-row, kth=most - 1) if most else mx.array([], dtype=mx.uint32)
        ids = cast("list[int]", ranked[:most].tolist())
        values = cast("list[float]", row[mx.array([token, *ids])].tolist())
        return values[0], tuple(zip(ids, values[1:], strict=True))


Item: TypeAlias = Job | Reading | Emitted | Exception | None
"""The job when its answer begins, every step of a long prompt, every token, and at the end None or
an error."""
