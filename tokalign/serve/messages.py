"""Anthropic's messages: their fields as those of chat completions, answers in their form."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tokalign.conversation.blocks import Block, Step
from tokalign.conversation.history import named
from tokalign.conversation.other_histories import of_messages
from tokalign.serve import Settings
from tokalign.serve.admission import Refusal
from tokalign.serve.answer import ERRORS, Choice, Rendering, Usage, event
from tokalign.serve.body import Common, Object
from tokalign.serve.request import ApiRequest

_ERRORS: Mapping[int, str] = ERRORS | {
    404: "not_found_error",
    413: "request_too_large",
    503: "overloaded_error",
}
_NO_THREAD = "thread_not_found"
"""Anthropic's code after which its clients send the whole conversation."""

_REASONS: Mapping[str | None, str] = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
}


class MessagesBody(Common, kw_only=True):
    """The body of `/v1/messages`."""

    stops = "stop_sequences"

    messages: list[Object]
    system: str | list[Any] = []
    stop_sequences: list[str] = []
    tools: list[Object] = []
    tool_choice: Object = {}
    output_config: Object = {}
    output_format: Any = None  # the older name of `output_config.format`
    thread: Object = {}  # one that begins holds the whole conversation

    @property
    def formats(self) -> Object:
        forms = {
            "output_config.format": self.output_config.get("format"),
            "output_format": self.output_format,
        }
        written = {
            name: {**form, "strict": True} for name, form in forms.items() if isinstance(form, dict)
        }
        return {**super().formats, **forms, **written}

    def requests(self, settings: Settings, api_key: str) -> list[ApiRequest]:
        if self.thread.get("type") == "continue":
            told = "a thread cannot continue, as nothing is stored: send the whole conversation"
            raise Refusal(404, told, code=_NO_THREAD)
        messages = of_messages(self.system, self.messages)
        self.n = 1
        if isinstance(effort := self.output_config.get("effort"), str):
            self.reasoning_effort = effort
        choice: Any = self.tool_choice.get("type", "auto")
        disabled = self.tool_choice.get("disable_parallel_tool_use")
        if choice == "tool":
            choice = {"function": {"name": str(self.tool_choice.get("name"))}}
        # The prompt does not name the tools that Anthropic runs. Claude Code loads deferred tools
        # during a conversation: after the others, they leave the kept context of those valid.
        tools = [*named("tools", self.tools)] if choice != "none" else []
        tools.sort(key=lambda pair: pair[1].get("defer_loading") is True)
        return self._chat(
            settings,
            api_key,
            messages=messages,
            tools=[(path, _tool(tool)) for path, tool in tools],
            choice=choice,
            several=not disabled if isinstance(disabled, bool) else None,
        )


class Messages(Rendering):
    """`/v1/messages`."""

    form = MessagesBody

    @staticmethod
    def error(refusal: Refusal) -> dict[str, Any]:
        kind = "invalid_request_error" if refusal.status < 500 else "api_error"
        kind = _ERRORS.get(refusal.status, kind)
        error: dict[str, Any] = {"type": kind, "message": str(refusal)}
        if refusal.code == _NO_THREAD:
            error["details"] = {"error_code": _NO_THREAD}
        return {"type": "error", "error": error}

    def begin(self, choices: Sequence[Choice]) -> Iterator[bytes]:
        yield _event("message_start", message=self._message(choices, []))

    def step(self, choice: Choice, step: Step | None) -> Iterator[bytes]:
        if step is not None:
            yield from _events(step)

    def end(self, choices: Sequence[Choice]) -> Iterator[bytes]:
        message = self._message(choices, [])
        delta = {name: message[name] for name in ("stop_reason", "stop_sequence")}
        yield _event("message_delta", delta=delta, usage=message["usage"])
        yield _event("message_stop")

    def whole(self, choices: Sequence[Choice]) -> dict[str, Any]:
        return self._message(choices, [_content(b) for b in choices[0].blocks if not b.is_broken])

    def fail(self, refusal: Refusal) -> bytes:
        return event(self.error(refusal), "error")

    def keep_alive(self) -> bytes:
        return self.progress()

    def progress(self, **progress: Any) -> bytes:
        return _event("ping", **progress)

    def _message(self, choices: Sequence[Choice], content: list[dict[str, Any]]) -> dict[str, Any]:
        (choice,) = choices
        usage, reason = Usage.of(choices), _REASONS.get(choice.reason)
        stop = choice.job.stop_text if reason == "end_turn" else None
        return {
            "id": f"msg_{self.id}",
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": content,
            "stop_reason": "stop_sequence" if stop else reason,
            "stop_sequence": stop,
            "usage": {
                "input_tokens": usage.prompt - usage.cached,
                "cache_creation_input_tokens": 0,
                "cache_read_input_tokens": usage.cached,
                "output_tokens": usage.completion if choice.reason else 0,
                "output_tokens_details": {"thinking_tokens": usage.thought},
            },
            **self.notes(choices),
        }


def _events(step: Step) -> Iterator[bytes]:
    block, at = step.block, step.at
    if step.what == "begin":
        empty = _content(Block(block.kind, "", block.id, block.name))
        yield _event("content_block_start", index=at, content_block=empty)
    elif step.what == "grow":
        kind, name = _DELTAS[block.kind]
        yield _event("content_block_delta", index=at, delta={"type": kind, name: step.text})
    else:
        if block.kind == "thought":
            signature = {"type": "signature_delta", "signature": ""}
            yield _event("content_block_delta", index=at, delta=signature)
        yield _event("content_block_stop", index=at)


_DELTAS = {
    "text": ("text_delta", "text"),
    "thought": ("thinking_delta", "thinking"),
    "call": ("input_json_delta", "partial_json"),
}


def _event(kind: str, **more: Any) -> bytes:
    return event({"type": kind, **more}, kind)


def _content(block: Block) -> dict[str, Any]:
    match block.kind:
        case "text":
            return {"type": "text", "text": block.text}
        case "thought":
            return {"type": "thinking", "thinking": block.text, "signature": ""}
        case "call":
            try:
                arguments = json.loads(block.text or "{}")
                json.dumps(arguments, allow_nan=False)
            except ValueError:  # there was no room for all of it, or 1e999 is none of our numbers
                arguments = {"arguments": block.text}
            return {"type": "tool_use", "id": block.id, "name": block.name, "input": arguments}


# -- requests --------------------------------------------------------------------------------------


def _tool(tool: Object) -> Object | None:
    """A tool as chat completions have it; None for one that Anthropic runs."""
    if (tool.get("type") or "custom") != "custom":
        return None
    parameters = tool.get("input_schema", {"type": "object", "properties": {}})
    function = {"name": tool.get("name"), "parameters": parameters}
    if tool.get("strict") is True:
        function["strict"] = True
    if "description" in tool:
        function["description"] = tool["description"]
    return {"type": "function", "function": function}
