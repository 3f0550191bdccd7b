"""OpenAI's responses: their fields as those of chat completions, answers as lists of items."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tokalign.errors import shown
from tokalign.serve.admission import Refusal
from tokalign.serve.answer import Choice, Rendering, Steps, Usage, event
from tokalign.serve.blocks import Block, Step
from tokalign.serve.body import as_list, is_text_part, merged

_ELSEWHERE = "nothing is stored: send the whole input"
_UNSERVED: Mapping[str, str] = {
    "previous_response_id": _ELSEWHERE,
    "conversation": _ELSEWHERE,
    "prompt": "there are no stored prompts: send instructions and input",
    "background": "answers are given while the client waits; leave the field out",
}
_ECHOED: Mapping[str, Any] = {
    "instructions": None,
    "max_output_tokens": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "reasoning": None,
    "temperature": None,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_p": None,
    "user": None,
}
"""Fields of a request that its response repeats, and what stands there without them."""

_TEXT_PARTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text")
_LOGPROBS = "message.output_text.logprobs"


class Responses(Rendering):
    """`/v1/responses`."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._number = -1  # of the last event
        self._logprobs: dict[int, list[dict[str, Any]]] = {}  # by the index of the block

    @staticmethod
    def translate(given: dict[str, Any]) -> dict[str, Any]:
        body = dict(given)
        for name, remedy in _UNSERVED.items():
            if body.pop(name, None):
                code = "previous_response_not_found" if name.startswith("prev") else None
                raise Refusal(400, f"{name} is not served: {remedy}", code=code)
        given_input = body.pop("input", None)
        if isinstance(given_input, str):
            given_input = [{"role": "user", "content": given_input}]
        instructions = {"role": "system", "content": body.pop("instructions", "")}
        items = as_list("input", given_input)
        body["messages"] = merged([instructions, *_messages(items)])
        if "max_output_tokens" in body:
            body["max_tokens"] = body.pop("max_output_tokens")
        if "tools" in body:
            tools = as_list("tools", body["tools"])
            body["tools"] = [_nested(tool) for tool in tools if _can(tool)]
        if isinstance(body.get("tool_choice"), dict):
            body["tool_choice"] = _nested(body["tool_choice"])
        text = body.pop("text", None)
        form = text.get("format") if isinstance(text, dict) else None
        if isinstance(form, dict):
            body["response_format"] = {**form, "json_schema": form}
        body["n"], body["logprobs"] = 1, _LOGPROBS in as_list("include", body.get("include", []))
        body.pop("stream_options", None)  # of which none is about what is sent here
        return body

    def stream(self, choices: Sequence[Choice], steps: Steps) -> Iterator[bytes]:
        response = self._response(choices, "in_progress", [])
        yield self._event("response.created", response=response)
        yield self._event("response.in_progress", response=response)
        for choice, step in steps:
            if step is not None:
                yield from self._events(choice, step)
        response = self.whole(choices)
        yield self._event(f"response.{response['status']}", response=response)

    def _events(self, choice: Choice, step: Step) -> Iterator[bytes]:
        block, at = step.block, step.at
        if step.what == "alive":
            yield self._event("keepalive")
            return
        name, field = _EVENTS[block.kind]
        part = {"item_id": self._item_id(block, at), "output_index": at}
        if has_parts := block.kind != "call":
            part["content_index"] = 0
        more: dict[str, Any] = {}
        if block.kind == "text":
            more["logprobs"] = self.logprobs(choice, choice.take_tokens())
            self._logprobs.setdefault(at, []).extend(more["logprobs"])
        content = self._content(block, at)
        if step.what == "begin":
            item = self._item(block, at, "in_progress")
            yield self._event("response.output_item.added", output_index=at, item=item)
            if has_parts:
                yield self._event("response.content_part.added", **part, part=content)
        elif step.what == "grow":
            yield self._event(f"{name}.delta", **part, delta=step.text, **more)
        else:
            more = more and {"logprobs": self._logprobs[at]}
            yield self._event(f"{name}.done", **part, **{field: block.text}, **more)
            if has_parts:
                yield self._event("response.content_part.done", **part, part=content)
            item = self._item(block, at, "completed")
            yield self._event("response.output_item.done", output_index=at, item=item)

    def whole(self, choices: Sequence[Choice]) -> dict[str, Any]:
        (choice,) = choices
        status = "incomplete" if choice.reason == "length" else "completed"
        if texts := [i for i, block in enumerate(choice.blocks) if block.kind == "text"]:
            rest = self.logprobs(choice, choice.take_tokens())
            self._logprobs.setdefault(texts[-1], []).extend(rest)
        output = [
            self._item(block, i, "completed")
            for i, block in enumerate(choice.blocks)
            if not block.is_broken
        ]
        return self._response(choices, status, output)

    def fail(self, refusal: Refusal) -> bytes:
        error = {"code": "server_error", "message": str(refusal)}
        response = {**self._response([], "failed", []), "error": error}
        return self._event("response.failed", response=response)

    def _event(self, kind: str, **more: Any) -> bytes:
        self._number += 1
        return event({"type": kind, "sequence_number": self._number, **more}, kind)

    def _response(
        self, choices: Sequence[Choice], status: str, output: list[dict[str, Any]]
    ) -> dict[str, Any]:
        usage = Usage.of(choices)
        cut = {"reason": "max_output_tokens"} if status == "incomplete" else None
        return {
            **{name: self.given.get(name, default) for name, default in _ECHOED.items()},
            "id": f"resp_{self.id}",
            "object": "response",
            "created_at": self.created,
            "status": status,
            "error": None,
            "incomplete_details": cut,
            "model": self.model,
            "output": output,
            "previous_response_id": None,
            "store": False,
            "truncation": "disabled",
            "usage": {
                "input_tokens": usage.prompt,
                "input_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": 0},
                "output_tokens": usage.completion,
                "output_tokens_details": {"reasoning_tokens": usage.thought},
                "total_tokens": usage.prompt + usage.completion,
            }
            if output or status != "in_progress"
            else None,
        }

    def _item_id(self, block: Block, index: int) -> str:
        return f"{_ITEMS[block.kind]}_{self.id}_{index}"

    def _item(self, block: Block, index: int, status: str) -> dict[str, Any]:
        item = {"id": self._item_id(block, index), "status": status}
        content = [self._content(block, index)] if status == "completed" else []
        match block.kind:
            case "text":
                return {**item, "type": "message", "role": "assistant", "content": content}
            case "thought":
                return {**item, "type": "reasoning", "summary": [], "content": content}
            case "call":
                call = {"call_id": block.id, "name": block.name, "arguments": block.text}
                return {**item, "type": "function_call", **call}

    def _content(self, block: Block, index: int) -> dict[str, Any]:
        if block.kind == "thought":
            return {"type": "reasoning_text", "text": block.text}
        logprobs = self._logprobs.get(index, [])
        return {"type": "output_text", "text": block.text, "annotations": [], "logprobs": logprobs}


