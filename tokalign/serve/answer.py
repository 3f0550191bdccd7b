"""An answer as every API writes it.

A `Choice` makes steps out of the tokens of one job, by `Blocks`, which finds thoughts and calls.
Every API has a `Rendering`, which writes the steps of all choices. Read next: `completions.py`.
"""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from time import time
from typing import Any, ClassVar, Literal, NamedTuple
from uuid import uuid4

from tokalign.conversation.blocks import Block, Blocks, Kind, Step
from tokalign.runtime.rounds import FinishReason, Reading
from tokalign.serve.admission import Refusal
from tokalign.serve.body import Common
from tokalign.serve.job import NO_TOKEN, Emitted, Job
from tokalign.tokenizer.vocabulary import token_bytes

ERRORS = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
"""Types of errors that every API calls so, by status."""

_UNLIKELY = -9999.0
"""Sent for a log-probability that is no finite number, as by OpenAI: JSON has no other numbers."""


def openai_error(refusal: Refusal) -> dict[str, Any]:
    """An error in OpenAI's form."""
    kind = "invalid_request_error" if refusal.status < 500 else "server_error"
    kind = ERRORS.get(refusal.status, kind)
    about = {"type": kind, "param": refusal.param, "code": refusal.code}
    return {"error": {"message": str(refusal), **about}}


class Choice:
    """One answer to one prompt.

    counts_prompt: whether it is the first to its prompt. count: of its tokens. tokens: those that
    were not written yet; spoken: of each block of text, by its index. shown: characters of those
    that were. reason: why it ended. cut: the index of the block for which there was no room.
    """

    def __init__(self, index: int, job: Job, *, counts_prompt: bool = True) -> None:
        self.index, self.job, self.counts_prompt = index, job, counts_prompt
        self.count = 0
        self.tokens: list[Emitted] = []
        self.shown = 0
        self.spoken: defaultdict[int, list[Emitted]] = defaultdict(list)
        self._unplaced: list[Emitted] = []
        self.thought_tokens = 0
        self.reason: FinishReason | Literal["tool_calls"] | None = None
        self.cut: int | None = None
        self._text = Blocks(job.form, tools=job.request.tools, opens_in=job.opens_in)
        self._end: int | None = None  # after the only call that the request takes

    @property
    def blocks(self) -> list[Block]:
        """The parts of the answer, as far as the client gets them."""
        return self._text.blocks[: self._end]

    def text(self, kind: Kind) -> str:
        """The text of all blocks of a kind, for an API that writes them as one."""
        parts = ((i, block.text) for i, block in enumerate(self.blocks) if block.kind == kind)
        return "".join(self.before(index) + text for index, text in parts)

    def before(self, index: int) -> str:
        """What comes between a block and the one before it of its kind where both are one text: a
        blank line, unless there is nothing else between them. A broken call is their text too."""
        whole = [block.kind for block in self.blocks[: index + 1] if not block.is_broken]
        return "\n\n" if whole[-1] in whole[:-2] and whole[-2] != whole[-1] else ""

    @property
    def calls(self) -> list[Block]:
        return [block for block in self.blocks if block.kind == "call" and not block.is_broken]

    def feed(self, emitted: Emitted) -> Iterator[Step]:
        """The steps that a token makes; none after the only call that the request takes, where it
        does not count: how many tokens follow is a matter of time."""
        if emitted.token != NO_TOKEN and self._end is None:
            self.count += 1
            self.tokens.append(emitted)
            if self._text.kind == "thought":
                self.thought_tokens += 1
            else:
                self._unplaced.append(emitted)
        yield from self._taken(self._text.feed(emitted.text))
        if emitted.finish_reason is not None:
            is_cut, is_enough = emitted.finish_reason == "length", self._end is not None
            for step in self._text.end(cut=is_cut):
                if is_cut and step.what == "end" and self._end is None:
                    self.cut = step.at
                yield from self._taken([step])
            is_cut = is_cut and not is_enough
            self.reason = "tool_calls" if self.calls and not is_cut else emitted.finish_reason

    def _taken(self, steps: Iterable[Step]) -> Iterator[Step]:
        for step in steps:
            if self._end is not None:
                return
            is_call = step.block.kind == "call" and step.what == "end" and not step.block.is_broken
            if is_call and self.job.request.several_calls is False:
                self._end = step.at + 1
                self.job.is_enough = True
            if step.what == "grow":  # the tokens that came before are the block's
                if step.block.kind == "text":
                    self.spoken[step.at] += self._unplaced
                self._unplaced = []
            yield step


