"""A request while it is answered: its ids, its text, its tool calls, and the queue it goes to."""

from __future__ import annotations

import select
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial, wraps
from queue import Queue
from time import monotonic
from typing import Any, Literal

import mlx.core as mx
from mlx_lm.sample_utils import make_sampler
from mlx_lm.server import (
    CompletionRequest,
    GenerationArguments,
    GenerationContext,
    Response,
    _format_top_logprobs,
)

from tokalign.arguments import shown
from tokalign.runtime.grammar import Constraint, Grammar
from tokalign.runtime.mlx.sampling import LogitsProcessor, Sampling, masking
from tokalign.runtime.rounds import TARGET, Array, Outcome
from tokalign.serve.contexts import NOTHING, Held
from tokalign.tokenizer.vocabulary import TargetId

NO_TOKEN = -1
"""The token of a response that only says why the answer ends."""

Reason = Literal["stop", "length"]

ToolParser = Callable[[str, Any], Any]
"""mlx-lm's: the text of a call, and the tools of the request -> one call or several."""

_NOTHING: tuple[dict[str, Any], ...] = ()


@dataclass
class Answer(GenerationContext):  # type: ignore[misc]
    """What mlx-lm's handler is told about an answer, and what `usage` says besides.

    passes: of the target, after the prompt. plain_seconds: per token of plain decoding, if that is
    known.
    """

    completion_tokens: int = 0
    accepted: int = 0
    rejected: int = 0
    passes: int = 0
    plain_seconds: float | None = None


@dataclass
class Emitted(Response):  # type: ignore[misc]
    """One token as mlx-lm's handler takes it, and how it came about.

    source: who proposed it, or "target". number: of the pass that it came from, the first being 1.
    """

    source: str = TARGET
    outcome: Outcome = Outcome.UNDRAFTED
    number: int = 0


@dataclass
class Asked(CompletionRequest):  # type: ignore[misc]
    """A request as the handler hands it over.

    prompt: a text, or its ids. grammar: what the answer has to match. tool_choice: the tool that
    has to be called, see `body.tool_choice`; several_calls: whether more than once. tells_sources:
    whether the answer says who proposed its tokens. connection: the client's socket. shown:
    responses that the handler has taken since it last wrote, for what it says of single tokens.
    """

    prompt: str | list[int]
    api_key: str = ""
    prediction: str | None = None
    grammar: Grammar | None = None
    tool_choice: str | None = None
    several_calls: bool = False
    tells_sources: bool = False
    connection: socket.socket | None = None
    arrived: float = field(default_factory=monotonic)
    answer: Answer | None = None
    shown: list[Emitted] = field(default_factory=list)

    def showing(self, responses: Iterator[Emitted]) -> Iterator[Emitted]:
        """The responses; each is noted in `shown` before it is passed on."""
        for response in responses:
            self.shown.append(response)
            yield response

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


def checked(parser: ToolParser | None) -> ToolParser | None:
    """A tool parser that raises nothing but ValueError, for which mlx-lm leaves out the call.

    Whatever else it raised, and a call without a name or arguments, would end in an error in the
    place of the whole answer.
    """
    if parser is None:
        return None

    @wraps(parser)
    def parse(text: str, tools: Any) -> Any:
        try:
            parsed = parser(text, tools)
        except Exception as error:
            raise ValueError(f"{type(error).__name__}: {error}") from error
        for call in parsed if isinstance(parsed, list) else [parsed]:
            fits = isinstance(call, dict) and isinstance(call.get("name"), str)
            if not fits or "arguments" not in call:
                raise ValueError(f"not a call with a name and arguments: {shown(call)}")
        return parsed

    return parse


