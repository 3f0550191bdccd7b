"""The messages of a chat in the form of chat completions (`other_histories.py` writes other APIs'
so) as a chat template reads them. Nothing is dropped silently."""

from __future__ import annotations

from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

import msgspec

from tokalign.conversation.rendering import Message
from tokalign.conversation.tools import function_of
from tokalign.errors import UsageError, require

_ROLES: Mapping[str, str] = {
    "system": "system",
    "developer": "system",  # OpenAI's newer name, which templates do not know
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",  # OpenAI's older name
}
Item = TypeVar("Item")

_TEXTS = ("text", "input_text", "output_text", "refusal", "summary_text", "reasoning_text")


def named(field: str, items: Iterable[Item]) -> Iterator[tuple[str, Item]]:
    """Items of a request's field, each with its path."""
    return ((f"{field}[{index}]", item) for index, item in enumerate(items))


def read_messages(messages: Iterable[tuple[str, Mapping[str, Any]]]) -> list[Message]:
    """Messages in the form of chat completions, each content a text.

    messages: each with its path in the request, and {"role", "content": a text, parts or None,
    "tool_calls", ...}; other keys are kept for the template. A part that is no text is refused in
    the last question; elsewhere a sentence stands in its place, so that a history stays usable.
    Raises: UsageError that names the path.
    """
    messages = [*messages]
    require(bool(messages), "messages is empty: there is nothing to answer")
    roles = [message.get("role") for _, message in messages]
    last = max((i for i, role in enumerate(roles) if role == "user"), default=-1)
    read = [
        _message(path, message, is_question=index == last)
        for index, (path, message) in enumerate(messages)
    ]
    names: dict[str, str] = {}
    for message in read:
        for call in message.get("tool_calls", ()):
            names[str(call.get("id"))] = call["function"]["name"]
        called = names.get(str(message.get("tool_call_id", "")))
        if message["role"] == "tool" and called is not None:
            message.setdefault("name", called)  # FunctionGemma's template writes it
    return read


def _message(name: str, message: Mapping[str, Any], *, is_question: bool) -> Message:
    role = message.get("role")
    known = isinstance(role, str) and role in _ROLES
    require(known, f"{name}.role has to be {', '.join(_ROLES)}, not {{}}", role)
    content = message.get("content")
    read = {name: value for name, value in message.items() if value is not None}
    read["role"] = role = _ROLES[str(role)]
    if isinstance(content, list):
        strict = is_question and role == "user"
        parts = [
            _part(f"{name}.content[{i}]", part, strict=strict) for i, part in enumerate(content)
        ]
        content = ("" if role == "assistant" else "\n\n").join(filter(None, parts))
    require(
        content is None or isinstance(content, str),
        f"{name}.content has to be a text or a list of parts, not {{}}",
        content,
    )
    read["content"] = content or ""
    if "reasoning" in read:  # as this server names it, and mlx-lm's
        read.setdefault("reasoning_content", read.pop("reasoning"))
    if "reasoning_content" in read:  # as gpt-oss's template names it
        read.setdefault("thinking", read["reasoning_content"])
    if call := read.pop("function_call", None):  # OpenAI's older form of one call
        read.setdefault("tool_calls", [{"type": "function", "function": call}])
    if calls := read.pop("tool_calls", None):
        read["tool_calls"] = _calls(f"{name}.tool_calls", calls)
    return read


def _part(name: str, part: object, *, strict: bool) -> str:
    """A part as text. strict: refuse what is none. Raises: UsageError."""
    if isinstance(part, str):
        return part
    require(isinstance(part, dict), f"{name} has to be an object, not {{}}", part)
    assert isinstance(part, dict)
    kind = part.get("type")
    if kind in _TEXTS:
        text = part.get("text", part.get("refusal"))
        require(isinstance(text, str), f"{name}.text has to be a text, not {{}}", text)
        return str(text)
    text = _document(name, part)
    if text is not None:
        return text
    if strict:
        raise UsageError(
            f"{name} is of type {str(kind)[:40]!r}, but only text is served; images and files are "
            "never fetched"
        )
    return f"[A part of type {str(kind)[:40]} was left out here: this model reads only text.]"


def _document(name: str, part: Mapping[str, Any]) -> str | None:
    """The text of a document, a search result or news of a tool; None for what has none."""
    match part:
        case {"type": "document", "source": {"type": "text", "data": str(text)}}:
            return _titled(part, text)
        case {"type": "document", "source": {"type": "base64", "media_type": str(kind)} as source}:
            if not kind.startswith("text/"):
                return None
            try:
                return _titled(part, b64decode(str(source.get("data"))).decode("utf-8"))
            except (Base64Error, UnicodeDecodeError, ValueError):
                return None
        case {"type": "document", "source": {"type": "content", "content": content}}:
            return _titled(part, _joined(f"{name}.source.content", content))
        case {"type": "search_result", "content": content}:
            return _titled(part, _joined(f"{name}.content", content))
        case {"type": "tool_reference", "tool_name": str(tool)} | {
            "type": "tool_addition",
            "tool": {"name": str(tool)},
        }:
            return f"[The tool {tool} is available.]"
        case {"type": "tool_removal", "tool": {"name": str(tool)}}:
            return f"[The tool {tool} is no longer available.]"
    return None


def _titled(part: Mapping[str, Any], text: str) -> str:
    """A document's text after its title and source."""
    head = [value for name in ("title", "source") if isinstance(value := part.get(name), str)]
    return "\n".join([*filter(None, head), text])


def _joined(name: str, content: object) -> str:
    parts = content if isinstance(content, list) else [content] if isinstance(content, str) else []
    return "\n".join(_part(path, part, strict=False) for path, part in named(name, parts))


def _calls(name: str, calls: object) -> list[Any]:
    """Calls of tools, with their arguments as objects, which templates write as JSON. What is no
    object becomes one argument named "arguments"."""
    require(isinstance(calls, list), f"{name} has to be a list, not {{}}", calls)
    read = []
    for index, call in enumerate(calls if isinstance(calls, list) else ()):
        match call:
            case {"type": "custom", "id": own, "custom": {"name": called, "input": given}}:
                made = {"name": called, "arguments": {"input": given}}
                call = {"type": "function", "id": own, "function": made}
        function = function_of(call)
        if function is None:
            raise UsageError(f"{name}[{index}] has to be a call with a function name")
        arguments = function.get("arguments")
        if isinstance(arguments, str):
            try:
                arguments = msgspec.json.decode(arguments or "{}")
            except (msgspec.MsgspecError, RecursionError):  # it was cut, or is no JSON in UTF-8
                arguments = {"arguments": arguments}
        if not isinstance(arguments, dict):
            arguments = {} if arguments is None else {"arguments": arguments}
        read.append({**call, "function": {**function, "arguments": arguments}})
    return read
