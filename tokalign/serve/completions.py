"""OpenAI's chat completions and completions, as mlx-lm's server writes them."""

from __future__ import annotations

import platform
from codecs import getincrementaldecoder
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from typing import Any, ClassVar, cast

from tokalign import __version__
from tokalign.conversation.blocks import Block, Step
from tokalign.runtime.rounds import Reading
from tokalign.serve.admission import Refusal
from tokalign.serve.answer import Choice, Rendering, Usage, event
from tokalign.serve.body import Chat, Common, Completion
from tokalign.serve.job import Emitted
from tokalign.tokenizer.vocabulary import TargetId

_DONE = b"data: [DONE]\n\n"
_FINGERPRINT = f"tokalign-{__version__}-mlx-{version('mlx')}-{platform.platform()}"


class Chats(Rendering):
    """`/v1/chat/completions`."""

    form: ClassVar[type[Common]] = Chat
    kind, prefix = "chat.completion", "chatcmpl-"

    def __init__(self, body: Chat | Completion) -> None:
        super().__init__(body)
        self._tells_sources = body.tokalign.sources
        self._wants_usage = body.stream_options.include_usage
        self._tells_progress = body.return_progress

    def begin(self, choices: Sequence[Choice]) -> Iterator[bytes]:
        delta = {"role": "assistant", "content": ""}  # the role comes once
        for choice in choices:
            yield self._chunk([{**self._frame(choice), "delta": delta}], **self.notes(choices))

    def step(self, choice: Choice, step: Step | None) -> Iterator[bytes]:
        """A chunk wherever a block grows, or begins with more than its kind, a last one, and empty
        signs of life."""
        if step is not None and step.what == "begin":
            tells = step.block.kind == "call" or choice.before(step.at) != ""
        else:
            tells = step is None or step.what != "end"
        if tells:
            yield self._chunk([self._part(choice, step)])

    def reading(self, reading: Reading) -> list[bytes]:
        """A chunk where the request asks for it, as llama.cpp's server writes it."""
        if not self._tells_progress:
            return super().reading(reading)
        progress = {"total": reading.total, "processed": reading.done}
        return [self._chunk([], prompt_progress=progress)]

    def end(self, choices: Sequence[Choice]) -> Iterator[bytes]:
        if self._wants_usage:
            yield self._chunk([], usage=_usage(choices))
        yield _DONE

    def whole(self, choices: Sequence[Choice]) -> dict[str, Any]:
        made = [self._whole(choice) for choice in choices]
        return self._object(self.kind, made, usage=_usage(choices), **self.notes(choices))

    def fail(self, refusal: Refusal) -> bytes:
        return event(self.error(refusal)) + _DONE

    def _chunk(self, choices: list[dict[str, Any]], **more: Any) -> bytes:
        return event(self._object(f"{self.kind}.chunk", choices, **more))

    def _object(self, kind: str, choices: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        return {
            "id": self.prefix + self.id,
            "system_fingerprint": _FINGERPRINT,
            "object": kind,
            "model": self.model,
            "created": self.created,
            "choices": choices,
            **more,
        }

    def _frame(self, choice: Choice) -> dict[str, Any]:
        """What every part of a choice has."""
        frame: dict[str, Any] = {"index": choice.index, "finish_reason": choice.reason}
        tokens, choice.tokens = choice.tokens, []
        if self.wants_logprobs:
            frame["logprobs"] = self._shown(choice, self.logprobs(choice, tokens))
        if self._tells_sources:
            frame["tokalign"] = _origins(choice, tokens)
        return frame

    def _shown(self, choice: Choice, content: list[dict[str, Any]]) -> dict[str, Any]:
        return {"content": content}

    def _part(self, choice: Choice, step: Step | None) -> dict[str, Any]:
        delta: dict[str, Any] = {}
        if step is not None and step.what != "alive":
            if step.block.kind == "call":
                index = sum(block.kind == "call" for block in choice.blocks[: step.at])
                grown = {"function": {"arguments": step.text}}
                begun = _call(replace(step.block, text="")) if step.what == "begin" else grown
                delta["tool_calls"] = [{**begun, "index": index}]
            else:
                text = choice.before(step.at) if step.what == "begin" else step.text
                delta["content" if step.block.kind == "text" else "reasoning"] = text
        return {**self._frame(choice), "delta": delta}

    def _whole(self, choice: Choice) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": choice.text("text") or None}
        if thought := choice.text("thought"):
            message["reasoning"] = thought
        if calls := choice.calls:
            message["tool_calls"] = [_call(block) for block in calls]
        return {**self._frame(choice), "message": message}


class Completions(Chats):
    """`/v1/completions`."""

    form = Completion
    kind, prefix = "text_completion", "cmpl-"

    def __init__(self, body: Completion) -> None:
        super().__init__(body)
        self._echoes = body.echo
        # A character's bytes may be in several tokens.
        self._decoders = defaultdict[int, Any](partial(getincrementaldecoder("utf-8"), "replace"))

    def begin(self, choices: Sequence[Choice]) -> Iterator[bytes]:
        for choice in choices if self._echoes else ():
            text = self._prompt(choice)
            yield self._chunk([{"index": choice.index, "finish_reason": None, "text": text}])

    def _chunk(self, choices: list[dict[str, Any]], **more: Any) -> bytes:
        return event(self._object(self.kind, choices, **more))

    def _part(self, choice: Choice, step: Step | None) -> dict[str, Any]:
        is_text = step is not None and step.block.kind == "text"
        return {**self._frame(choice), "text": step.text if step and is_text else ""}

    def _whole(self, choice: Choice) -> dict[str, Any]:
        before = self._prompt(choice) if self._echoes else ""
        return {**self._frame(choice), "text": before + choice.text("text")}

    @staticmethod
    def _prompt(choice: Choice) -> str:
        prompt = choice.job.request.prompt
        if isinstance(prompt, str):
            return prompt
        return choice.job.tokenizer.decode(cast("list[TargetId]", prompt))

    def _shown(self, choice: Choice, content: list[dict[str, Any]]) -> dict[str, Any]:
        offsets = []
        for entry in content:
            offsets.append(choice.shown)
            choice.shown += len(self._decoders[choice.index].decode(bytes(entry["bytes"])))
        # The token that was chosen is among them, as in OpenAI's API, whatever its rank.
        tops = [[*entry["top_logprobs"], entry] for entry in content]
        return {
            "content": content,
            "text_offset": offsets,
            "tokens": list(map(_spelled, content)),
            "token_logprobs": [entry["logprob"] for entry in content],
            "top_logprobs": [
                {_spelled(candidate): candidate["logprob"] for candidate in top} for top in tops
            ],
        }


def _spelled(entry: dict[str, Any]) -> str:
    """A token as a name that no other one has: bytes that are no text are written as by OpenAI."""
    data = bytes(entry["bytes"])
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def _origins(choice: Choice, tokens: Sequence[Emitted]) -> dict[str, Any]:
    """Who proposed each of these tokens; see `docs/serve.md`."""
    origins = [
        {"text": token.text, "source": token.source, "outcome": token.outcome, "pass": token.number}
        for token in tokens
    ]
    return {"tokens": origins}


def _call(block: Block) -> dict[str, Any]:
    function = {"name": block.name, "arguments": block.text}
    return {"function": function, "type": "function", "id": block.id}


def _usage(choices: Sequence[Choice]) -> dict[str, Any]:
    usage = Usage.of(choices)
    return {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.completion,
        "total_tokens": usage.prompt + usage.completion,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
        "completion_tokens_details": {
            "reasoning_tokens": usage.thought,
            "accepted_prediction_tokens": usage.accepted,
            "rejected_prediction_tokens": usage.rejected,
        },
    }
