"""The fields of a request that mlx-lm's handler does not check, or not strictly enough.

A field that is null counts as left out, and an unknown field is ignored, as clients send
many of both.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, cast

from tokalign.arguments import shown
from tokalign.runtime.chat import RESERVED
from tokalign.serve.admission import Refusal
from tokalign.serve.structured import ANY_TOOL

_MOST_TOP_LOGPROBS = 11
_MOST_STOP_CHARACTERS = 4096
"""mlx-lm keeps what it has made of the stop texts of a hundred requests, 500 bytes a character."""

_RESERVED = RESERVED | {"tools"}
"""A request has a field of its own for tools."""

_UNSERVED: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    "echo": ("the prompt is never part of the answer; leave the field out", bool),
    "suffix": ("nothing is written before a given end; leave the field out", bool),
    "best_of": ("one answer is made per request; leave the field out", lambda value: value != 1),
    "functions": ("give the functions as tools", bool),
}
"""Fields of OpenAI's API that ask for another answer than is given: why or what instead, and when.

A client that got an answer all the same would take it for what it has asked for.
"""

_ROLES = ("system", "developer", "user", "assistant", "tool", "function")


def read_json(data: bytes) -> dict[str, Any]:
    """The JSON object that a body is. Raises: Refusal for anything else, NaN included."""
    try:
        body = json.loads(data.decode("utf-8"), parse_constant=_no_number)
        json.dumps(body, ensure_ascii=False).encode("utf-8")  # a lone surrogate is no text
    except UnicodeError as error:
        raise Refusal(400, f"the body is not valid UTF-8: {error}") from error
    except (ValueError, RecursionError) as error:
        raise Refusal(400, f"the body is not valid JSON: {error}") from error
    if not isinstance(body, dict):
        raise Refusal(400, f"the body has to be a JSON object, not {shown(body)}")
    return {name: value for name, value in body.items() if value is not None}


def check(body: dict[str, Any], *, chat: bool) -> dict[str, Any]:
    """The fields as mlx-lm's handler expects them. Raises: Refusal."""
    body = dict(body)
    count = body.get("n", 1)
    is_one = count == 1 and not isinstance(count, bool)
    _require(is_one, "n has to be 1, not {}: one answer per request", count)
    for name, (remedy, asks) in _UNSERVED.items():
        if name in body and asks(body[name]):
            raise Refusal(400, f"{name} is not served: {remedy}", code="unsupported_parameter")
    _check_stop(body.get("stop", []))
    for name in ("stream_options", "chat_template_kwargs", "role_mapping"):
        value = body.get(name, {})
        _require(isinstance(value, dict), f"{name} has to be an object, not {{}}", value)
    if "stream_options" in body:  # the handler looks for this key without asking if it is there
        body["stream_options"] = {"include_usage": False, **body["stream_options"]}
    bias = body.get("logit_bias")  # of which mlx-lm's handler refuses the rest itself
    for value in bias.values() if isinstance(bias, dict) else ():
        is_number = isinstance(value, int | float | str)
        _require(is_number, "logit_bias has to give ids numbers, not {}", value)
    if reserved := _RESERVED & body.get("chat_template_kwargs", {}).keys():
        raise Refusal(400, f"chat_template_kwargs may not have {', '.join(sorted(reserved))}")
    for name in ("model", "draft_model"):
        value = body.get(name, "")
        _require(isinstance(value, str), f"{name} has to be a text, not {{}}", value)
    if chat:
        _check_messages(body.get("messages"))
        _check_tools(body)
    else:
        body["prompt"] = _prompt(body.get("prompt"))
        _spread_logprobs(body)
    return body


def predicted(body: Mapping[str, Any]) -> str | None:
    """The text of OpenAI's `prediction`, which the answer may largely repeat. Raises: Refusal."""
    given = body.get("prediction")
    if given is None:
        return None
    is_content = isinstance(given, dict) and given.get("type", "content") == "content"
    _require(is_content, 'prediction has to be an object {{"type": "content", "content": ...}}')
    content = given.get("content")
    if isinstance(content, list) and all(_is_text_part(part) for part in content):
        content = "".join(part["text"] for part in content)
    _require(isinstance(content, str), "prediction.content has to be a text, not {}", content)
    return cast("str", content)


def tool_choice(body: Mapping[str, Any]) -> str | None:
    """The tool that has to be called, `ANY_TOOL`, or None where none has to. Raises: Refusal."""
    choice = body.get("tool_choice", "auto")
    if isinstance(choice, dict):
        function = _function_of(choice)
        _require(
            function is not None,
            'tool_choice has to name a function: {{"type": "function", '
            '"function": {{"name": ...}}}}',
        )
        return str((function or {})["name"])
    words = ("auto", "none", "required")
    _require(
        choice in words, f"tool_choice has to be {', '.join(words)} or a function, not {{}}", choice
    )
    return ANY_TOOL if choice == "required" else None