class Usage(NamedTuple):
    """Tokens of a request. prompt: of every prompt once; cached: those of them not read again."""

    prompt: int
    cached: int
    completion: int
    accepted: int
    rejected: int
    thought: int

    @classmethod
    def of(cls, choices: Sequence[Choice]) -> Usage:
        """Those of all choices."""
        counted = [choice.job.statistics for choice in choices]
        accepted = sum(each.num_accepted_draft_tokens for each in counted)
        completion = sum(choice.count for choice in choices)
        firsts = [choice.job for choice in choices if choice.counts_prompt]
        return cls(
            prompt=sum(len(job.prompt.target) for job in firsts),
            cached=sum(job.cached for job in firsts),
            completion=completion,
            accepted=min(accepted, completion),  # or of tokens after an only call
            rejected=sum(each.num_draft_tokens for each in counted) - accepted,
            thought=sum(choice.thought_tokens for choice in choices),
        )


class Rendering(ABC):
    """One API's way of writing an answer, of which one is made for each request.

    form: the fields of the API's body. error: a refusal in the API's form. streams: whether the
    answer is a stream. per_prompt: choices of each prompt.
    A stream is what `begin`, every `step` and `end` give, or `fail` in the place of what is left; a
    step of None follows the last one of a choice. `whole` is the answer that is no stream.
    """

    form: ClassVar[type[Common]]
    error = staticmethod(openai_error)

    def __init__(self, body: Common) -> None:
        self.created, self.id, self.model = int(time()), uuid4().hex, body.model
        self.streams, self.per_prompt = body.stream, body.n

    @abstractmethod
    def begin(self, choices: Sequence[Choice]) -> Iterator[bytes]: ...

    @abstractmethod
    def step(self, choice: Choice, step: Step | None) -> Iterator[bytes]: ...

    @abstractmethod
    def end(self, choices: Sequence[Choice]) -> Iterator[bytes]: ...

    @abstractmethod
    def whole(self, choices: Sequence[Choice]) -> dict[str, Any]: ...

    @abstractmethod
    def fail(self, refusal: Refusal) -> bytes: ...

    @abstractmethod
    def keep_alive(self) -> bytes:
        """What a stream sends while it has nothing else to send."""

    @abstractmethod
    def progress(self, **progress: Any) -> bytes:
        """An event with this field more, `prompt_progress` in llama.cpp's words."""

    def reading(self, reading: Reading) -> list[bytes]:
        """What a stream sends after a step of reading the prompt."""
        return [self.progress(prompt_progress={"total": reading.total, "processed": reading.done})]

    @staticmethod
    def notes(choices: Sequence[Choice]) -> dict[str, Any]:
        """Our own field beside those of the API: what could not be enforced."""
        paths = choices[0].job.not_enforced if choices else ()
        return {"tokalign": {"not_enforced": list(paths)}} if paths else {}

    def logprobs(self, choice: Choice, tokens: Sequence[Emitted]) -> list[dict[str, Any]]:
        """Log-probabilities of a choice's tokens, most probable first; none if none are wanted."""
        if choice.job.request.top_logprobs is None:
            return []
        vocabulary = choice.job.tokenizer.vocabulary

        def entry(token: Any, logprob: float) -> dict[str, Any]:
            data = token_bytes(vocabulary.tokens, token)
            data = data or vocabulary.specials.get(token, "").encode()
            text = data.decode("utf-8", "replace")
            logprob = logprob if math.isfinite(logprob) else _UNLIKELY
            return {"id": token, "token": text, "logprob": logprob, "bytes": list(data)}

        entries = []
        for token in tokens:
            likely = [entry(*pair) for pair in sorted(token.top_tokens, key=lambda pair: -pair[1])]
            entries.append({**entry(token.token, token.logprob), "top_logprobs": likely})
        return entries


def event(data: Any, name: str | None = None) -> bytes:
    """A server-sent event."""
    head = "" if name is None else f"event: {name}\n"
    return f"{head}data: {json.dumps(data)}\n\n".encode()
