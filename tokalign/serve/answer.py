"""An answer as every API writes it.

A `Choice` makes steps out of the responses of one job; `Blocks` finds thoughts and calls in them.
A `Rendering` writes the steps of a request's choices as one API has them: every API has one, and
they share everything before this. Read next: `completions.py`.
"""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from time import time
from typing import Any, ClassVar, Literal, NamedTuple
from uuid import uuid4

from tokalign.serve.admission import Refusal
from tokalign.serve.blocks import Block, Blocks, Kind, Step
from tokalign.serve.incoming import held_back
from tokalign.serve.job import NO_TOKEN, Answer, Asked, Emitted, Reason
from tokalign.tokenizer.vocabulary import token_bytes

_ERRORS = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}

_UNLIKELY = -9999.0
"""Sent for a log-probability that is no finite number, as by OpenAI: JSON has no other numbers."""


Steps = Iterator[tuple["Choice", Step | None]]
"""The steps of all choices; None follows the last one of each."""


class Choice:
    """One answer to one prompt.

    responses: of its job. counts_prompt: whether it is the first to its prompt. tokens: responses
    that were not written yet. shown: characters of those that were. reason: why it ended; None
    until then.
    """

    def __init__(
        self,
        index: int,
        asked: Asked,
        answer: Answer,
        responses: Iterable[Emitted],
        *,
        counts_prompt: bool = True,
    ) -> None:
        self.index, self.asked, self.answer = index, asked, answer
        self._responses, self.counts_prompt = responses, counts_prompt
        self.tokens: list[Emitted] = []
        self.shown = 0
        self.thought_tokens = 0
        self.reason: Reason | Literal["tool_calls"] | None = None
        self._text = Blocks(answer.form, tools=asked.tools or (), opens_in=answer.opens_in)
        self._held = ""  # may be the beginning of a stop text

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

    def steps(self) -> Iterator[Step]:
        """The steps that the responses make."""
        for response in self._responses:
            yield from self.feed(response)

    def feed(self, response: Emitted) -> Iterator[Step]:
        """The steps that one response makes."""
        if response.token != NO_TOKEN:
            self.tokens.append(response)
            self.thought_tokens += self._text.kind == "thought"
        text, ends = self._held + response.text, response.finish_reason is not None
        if ends and self.answer.stop_text is not None:
            text = text.removesuffix(self.answer.stop_text)
        held = 0 if ends else held_back(text, tuple(self.asked.stop_words))
        text, self._held = text[: len(text) - held], text[len(text) - held :]
        yield from self._text.feed(text)
        if ends:
            yield from self._text.end(cut=response.finish_reason == "length")
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

    given: the request's body as it came. body: in the fields of chat completions or completions.
    """

    is_chat: ClassVar[bool] = True

    def __init__(self, given: dict[str, Any], body: dict[str, Any]) -> None:
        self.given, self.body = given, body
        self.created, self.id = int(time()), uuid4().hex
        self.model = str(body.get("model", "default_model"))
        self.wants_logprobs = bool(body.get("logprobs") or body.get("top_logprobs", 0) > 0)

    @staticmethod
    def translate(given: dict[str, Any]) -> dict[str, Any]:
        """A body in the fields of chat completions. Raises: Refusal."""
        return given

    @staticmethod
    def error(refusal: Refusal) -> dict[str, Any]:
        """An error in the API's form: OpenAI's."""
        kind = _ERRORS.get(refusal.status)
        kind = kind or ("invalid_request_error" if refusal.status < 500 else "server_error")
        return {
            "error": {"message": str(refusal), "type": kind, "param": None, "code": refusal.code}
        }

    @abstractmethod
    def stream(self, choices: Sequence[Choice], steps: Steps) -> Iterator[bytes]:
        """The events of the answer as it comes."""

    @abstractmethod
    def whole(self, choices: Sequence[Choice]) -> dict[str, Any]:
        """The answer that is no stream."""

    @abstractmethod
    def fail(self, refusal: Refusal) -> bytes:
        """The last events of a stream that fails."""

    def keep_alive(self, read: int, total: int) -> bytes:
        """What a stream sends while a prompt is read."""
        return f": keepalive {read}/{total}\n\n".encode()

    def logprobs(self, choice: Choice, tokens: Sequence[Emitted]) -> list[dict[str, Any]]:
        """Log-probabilities of a choice's tokens, most probable first; none if none are wanted."""
        vocabulary = choice.answer.tokenizer.vocabulary

        def of(token: Any, logprob: float) -> dict[str, Any]:
            data = token_bytes(vocabulary.tokens, token)
            data = data or vocabulary.specials.get(token, "").encode()
            text = data.decode("utf-8", "replace")
            logprob = logprob if math.isfinite(logprob) else _UNLIKELY
            return {"id": token, "token": text, "logprob": logprob, "bytes": list(data)}

        found = []
        for one in tokens if self.wants_logprobs else ():
            top = sorted(one.top_tokens, key=lambda other: -float(other["logprob"]))
            likely = [of(other["id"], other["logprob"]) for other in top]
            found.append({**of(one.token, one.logprob), "top_logprobs": likely})
        return found


def event(data: Any, name: str | None = None) -> bytes:
    """A server-sent event."""
    head = "" if name is None else f"event: {name}\n"
    return f"{head}data: {json.dumps(data)}\n\n".encode()