class StopTexts:
    """Finds the first stop text in an answer that comes in parts."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = tuple(texts)
        self._kept = max(map(len, self._texts), default=1) - 1
        self._tail = ""

    def end_in(self, part: str) -> int | None:
        """Index in `part` after the stop text that ends first; None if none ends in it."""
        text, before = self._tail + part, len(self._tail)
        ends = [at + len(stop) for stop in self._texts if (at := text.find(stop)) >= 0]
        self._tail = text[-self._kept :] if self._kept else ""
        return min(ends) - before if ends else None


class Positioned:
    """A sampler as mlx-lm's batches call it, once for each id of one request.

    It knows the position that it chooses for, so that a seed gives the same ids in a batch as in
    speculation.
    """

    def __init__(self, sampling: Sampling, position: int) -> None:
        self._sampling, self._position = sampling, position

    def __call__(self, logprobs: Array) -> Array:
        """The id i[1] for log-probabilities f[1, vocabulary]."""
        chosen = self._sampling.pick(logprobs, position=self._position)
        self._position += 1
        return chosen


@dataclass(kw_only=True, eq=False)
class Job:
    """A request that has been started. Only the scheduler's thread uses it.

    ids: prompt and answer so far. max_tokens: of the answer; the context has room for them.
    deadline: when the answer ends, finished or not. ended: why it ended; None until then.
    opening: the target's cache that was found for the prompt. draft: the draft's, until it is used.
    grammar: what the answer has to match; constraint: the same after this prompt.
    marks: numbers of prompt ids after which the cache is worth keeping, and what ends there.
    """

    queue: Queue[Any]
    asked: Asked
    args: GenerationArguments
    answer: Answer
    tokenizer: Any
    stop_ids: frozenset[TargetId]
    sampler: Sampling
    max_tokens: int
    deadline: float
    opening: Held = NOTHING
    draft: Sequence[Any] = ()
    marks: dict[int, str] = field(default_factory=dict)
    grammar: Grammar | None = None
    constraint: Constraint | None = None
    ended: Reason | None = None

    def __post_init__(self) -> None:
        self.ids: list[TargetId] = list(self.answer.prompt)
        self._prompt_length = len(self.ids)
        self._detokenizer = self.tokenizer.detokenizer
        self._stop_texts = StopTexts(self.args.stop_words)

    @property
    def emitted(self) -> list[TargetId]:
        """The answer so far."""
        return self.ids[self._prompt_length :]

    @property
    def room(self) -> int:
        """How many ids the answer may still have."""
        return self.max_tokens - (len(self.ids) - self._prompt_length)

    @property
    def is_abandoned(self) -> bool:
        """Whether nobody waits for the answer any more."""
        return bool(self.answer._should_stop) or self.asked.is_gone

    def take_opening(self) -> Held:
        """The cache that was found for the prompt. It is handed out once."""
        opening, self.opening = self.opening, NOTHING
        return opening

    def batch_sampler(self) -> Callable[[Array], Array]:
        """The sampler from the next id on, as mlx-lm's batches call it."""
        if self.sampler.temperature == 0:
            return make_sampler(0.0)  # type: ignore[no-any-return]  # one for all, so one call
        return Positioned(self.sampler, len(self.ids))

    def batch_processors(self) -> list[LogitsProcessor]:
        """What changes the logits, as mlx-lm's batches call it."""
        processors = list(self.sampler.processors)
        if self.constraint is not None:
            processors.append(masking(self.constraint))
        return processors

    def progress(self, read: int, total: int) -> None:
        """Tell how much of the prompt has been read; a stream sends that to keep it open."""
        self.queue.put((read, total))

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
        put = partial(self._put, token, logprobs, source, outcome)
        assert self.ended is None
        self.ids.append(token)
        self.answer.completion_tokens += 1
        reason: Reason | None = "length" if self.room <= 0 else None
        if token in self.stop_ids:
            reason = "stop"
        else:
            self._detokenizer.add_token(token)
        if reason is not None:
            self._detokenizer.finalize()
        text = self._detokenizer.last_segment
        end = self._stop_texts.end_in(text)
        if end is not None:
            # What precedes the stop text is shown; the handler takes the stop text away.
            put(text[:end], None)
            self.end("stop")
        elif reason == "stop":
            # The handler drops what it holds back, such as the first letters of a stop text, if an
            # answer stops, and shows it if its length ends it. Here it belongs to the answer.
            put(text, "length")
            self.end("stop")
        else:
            put(text, reason)
            self.ended = reason
        return self.ended is not None

    def end(self, reason: Reason) -> None:
        """End the answer without another id."""
        self.ended = reason
        self.queue.put(Emitted("", NO_TOKEN, 0.0, reason, _NOTHING))

    def close(self) -> None:
        """Nothing more will be handed over."""
        self.queue.put(None)

    def fail(self, error: Exception) -> None:
        """Hand over an error in the place of the rest of the answer."""
        self.queue.put(error)

    def _put(
        self,
        token: int,
        logprobs: Array | None,
        source: str,
        outcome: Outcome,
        text: str,
        reason: Reason | None,
    ) -> None:
        count, logprob, top = max(0, self.args.top_logprobs), 0.0, _NOTHING
        if logprobs is not None and (self.args.logprobs or count):
            row = logprobs.astype(mx.float32)
            logprob = float(row[token].item())
            top = _format_top_logprobs(row, count, self.tokenizer)
        number = self.answer.passes
        self.queue.put(Emitted(text, token, logprob, reason, top, source, outcome, number))
