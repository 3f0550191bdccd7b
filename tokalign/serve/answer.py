"""An answer as every API writes it: blocks of text, thought and tool calls, which grow.

A `Choice` makes steps out of the responses of one job; mlx-lm's text state machine finds thoughts
and calls in them. A `Rendering` writes the steps of a request's choices as one API has them: every
API has one, and they share everything before this. Read next: `completions.py`.
"""

from __future__ import annotations

import json
import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from time import time
from typing import Any, ClassVar, Literal, NamedTuple
from uuid import uuid4

from mlx_lm.generate import TextStateMachine

from tokalign.serve.admission import Refusal
from tokalign.serve.body import Common
from tokalign.serve.job import NO_TOKEN, Answer, Emitted, Reason
from tokalign.serve.request import Asked
from tokalign.tokenizer.vocabulary import token_bytes

_LOG = logging.getLogger(__name__)

Kind = Literal["text", "thought", "call"]

_ERRORS = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}

_UNLIKELY = -9999.0
"""Sent for a log-probability that is no finite number, as by OpenAI: JSON has no other numbers."""


@dataclass(slots=True)
class Block:
    """A part of an answer. text: of a call its arguments, in JSON. id, name: of a call."""

    kind: Kind
    text: str = ""
    id: str = ""
    name: str = ""


class Step(NamedTuple):
    """What becomes of a block: it begins, grows by a text, or ends. at: which one it is."""

    what: Literal["begin", "grow", "end"]
    at: int
    block: Block
    text: str = ""


class Choice:
    """One answer to one prompt.

    counts_prompt: whether it is the first to its prompt. tokens: responses that were not written
    yet. shown: characters of those that were. reason: why it ended; None
    until then.
    """

    def __init__(
        self,
        index: int,
        asked: Asked,
        answer: Answer,
        *,
        counts_prompt: bool = True,
    ) -> None:
        self.index, self.asked, self.answer = index, asked, answer
        self.counts_prompt = counts_prompt
        self.blocks: list[Block] = []
        self.tokens: list[Emitted] = []
        self.shown = 0
        self.thought_tokens = 0
        self.reason: Reason | Literal["tool_calls"] | None = None
        self._machine = answer.text_sm.make_state(answer.initial_state)
        self._state = answer.initial_state
        self._call = ""
        self._space = ""  # after a thought or a call: a text's, if one comes

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
        return [block for block in self.blocks if block.kind == "call"]

    def feed(self, response: Emitted) -> Iterator[Step]:
        """The steps that a response makes."""
        if response.token != NO_TOKEN:
            self.tokens.append(response)
            self.thought_tokens += self._state == "reasoning"
        self._machine, segments = TextStateMachine.split(self._machine, response.text)
        ends = response.finish_reason is not None
        if ends:
            self._machine, held, state = TextStateMachine.flush(self._machine)
            segments.append((state, held))
        for state, text in segments:
            yield from self._add(state, text)
        if ends:
            yield from self._end_calls()
            yield from self._end()
            stopped = response.finish_reason == "stop"
            self.reason = "tool_calls" if stopped and self.calls else response.finish_reason

    def _add(self, state: str, text: str) -> Iterator[Step]:
        if state != "tool":
            yield from self._end_calls()
        self._state = state
        if state == "tool":
            self._call += text
        elif text:
            yield from self._grow("thought" if state == "reasoning" else "text", text)

    def _grow(self, kind: Kind, text: str) -> Iterator[Step]:
        before = self.blocks[-1].kind if self.blocks else None
        if kind == "text" and before not in ("text", None):
            self._space = text = self._space + text
            if text.isspace():
                return
        if before != kind:
            yield from self._begin(Block(kind))
        self._space = ""
        self.blocks[-1].text += text
        yield Step("grow", len(self.blocks) - 1, self.blocks[-1], text)

    def _begin(self, block: Block) -> Iterator[Step]:
        yield from self._end()
        self.blocks.append(block)
        yield Step("begin", len(self.blocks) - 1, block)

    def _end(self) -> Iterator[Step]:
        """The end of the last block: when the next one begins, or the answer ends."""
        if self.blocks:
            yield Step("end", len(self.blocks) - 1, self.blocks[-1])

    def _end_calls(self) -> Iterator[Step]:
        """The calls in a text that has ended; none where mlx-lm's parser finds none."""
        text, self._call = self._call, ""
        if not text:
            return
        try:
            parsed = self.answer.tool_parser(text, list(self.asked.tools))
            blocks = [
                Block(
                    "call",
                    json.dumps(call["arguments"], ensure_ascii=False),
                    str(call.get("id") or uuid4()),
                    call["name"].strip(),
                )
                for call in (parsed if isinstance(parsed, list) else [parsed])
            ]
        except Exception as error:  # parsers raise what they like about a text that is cut off
            _LOG.warning("a tool call cannot be read (%s: %s)", type(error).__name__, error)
            return
        for block in blocks:
            yield from self._begin(block)
            yield Step("grow", len(self.blocks) - 1, block, block.text)


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
        firsts = [one.answer for one in choices if one.counts_prompt]
        return cls(
            prompt=sum(len(answer.prompt) for answer in firsts),
            cached=sum(answer.prompt_cache_count for answer in firsts),
            completion=sum(one.answer.completion_tokens for one in choices),
            accepted=sum(one.answer.accepted for one in choices),
            rejected=sum(one.answer.rejected for one in choices),
            thought=sum(one.thought_tokens for one in choices),
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

    @staticmethod
    def error(refusal: Refusal) -> dict[str, Any]:
        """An error in the API's form: OpenAI's."""
        return openai_error(refusal)

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

    def logprobs(self, choice: Choice, tokens: Sequence[Emitted]) -> list[dict[str, Any]]:
        """Log-probabilities of a choice's tokens, most probable first; none if none are wanted."""
        if not self.wants_logprobs:
            return []
        vocabulary = choice.answer.tokenizer.vocabulary

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


def openai_error(refusal: Refusal) -> dict[str, Any]:
    """An error in OpenAI's form."""
    kind = _ERRORS.get(refusal.status)
    kind = kind or ("invalid_request_error" if refusal.status < 500 else "server_error")
    return {"error": {"message": str(refusal), "type": kind, "param": None, "code": refusal.code}}


def event(data: Any, name: str | None = None) -> bytes:
    """A server-sent event."""
    head = "" if name is None else f"event: {name}\n"
    return f"{head}data: {json.dumps(data)}\n\n".encode()
