"""An answer as every API writes it.

A `Choice` makes steps out of the responses of one job; `Blocks` finds thoughts and calls in them.
A `Rendering` writes the steps of a request's choices as one API has them: every API has one, and
they share everything before this. Read next: `completions.py`.
"""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from time import time
from typing import Any, ClassVar, Literal, NamedTuple
from uuid import uuid4

from tokalign.conversation.blocks import Block, Blocks, Kind, Step
from tokalign.serve.admission import Refusal
from tokalign.serve.body import Common
from tokalign.serve.job import NO_TOKEN, Emitted, Job, Reason
from tokalign.tokenizer.vocabulary import token_bytes

_ERRORS = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}

_UNLIKELY = -9999.0
"""Sent for a log-probability that is no finite number, as by OpenAI: JSON has no other numbers."""


def openai_error(refusal: Refusal) -> dict[str, Any]:
    """An error in OpenAI's form."""
    kind = _ERRORS.get(refusal.status)
    kind = kind or ("invalid_request_error" if refusal.status < 500 else "server_error")
    return {"error": {"message": str(refusal), "type": kind, "param": None, "code": refusal.code}}


class Choice:
    """One answer to one prompt.

    counts_prompt: whether it is the first to its prompt. tokens: responses that were not written
    yet. shown: characters of those that were. reason: why it ended; None until then. cut: the index
    of the block for which there was no room.
    """

    def __init__(self, index: int, job: Job, *, counts_prompt: bool = True) -> None:
        self.index, self.job, self.counts_prompt = index, job, counts_prompt
        self.tokens: list[Emitted] = []
        self.shown = 0
        self.thought_tokens = 0
        self.reason: Reason | Literal["tool_calls"] | None = None
        self.cut: int | None = None
        self._text = Blocks(job.form, tools=job.request.tools, opens_in=job.opens_in)

    @property
    def blocks(self) -> list[Block]:
        """All blocks so far."""
        return self._text.blocks

    def text(self, kind: Kind) -> str:
        """The text of all blocks of a kind."""
        return "".join(block.text for block in self.blocks if block.kind == kind)

    def take_tokens(self) -> list[Emitted]:
        """The tokens since the last call."""
        tokens, self.tokens = self.tokens, []
        return tokens

    @property
    def calls(self) -> list[Block]:
        """The tools that were called."""
        return [block for block in self.blocks if block.kind == "call" and not block.is_broken]

    def feed(self, response: Emitted) -> Iterator[Step]:
        """The steps that a response makes."""
        if response.token != NO_TOKEN:
            self.tokens.append(response)
            self.thought_tokens += self._text.kind == "thought"
        yield from self._text.feed(response.text)
        if response.finish_reason is not None:
            is_cut = response.finish_reason == "length"
            for step in self._text.end(cut=is_cut):
                if is_cut and step.what == "end":
                    self.cut = step.at
                yield step
            stopped = response.finish_reason == "stop"
            self.reason = "tool_calls" if stopped and self.calls else response.finish_reason


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
        jobs = [choice.job for choice in choices]
        firsts = [choice.job for choice in choices if choice.counts_prompt]
        return cls(
            prompt=sum(len(job.prompt.target) for job in firsts),
            cached=sum(job.cached for job in firsts),
            completion=sum(job.completion_tokens for job in jobs),
            accepted=sum(job.accepted for job in jobs),
            rejected=sum(job.rejected for job in jobs),
            thought=sum(choice.thought_tokens for choice in choices),
        )


class Rendering(ABC):
    """One API's way of writing an answer, of which one is made for each request.

    form: the fields of the API's body. streams: whether the answer is a stream. per_prompt: choices
    of each prompt. A stream is what `begin`, every `step` and `end` give;
    a step of None follows the last one of a choice.
    """

    form: ClassVar[type[Common]]

    def __init__(self, body: Common) -> None:
        self.created, self.id, self.model = int(time()), uuid4().hex, body.model
        self.streams, self.per_prompt = body.stream, body.n
        self.wants_logprobs = bool(body.logprobs or body.top_logprobs > 0)

    error = staticmethod(openai_error)  # in the API's form

    @abstractmethod
    def begin(self, choices: Sequence[Choice]) -> Iterator[bytes]:
        """The first events of a stream."""

    @abstractmethod
    def step(self, choice: Choice, step: Step | None) -> Iterator[bytes]:
        """The events of a step."""

    @abstractmethod
    def end(self, choices: Sequence[Choice]) -> Iterator[bytes]:
        """The last events of a stream."""

    @abstractmethod
    def whole(self, choices: Sequence[Choice]) -> dict[str, Any]:
        """The answer that is no stream."""

    @abstractmethod
    def fail(self, refusal: Refusal) -> bytes:
        """The last events of a stream that fails."""

    def keep_alive(self) -> bytes:
        """What a stream sends while nothing else is to be said."""
        return b": keep-alive\n\n"

    @staticmethod
    def notes(choices: Sequence[Choice]) -> dict[str, Any]:
        """A field of ours beside those of the API: what was asked of the answer in vain."""
        paths = choices[0].job.not_enforced if choices else ()
        return {"tokalign": {"not_enforced": list(paths)}} if paths else {}

    def logprobs(self, choice: Choice, tokens: Sequence[Emitted]) -> list[dict[str, Any]]:
        """Log-probabilities of a choice's tokens, most probable first; none if none are wanted."""
        if not self.wants_logprobs:
            return []
        vocabulary = choice.job.tokenizer.vocabulary

        def of(token: Any, logprob: float) -> dict[str, Any]:
            data = token_bytes(vocabulary.tokens, token)
            data = data or vocabulary.specials.get(token, "").encode()
            text = data.decode("utf-8", "replace")
            logprob = logprob if math.isfinite(logprob) else _UNLIKELY
            return {"id": token, "token": text, "logprob": logprob, "bytes": list(data)}

        found = []
        for one in tokens:
            top = sorted(one.top_tokens, key=lambda other: -float(other["logprob"]))
            likely = [of(other["id"], other["logprob"]) for other in top]
            found.append({**of(one.token, one.logprob), "top_logprobs": likely})
        return found


def event(data: Any, name: str | None = None) -> bytes:
    """A server-sent event."""
    head = "" if name is None else f"event: {name}\n"
    return f"{head}data: {json.dumps(data)}\n\n".encode()
