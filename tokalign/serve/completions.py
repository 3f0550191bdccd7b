"""OpenAI's chat completions and completions: their fields, and answers as mlx-lm's server writes
them."""

from __future__ import annotations

import platform
from codecs import getincrementaldecoder
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from typing import Any, ClassVar, cast

import msgspec
from msgspec import Struct

from tokalign import __version__
from tokalign.conversation.blocks import Block, Step
from tokalign.conversation.history import named
from tokalign.errors import require
from tokalign.runtime.rounds import Reading
from tokalign.serve import Settings
from tokalign.serve.admission import Refusal, unserved
from tokalign.serve.answer import Choice, Rendering, Usage, event
from tokalign.serve.body import MOST_CHOICES, UNSERVED, Common, Object, repeated
from tokalign.serve.job import Emitted
from tokalign.serve.request import ApiRequest
from tokalign.tokenizer.vocabulary import TargetId

_DONE = b"data: [DONE]\n\n"
_FINGERPRINT = f"tokalign-{__version__}-mlx-{version('mlx')}-{platform.platform()}"


class StreamOptions(Struct, kw_only=True):
    """Options of a stream of chat completions or completions."""

    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False


class Chat(Common, kw_only=True):
    """The body of `/v1/chat/completions`; other APIs' chats are written as one."""

    limits = ("n_predict", "max_completion_tokens", "max_tokens")
    unserved = {**UNSERVED, "echo": "the client has the message that is continued; leave it out"}

    messages: list[Object]
    tools: list[Object] = []
    tool_choice: Any = "auto"
    parallel_tool_calls: bool | None = None
    logprobs: bool = False
    include_reasoning: bool = True  # vLLM's
    max_completion_tokens: int | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | str | None = None
    stream_options: StreamOptions = msgspec.field(default_factory=StreamOptions)

    def requests(self, settings: Settings, api_key: str) -> list[ApiRequest]:
        last: Object = self.messages[-1] if self.messages else {}
        goes_on = last.get("role") == "assistant" and not last.get("tool_calls")
        for name, is_so in (
            ("continue_final_message", goes_on),
            ("add_generation_prompt", not goes_on),
        ):
            value = getattr(self, name)
            if value is not None and bool(value) != is_so:
                remedy = "a last message is continued if it is the assistant's, and no other is"
                raise unserved(f"{name}: {str(bool(value)).lower()}", remedy)
        return self._chat(
            settings,
            api_key,
            messages=named("messages", self.messages),
            tools=[*named("tools", self.tools)],
            choice=self.tool_choice,
            several=self.parallel_tool_calls,
        )


class Completion(Common, kw_only=True):
    """The body of `/v1/completions`. prompt: a text or the ids of one, or a list of these."""

    unserved = {**UNSERVED, "add_special_tokens": "give the ids of the prompt"}

    prompt: str | list[Any]
    suffix: str = ""
    echo: bool = False
    skip_special_tokens: bool = False  # its text is what its ids say
    stream_options: StreamOptions = msgspec.field(default_factory=StreamOptions)

    def requests(self, settings: Settings, api_key: str) -> list[ApiRequest]:
        prompts = _prompts(self.prompt)
        count = len(prompts) * self.n
        require(count <= MOST_CHOICES, f"at most {MOST_CHOICES} answers are given, not {count}")
        if not isinstance(self.logprobs, bool):  # as OpenAI's older API has it
            self.top_logprobs = max(self.top_logprobs, self.logprobs)
            self.logprobs = self.logprobs >= 0
        if self.echo and self.logprobs:
            raise unserved(
                "echo", "log-probabilities of prompts are not computed; leave one of both out"
            )
        ignored = tuple(self._effort)[:1]  # no template is told
        request = self._request(settings, api_key, suffix=self.suffix, not_enforced=ignored)
        found: list[ApiRequest] = []
        for prompt in prompts:
            sampling = self._sampling(settings)  # with a seed of its own, if none is given
            found += repeated(replace(request, prompt=prompt, sampling=sampling), self.n)
        return found