def tells_sources(body: Mapping[str, Any]) -> bool:
    """Whether the answer has to say who proposed each of its tokens. Raises: Refusal."""
    given = body.get("tokalign", {})
    _require(isinstance(given, dict), "tokalign has to be an object, not {}", given)
    wanted = given.get("sources", False)
    _require(isinstance(wanted, bool), "tokalign.sources has to be true or false, not {}", wanted)
    return bool(wanted)


def _require(fits: bool, message: str, value: object = None) -> None:
    """Raises: Refusal with the message, in which {} stands for the value, unless that fits."""
    if not fits:
        raise Refusal(400, message.format(shown(value)))


def _no_number(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a JSON number")


def _check_stop(stop: object) -> None:
    texts = [stop] if isinstance(stop, str) else stop
    if not isinstance(texts, list) or not all(isinstance(text, str) and text for text in texts):
        raise Refusal(400, "stop has to be a text or a list of texts, none of them empty")
    size = sum(map(len, texts))
    _require(
        size <= _MOST_STOP_CHARACTERS,
        f"stop has {{}} characters in all, but at most {_MOST_STOP_CHARACTERS} are taken",
        size,
    )


def _check_messages(messages: object) -> None:
    _require(messages is not None, "messages is missing: a list of messages")
    _require(messages != [], "messages is empty: there is nothing to answer")
    if not isinstance(messages, list):
        raise Refusal(400, f"messages has to be a list of messages, not {shown(messages)}")
    for index, message in enumerate(messages):
        name = f"messages[{index}]"
        if not isinstance(message, dict):
            raise Refusal(400, f"{name} has to be an object, not {shown(message)}")
        role = message.get("role")
        _require(
            role in _ROLES, f"{name}.role has to be one of {', '.join(_ROLES)}, not {{}}", role
        )
        _check_content(f"{name}.content", message.get("content"))
        _check_calls(f"{name}.tool_calls", message.get("tool_calls"))


def _check_content(name: str, content: object) -> None:
    if content is None or isinstance(content, str):
        return
    if not isinstance(content, list):
        raise Refusal(400, f"{name} has to be a text or a list of parts, not {shown(content)}")
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else "text"
        _require(
            kind == "text",
            f"{name} has a part of type {{}}, but only text is served; images and files are never "
            "fetched",
            kind,
        )
        _require(_is_text_part(part), f"{name} has a part without a text")


def _is_text_part(part: object) -> bool:
    return (
        isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)
    )


def _check_calls(name: str, calls: object) -> None:
    if calls is None:
        return
    if not isinstance(calls, list):
        raise Refusal(400, f"{name} has to be a list, not {shown(calls)}")
    for call in calls:
        function = _function_of(call)
        _require(function is not None, f"{name} has a call without a function name")
        arguments = (function or {}).get("arguments")
        try:
            if isinstance(arguments, str) and arguments:
                json.loads(arguments)
        except (ValueError, RecursionError) as error:
            raise Refusal(400, f"{name} has arguments that are not valid JSON: {error}") from error


def _check_tools(body: dict[str, Any]) -> None:
    """Tools as the chat template gets them: none if none may be called."""
    tools = body.get("tools", [])
    _require(isinstance(tools, list), "tools has to be a list, not {}", tools)
    for index, tool in enumerate(tools):
        _require(_function_of(tool) is not None, f"tools[{index}] has to be a function with a name")
        kind = tool.get("type", "function")
        _require(kind == "function", f"tools[{index}].type has to be 'function', not {{}}", kind)
    if body.pop("tool_choice", "auto") == "none":
        body.pop("tools", None)


def _function_of(tool: object) -> dict[str, Any] | None:
    """The function of a tool or of a call; None if it has none with a name."""
    function = tool.get("function") if isinstance(tool, dict) else None
    named = isinstance(function, dict) and isinstance(function.get("name"), str)
    return function if named else None


def _prompt(prompt: object) -> str | list[int]:
    """A text, or the ids of one. A list may hold one of either, as several prompts would come."""
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    are_ids = isinstance(prompt, list) and all(type(token) is int for token in prompt)
    if isinstance(prompt, str) or are_ids:
        return cast("str | list[int]", prompt)
    _require(prompt is not None, "prompt is missing: a text, or the ids of one")
    found = shown(prompt)
    if isinstance(prompt, list):
        texts = all(isinstance(one, str | list) for one in prompt)
        found = f"{len(prompt)} texts" if texts else "a list of something else"
    raise Refusal(400, f"prompt has to be one text, or the ids of one, not {found}")


def _spread_logprobs(body: dict[str, Any]) -> None:
    """Completions ask for `logprobs` by a number, where chats have `top_logprobs`."""
    count = body.get("logprobs")
    if isinstance(count, int) and not isinstance(count, bool):
        if not 0 <= count <= _MOST_TOP_LOGPROBS:
            raise Refusal(400, f"logprobs has to be from 0 to {_MOST_TOP_LOGPROBS}, not {count}")
        body["logprobs"] = True
        body.setdefault("top_logprobs", count)