_EVENTS = {
    "text": ("response.output_text", "text"),
    "thought": ("response.reasoning_text", "text"),
    "call": ("response.function_call_arguments", "arguments"),
}
_ITEMS = {"text": "msg", "thought": "rs", "call": "fc"}


# -- requests --------------------------------------------------------------------------------------


def _messages(items: Sequence[Any]) -> Iterator[dict[str, Any]]:
    """Items of the input as messages; what the assistant says and calls in a row is one of them."""
    said: dict[str, Any] = {}
    for index, item in enumerate(items):
        message = _message(index, item)
        if message["role"] != "assistant":
            if said:
                yield said
            said = {}
            yield message
            continue
        said = said or {"role": message.pop("role"), "content": []}
        for name, value in message.items():
            if name != "role":
                said[name] = said[name] + value if name in said else value
    if said:
        yield said


def _message(index: int, item: Any) -> dict[str, Any]:
    match item:
        case {"role": str(role)}:
            role = "system" if role == "developer" else role
            return {"role": role, "content": _parts(item.get("content"))}
        case {"type": "function_call", "call_id": str(name), "name": str(), "arguments": str()}:
            function = {"name": item["name"], "arguments": item["arguments"]}
            call = {"type": "function", "id": name, "function": function}
            return {"role": "assistant", "tool_calls": [call]}
        case {"type": "function_call_output", "call_id": str(name), "output": output}:
            return {"role": "tool", "tool_call_id": name, "content": _parts(output)}
        case {"type": "reasoning"}:
            parts = [part for part in _parts(item.get("content")) if is_text_part(part)]
            thought = "".join(part["text"] for part in parts)
            return {"role": "assistant", "reasoning_content": thought}
    kind = item.get("type") if isinstance(item, dict) else item
    raise Refusal(
        400,
        f"input[{index}] has to be a message, a function_call, a function_call_output or a "
        f"reasoning item, with all of its fields, not {shown(kind)}",
    )


def _parts(content: Any) -> list[Any]:
    """Parts as in chat completions. Others are left as they are, and refused there."""
    if not isinstance(content, list):
        return [{"type": "text", "text": "" if content is None else content}]
    return [
        {"type": "text", "text": part.get("text")}
        if isinstance(part, dict) and part.get("type") in _TEXT_PARTS
        else part
        for part in content
    ]


def _can(tool: Any) -> bool:
    """Whether a tool is a function. The model is told of no others, such as those of OpenAI."""
    return not isinstance(tool, dict) or tool.get("type") == "function"


def _nested(tool: Any) -> Any:
    """A function, or the choice of one, as chat completions have it."""
    if not isinstance(tool, dict) or tool.get("type") != "function":
        return tool
    function = {name: value for name, value in tool.items() if name != "type" and value is not None}
    return {"type": "function", "function": function}