class Chats(Rendering):
    """`/v1/chat/completions`."""

    form: ClassVar[type[Common]] = Chat
    kind, prefix = "chat.completion", "chatcmpl-"
    chunk_kind = "chat.completion.chunk"

    def __init__(self, body: Chat | Completion) -> None:
        super().__init__(body)
        self._tells_sources = body.tokalign.sources
        self._wants_usage = body.stream_options.include_usage
        self._counts_on = self._wants_usage and body.stream_options.continuous_usage_stats
        self._tells_progress = body.return_progress
        self._tells_thoughts = isinstance(body, Completion) or body.include_reasoning
        self._choices: Sequence[Choice] = ()

    def begin(self, choices: Sequence[Choice]) -> Iterator[bytes]:
        self._choices = choices
        delta = {"role": "assistant", "content": ""}  # the role comes once
        for choice in choices:
            yield self._chunk([{**self._frame(choice), "delta": delta}], **self.notes(choices))

    def step(self, choice: Choice, step: Step | None) -> Iterator[bytes]:
        """A chunk wherever a block grows, or begins with more than its kind, and a last one."""
        if step is not None and step.what == "begin":
            tells = step.block.kind == "call" or choice.before(step.at) != ""
        else:
            tells = step is None or step.what != "end"
        if tells:
            yield self._chunk([self._part(choice, step)])

    def keep_alive(self) -> bytes:
        return b": keep-alive\n\n"

    def progress(self, **progress: Any) -> bytes:
        return self._chunk([], **progress)

    def reading(self, reading: Reading) -> list[bytes]:
        """A chunk where the request asks for it; else a comment, as mlx-lm's server writes it."""
        if self._tells_progress:
            return super().reading(reading)
        return [f": keepalive {reading.done}/{reading.total}\n\n".encode()]

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
        if self._counts_on:
            more = {"usage": _usage(self._choices), **more}
        return event(self._object(self.chunk_kind, choices, **more))

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
        if choice.job.request.top_logprobs is not None:
            frame["logprobs"] = self._shown(choice, self.logprobs(choice, tokens))
        if self._tells_sources:
            frame["tokalign"] = _origins(choice, tokens)
        return frame

    def _shown(self, choice: Choice, content: list[dict[str, Any]]) -> dict[str, Any]:
        return {"content": content}

    def _part(self, choice: Choice, step: Step | None) -> dict[str, Any]:
        delta: dict[str, Any] = {}
        if step is not None:
            if step.block.kind == "call":
                index = sum(block.kind == "call" for block in choice.blocks[: step.at])
                grown = {"function": {"arguments": step.text}}
                begun = _call(replace(step.block, text="")) if step.what == "begin" else grown
                delta["tool_calls"] = [{**begun, "index": index}]
            else:
                text = choice.before(step.at) if step.what == "begin" else step.text
                if step.block.kind == "text":
                    delta["content"] = text
                elif self._tells_thoughts:  # or the part is only a sign of life
                    delta["reasoning"] = text
        return {**self._frame(choice), "delta": delta}

    def _whole(self, choice: Choice) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": choice.text("text") or None}
        if self._tells_thoughts and (thought := choice.text("thought")):
            message["reasoning"] = thought
        if calls := choice.calls:
            message["tool_calls"] = [_call(block) for block in calls]
        return {**self._frame(choice), "message": message}


class Completions(Chats):
    """`/v1/completions`."""

    form = Completion
    kind, prefix = "text_completion", "cmpl-"
    chunk_kind = kind

    def __init__(self, body: Completion) -> None:
        super().__init__(body)
        self._echoes = body.echo
        # A character's bytes may be in several tokens.
        self._decoders = defaultdict[int, Any](partial(getincrementaldecoder("utf-8"), "replace"))

    def begin(self, choices: Sequence[Choice]) -> Iterator[bytes]:
        self._choices, notes = choices, self.notes(choices)
        for choice in choices if self._echoes or notes else ():
            text = self._prompt(choice) if self._echoes else ""
            part = {"index": choice.index, "finish_reason": None, "text": text}
            yield self._chunk([part], **notes)

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


def _prompts(prompt: str | list[Any]) -> list[str | list[int]]:
    """Texts, or the ids of texts: one of either, or a list of them."""
    is_list = isinstance(prompt, list) and all(isinstance(part, str | list) for part in prompt)
    prompts = list(prompt) if is_list and prompt else [prompt]
    many = f"prompt has {len(prompts)} texts, but at most {MOST_CHOICES} may be"
    require(len(prompts) <= MOST_CHOICES, many)
    for part in prompts:
        are_ids = isinstance(part, list) and all(type(token) is int for token in part)
        fits = isinstance(part, str) or are_ids
        require(fits, "prompt has to be a text, the ids of one, or a list of these, not {}", part)
    return prompts
