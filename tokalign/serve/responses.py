"""OpenAI's responses: their fields as those of chat completions, answers as lists of items."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from time import time
from typing import Any

from msgspec import UNSET

from tokalign.conversation.blocks import Block, Step
from tokalign.conversation.history import named
from tokalign.conversation.other_histories import MORE_TOOLS, full_name, of_items
from tokalign.serve import Settings
from tokalign.serve.admission import Refusal
from tokalign.serve.answer import Choice, Rendering, Usage, event
from tokalign.serve.body import UNSERVED, Common, Object
from tokalign.serve.request import ApiRequest

_ELSEWHERE = "nothing is stored: send the whole input"
_UNSERVED = {
    "previous_response_id": _ELSEWHERE,
    "conversation": _ELSEWHERE,
    "prompt": "there are no stored prompts: send instructions and input",
    "background": "answers are given while the client waits; leave the field out",
}
_ECHOED: Mapping[str, Any] = {
    "frequency_penalty": 0,
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "presence_penalty": 0,
    "prompt_cache_key": None,
    "reasoning": {"effort": None, "summary": None},
    "safety_identifier": None,
    "temperature": None,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "top_logprobs": 0,
    "top_p": None,
    "user": None,
}
"""Fields of a request that its response repeats, and what stands there without them."""

_FUNCTION: Mapping[str, Any] = {"description": None, "parameters": None, "strict": None}
"""Fields that every function of a response has."""

_LOGPROBS = "message.output_text.logprobs"


class ResponsesBody(Common, kw_only=True):
    """The body of `/v1/responses`."""

    limits = ("max_output_tokens", *Common.limits)
    unserved = {**UNSERVED, **_UNSERVED}

    input: str | list[Object]
    instructions: str | None = None
    max_output_tokens: int | None = None
    tools: list[Object] = []  # the prompt names only functions
    tool_choice: Any = "auto"
    parallel_tool_calls: bool | None = None
    text: Object = {}
    include: list[Any] = []
    max_tool_calls: Any = None
    metadata: Any = None
    prompt_cache_key: Any = None
    safety_identifier: Any = None
    user: Any = None

    @property
    def formats(self) -> Object:
        return {**super().formats, "text.format": self.text.get("format")}

    @property
    def all_tools(self) -> list[tuple[str, Object | None]]:
        """The functions of the request, and those that items of its input add, with their paths;
        None for a tool that is none."""
        lists = [("tools", self.tools)]
        for path, item in () if isinstance(self.input, str) else named("input", self.input):
            if item.get("type") in MORE_TOOLS and isinstance(item.get("tools"), list):
                lists.append((f"{path}.tools", item["tools"]))
        return [tool for path, tools in lists for tool in _functions(path, tools)]

    def requests(self, settings: Settings, api_key: str) -> list[ApiRequest]:
        tools = [] if self.tool_choice == "none" else self.all_tools
        self.n, self.logprobs = 1, _LOGPROBS in self.include
        asked = self._chat(
            settings,
            api_key,
            messages=of_items(self.instructions, self.input),
            tools=[(path, _nested(tool)) for path, tool in tools],
            choice=_nested(self.tool_choice),
            several=self.parallel_tool_calls,
        )
        self.temperature = settings.temperature if self.temperature is UNSET else self.temperature
        self.top_p = settings.top_p if self.top_p is UNSET else self.top_p
        return asked


class Responses(Rendering):
    """`/v1/responses`."""

    form = ResponsesBody

    def __init__(self, body: ResponsesBody) -> None:
        super().__init__(body)
        self._echoed = {name: _echo(getattr(body, name), of) for name, of in _ECHOED.items()}
        self._echoed["tools"] = [
            {**_FUNCTION, **tool} if tool.get("type") == "function" else tool for tool in body.tools
        ]
        self._namespaced = {
            full_name(tool): {"name": tool.get("name"), "namespace": tool["namespace"]}
            for _, tool in body.all_tools
            if tool is not None and "namespace" in tool
        }
        self._number = -1  # of the last event
        self._logprobs: dict[int, list[dict[str, Any]]] = {}  # by the index of the block

    def begin(self, choices: Sequence[Choice]) -> Iterator[bytes]:
        begun = self._response(choices, "in_progress", [])
        yield self._event("response.created", response=begun)
        yield self.keep_alive()

    def step(self, choice: Choice, step: Step | None) -> Iterator[bytes]:
        if step is not None:
            yield from self._events(choice, step)

    def end(self, choices: Sequence[Choice]) -> Iterator[bytes]:
        response = self.whole(choices)
        yield self._event(f"response.{response['status']}", response=response)

    def keep_alive(self) -> bytes:
        """An event, since Codex counts nothing else as a sign of life."""
        return self.progress()

    def progress(self, **progress: Any) -> bytes:
        under_way = self._response([], "in_progress", [])
        return self._event("response.in_progress", response=under_way, **progress)

    def _events(self, choice: Choice, step: Step) -> Iterator[bytes]:
        block, at = step.block, step.at
        if step.what == "begin":
            block = replace(block, text="")  # what it has by now is its first delta
        name, field = _EVENTS[block.kind]
        part = {"item_id": self._item_id(block, at), "output_index": at}
        if has_parts := block.kind != "call":
            part["content_index"] = 0
        more: dict[str, Any] = {}
        if block.kind == "text":
            more["logprobs"] = self._added_logprobs(choice, at)
        content = self._content(block, at)
        if step.what == "begin":
            item = self._item(block, at, "in_progress")
            yield self._event("response.output_item.added", output_index=at, item=item)
            if has_parts:
                yield self._event("response.content_part.added", **part, part=content)
        elif step.what == "grow":
            yield self._event(f"{name}.delta", **part, delta=step.text, **more)
        elif step.what == "end":
            more = more and {"logprobs": self._logprobs[at]}
            yield self._event(f"{name}.done", **part, **{field: block.text}, **more)
            if has_parts:
                yield self._event("response.content_part.done", **part, part=content)
            item = self._item(block, at, _status(choice, at))
            yield self._event("response.output_item.done", output_index=at, item=item)

    def whole(self, choices: Sequence[Choice]) -> dict[str, Any]:
        (choice,) = choices
        status = "incomplete" if choice.reason == "length" else "completed"
        for at in [*choice.spoken]:
            self._added_logprobs(choice, at)
        output = [
            self._item(block, i, _status(choice, i))
            for i, block in enumerate(choice.blocks)
            if not block.is_broken
        ]
        return self._response(choices, status, output)

    def _added_logprobs(self, choice: Choice, at: int) -> list[dict[str, Any]]:
        """Log-probabilities of the tokens that a block of text has got since the last call."""
        added = self.logprobs(choice, choice.spoken.pop(at, ()))
        self._logprobs.setdefault(at, []).extend(added)
        return added

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
        cut = {"reason": "max_output_tokens"} if status == "incomplete" else None
        return {
            **self._echoed,
            **self.notes(choices),
            "id": f"resp_{self.id}",
            "object": "response",
            "created_at": self.created,
            "completed_at": int(time()) if status == "completed" else None,
            "status": status,
            "error": None,
            "incomplete_details": cut,
            "model": self.model,
            "output": output,
            "previous_response_id": None,
            "background": False,
            "service_tier": "default",
            "store": False,
            "truncation": "disabled",
            "usage": None if status == "in_progress" else _usage(choices),
        }

    def _item_id(self, block: Block, index: int) -> str:
        return f"{_ITEMS[block.kind]}_{self.id}_{index}"

    def _item(self, block: Block, index: int, status: str) -> dict[str, Any]:
        item = {"id": self._item_id(block, index), "status": status}
        content = [] if status == "in_progress" else [self._content(block, index)]
        match block.kind:
            case "text":
                return {**item, "type": "message", "role": "assistant", "content": content}
            case "thought":
                return {**item, "type": "reasoning", "summary": [], "content": content}
            case "call":
                call = {"call_id": block.id, "name": block.name, "arguments": block.text}
                named = self._namespaced.get(block.name, {})
                return {**item, "type": "function_call", **call, **named}

    def _content(self, block: Block, index: int) -> dict[str, Any]:
        if block.kind == "thought":
            return {"type": "reasoning_text", "text": block.text}
        logprobs = self._logprobs.get(index, [])
        return {"type": "output_text", "text": block.text, "annotations": [], "logprobs": logprobs}


def _echo(value: Any, default: Any) -> Any:
    """A field as its response has it: an object also with what the request does not give."""
    if isinstance(value, dict) and isinstance(default, dict):
        return default | {name: inner for name, inner in value.items() if inner is not None}
    return default if value is None or value is UNSET else value


def _usage(choices: Sequence[Choice]) -> dict[str, Any]:
    usage = Usage.of(choices)
    return {
        "input_tokens": usage.prompt,
        "input_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": 0},
        "output_tokens": usage.completion,
        "output_tokens_details": {"reasoning_tokens": usage.thought},
        "total_tokens": usage.prompt + usage.completion,
    }


def _status(choice: Choice, index: int) -> str:
    """The status of an item at its end. Clients run calls that are completed."""
    is_complete = index != choice.cut and not choice.blocks[index].is_broken
    return "completed" if is_complete else "incomplete"


_EVENTS = {
    "text": ("response.output_text", "text"),
    "thought": ("response.reasoning_text", "text"),
    "call": ("response.function_call_arguments", "arguments"),
}
_ITEMS = {"text": "msg", "thought": "rs", "call": "fc"}


# -- requests --------------------------------------------------------------------------------------


def _functions(path: str, tools: Sequence[Any]) -> Iterator[tuple[str, Object | None]]:
    """The functions among tools, with their paths; those in a namespace, where Codex has MCP's,
    with its name. None stands for another tool."""
    for place, tool in named(path, tools):
        match tool:
            case {"type": "function"}:
                yield place, tool
            case {"type": "namespace", "name": name, "tools": [*inner]}:
                for inside, each in _functions(f"{place}.tools", inner):
                    yield inside, each and {**each, "namespace": name}
            case _:
                yield place, None


def _nested(tool: Any) -> Any:
    """A function, or the choice of one, as chat completions have it."""
    if not isinstance(tool, dict) or tool.get("type") != "function" or "function" in tool:
        return tool
    own = {name: value for name, value in tool.items() if name not in ("type", "namespace")}
    function = {name: value for name, value in own.items() if value is not None}
    if isinstance(tool.get("name"), str):
        function["name"] = full_name(tool)
    return {"type": "function", "function": function}
