"""The fields of a request in the form of chat completions or completions, checked.

Other APIs are translated into them. A field that is null counts as left out, and an unknown field
is ignored, as clients send many of both.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from typing import Any, NamedTuple, NoReturn

from mlx_lm.server import LogitsProcessorArguments, ModelDescription, SamplingArguments

from tokalign.errors import UNLIMITED, require_integer, require_number, shown
from tokalign.runtime.chat import RESERVED
from tokalign.serve import Settings
from tokalign.serve.admission import Refusal, require
from tokalign.serve.tools import function_of

_MOST_CHOICES = 128
_MOST_TOP_LOGPROBS = 11
_MOST_STOP_CHARACTERS = 4096
"""mlx-lm keeps what it has made of the stop texts of a hundred requests, 500 bytes a character."""

_RESERVED = RESERVED | {"tools"}
"""A request has a field of its own for tools."""


class _Number(NamedTuple):
    """A field that is a number. default: also the name of a setting."""

    default: float | str | None
    least: float = -UNLIMITED
    most: float = UNLIMITED
    is_integer: bool = False


def _as_set(setting: str) -> _Number:
    """A field whose default is a setting, in the range of that."""
    (one,) = (one for one in fields(Settings) if one.name == setting)
    least, most = one.metadata["least"], one.metadata.get("most", UNLIMITED)
    return _Number(setting, least, most, isinstance(one.default, int))


_SAMPLING: Mapping[str, _Number] = {
    "temperature": _as_set("temp"),
    **{
        name: _as_set(name)
        for name in ("top_p", "top_k", "min_p", "xtc_probability", "xtc_threshold")
    },
}
_PENALTIES: Mapping[str, _Number] = {
    "repetition_penalty": _Number(0.0, 0),
    "repetition_context_size": _Number(20, 0, is_integer=True),
    "presence_penalty": _Number(0.0),
    "presence_context_size": _Number(20, 0, is_integer=True),
    "frequency_penalty": _Number(0.0),
    "frequency_context_size": _Number(20, 0, is_integer=True),
}
_OTHERS: Mapping[str, _Number] = {
    "max_tokens": _as_set("max_tokens"),
    "num_draft_tokens": _Number("num_draft_tokens", 0, is_integer=True),
    "top_logprobs": _Number(-1, -1, _MOST_TOP_LOGPROBS, is_integer=True),
    "seed": _Number(None, is_integer=True),
}
"""The numbers that mlx-lm's server reads, with its defaults."""

_KINDS: Mapping[str, tuple[type, str]] = {
    **dict.fromkeys(
        ("stream_options", "chat_template_kwargs", "role_mapping"), (dict, "an object")
    ),
    **dict.fromkeys(("model", "draft_model", "adapters", "suffix"), (str, "a text")),
    **dict.fromkeys(("stream", "logprobs", "echo"), (bool, "true or false")),
}
"""What other fields are."""

_UNSERVED: Mapping[str, tuple[str, Callable[[dict[str, Any]], bool]]] = {
    "best_of": (
        "every answer that is made is returned; give n",
        lambda body: bool(body["best_of"] != body.get("n", 1)),
    ),
    "functions": ("give the functions as tools", lambda body: bool(body["functions"])),
    "echo": (
        "log-probabilities of prompts are not computed; leave one of both out",
        lambda body: bool(body["echo"] and body.get("logprobs", False) is not False),
    ),
}
"""Fields of OpenAI's API that ask for another answer than is given: why or what instead, and when.

A client that got an answer all the same would take it for what it has asked for.
"""


def read_json(data: bytes) -> dict[str, Any]:
    """The JSON object that a body is. Raises: Refusal for anything else, NaN included."""
    try:
        body = json.loads(data.decode("utf-8"), parse_constant=_no_number)
        json.dumps(body, ensure_ascii=False).encode("utf-8")  # a lone surrogate is no text
    except UnicodeError as error:
        raise Refusal(400, f"the body is not valid UTF-8: {error}") from error
    except (ValueError, RecursionError) as error:
        raise Refusal(400, f"the body is not valid JSON: {error}") from error
    require(isinstance(body, dict), "the body has to be a JSON object, not {}", body)
    return {name: value for name, value in body.items() if value is not None}


def check(body: dict[str, Any], *, chat: bool) -> dict[str, Any]:
    """The fields that are no numbers, with one spelling each. Raises: Refusal."""
    body = dict.fromkeys(("stream", "logprobs", "echo"), False) | body
    for name, (remedy, asks) in _UNSERVED.items():
        if name in body and asks(body):
            raise Refusal(400, f"{name} is not served: {remedy}", code="unsupported_parameter")
    body["stop"] = _stop_texts(body.get("stop", []))
    if chat:
        _check_messages(body.get("messages"))
        _check_tools(body)
    else:
        body["prompts"] = _prompts(body.get("prompt"))
        _spread_logprobs(body)
    for name, (kind, called) in _KINDS.items():
        value = body.get(name, kind())
        require(isinstance(value, kind), f"{name} has to be {called}, not {{}}", value)
    if reserved := _RESERVED & body.get("chat_template_kwargs", {}).keys():
        raise Refusal(400, f"chat_template_kwargs may not have {', '.join(sorted(reserved))}")
    most = _MOST_CHOICES if chat else _MOST_CHOICES // len(body["prompts"])
    require_integer("n", body.setdefault("n", 1), least=1, most=most)
    return body


def arguments(body: Mapping[str, Any], settings: Settings) -> dict[str, Any]:
    """How a checked body is to be decoded: the fields of mlx-lm's `GenerationArguments`.

    Raises: UsageError, Refusal.
    """
    if "max_completion_tokens" in body:
        body = {**body, "max_tokens": body["max_completion_tokens"]}
    return dict(
        model=ModelDescription(
            model=body.get("model", "default_model"),
            draft=body.get("draft_model") or "default_model",
            adapter=body.get("adapters"),
        ),
        sampling=SamplingArguments(**_numbers(_SAMPLING, body, settings)),
        logits=LogitsProcessorArguments(
            logit_bias=_logit_bias(body.get("logit_bias")),
            **_numbers(_PENALTIES, body, settings),
        ),
        stop_words=body["stop"],
        logprobs=body["logprobs"],
        chat_template_kwargs=body.get("chat_template_kwargs"),
        **_numbers(_OTHERS, body, settings),
    )


def _numbers(
    asked: Mapping[str, _Number], body: Mapping[str, Any], settings: Settings
) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, (default, least, most, is_integer) in asked.items():
        if isinstance(default, str):
            default = getattr(settings, default)
        value = found[name] = body.get(name, default)
        if value is None:
            continue
        if is_integer:
            require_integer(name, value, least=int(least), most=int(most))
        else:
            require_number(name, value, least=least, most=most)
            found[name] = float(value)
    return found


def _logit_bias(given: Any) -> dict[int, float] | None:
    if given is None:
        return None
    require(isinstance(given, dict), "logit_bias has to be an object of ids, not {}", given)
    try:
        bias = {int(token): float(value) for token, value in given.items()}
    except (TypeError, ValueError) as error:
        raise Refusal(400, f"logit_bias has to give ids numbers ({error})") from error
    for value in bias.values():
        require_number("logit_bias", value, least=-UNLIMITED, most=UNLIMITED)
    return bias


def predicted(body: Mapping[str, Any]) -> str | None:
    """The text of OpenAI's `prediction`, which the answer may repeat. Other forms are ignored."""
    match body.get("prediction"):
        case {"content": str(content)}:
            return content
        case {"content": [*parts]} if all(map(is_text_part, parts)):
            return "".join(part["text"] for part in parts)
    return None


def tells_sources(body: Mapping[str, Any]) -> bool:
    """Whether the answer has to say who proposed each of its tokens. Raises: Refusal."""
    given = body.get("tokalign", {})
    require(isinstance(given, dict), "tokalign has to be an object, not {}", given)
    wanted = given.get("sources", False)
    require(isinstance(wanted, bool), "tokalign.sources has to be true or false, not {}", wanted)
    return bool(wanted)


def as_list(name: str, value: object) -> list[Any]:
    """A field that has to be a list. Raises: Refusal."""
    if not isinstance(value, list):
        found = "is missing: a list" if value is None else f"has to be a list, not {shown(value)}"
        raise Refusal(400, f"{name} {found}")
    return value


def merged(messages: Iterable[Any]) -> list[Any]:
    """Messages for a chat template, many of which want the speakers to alternate.

    Neighbours of the system or the user become one, with an empty line between their parts. What
    the system says after the beginning, where most templates refuse it, is said by the user.
    """
    found: list[Any] = []
    for message in messages:
        role = message.get("role") if isinstance(message, dict) else None
        if role == "system" and any(one.get("role") != "system" for one in found):
            role = "user"
        if role not in ("system", "user"):
            found.append(message)
            continue
        content = message.get("content")
        if message["role"] == "system" and not content:
            continue
        parts = [*content] if isinstance(content, list) else [{"type": "text", "text": content}]
        if found and isinstance(found[-1], dict) and found[-1].get("role") == role:
            found[-1]["content"] += parts
        else:
            found.append({"role": role, "content": parts})
    for message in found:
        content = message.get("content") if isinstance(message, dict) else None
        if isinstance(content, list) and all(map(is_text_part, content)):
            between = "\n\n" if message.get("role") in ("system", "user") else ""
            message["content"] = between.join(part["text"] for part in content)
    return found


def _no_number(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a JSON number")


def _stop_texts(stop: Any) -> list[str]:
    texts = [stop] if isinstance(stop, str) else stop
    fits = isinstance(texts, list) and all(isinstance(text, str) for text in texts)
    require(fits, "stop has to be a text or a list of texts")
    size = sum(map(len, texts))
    require(
        size <= _MOST_STOP_CHARACTERS,
        f"stop has {{}} characters in all, but at most {_MOST_STOP_CHARACTERS} are taken",
        size,
    )
    return [text for text in texts if text]


def _check_messages(messages: object) -> None:
    require(messages != [], "messages is empty: there is nothing to answer")
    for index, message in enumerate(as_list("messages", messages)):
        name = f"messages[{index}]"
        require(isinstance(message, dict), f"{name} has to be an object, not {{}}", message)
        role = message.get("role")
        require(isinstance(role, str), f"{name}.role has to be a text, not {{}}", role)
        _check_content(f"{name}.content", message.get("content"))
        _check_calls(f"{name}.tool_calls", message.get("tool_calls"))


def _check_content(name: str, content: Any) -> None:
    if content is None or isinstance(content, str):
        return
    fits = isinstance(content, list)
    require(fits, f"{name} has to be a text or a list of parts, not {{}}", content)
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else "text"
        require(
            kind == "text",
            f"{name} has a part of type {{}}, but only text is served; images and files are never "
            "fetched",
            kind,
        )
        require(is_text_part(part), f"{name} has a part without a text")


def is_text_part(part: object) -> bool:
    """Whether it is a part of a message that is text."""
    return (
        isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)
    )


def _check_calls(name: str, calls: object) -> None:
    for call in [] if calls is None else as_list(name, calls):
        function = function_of(call)
        require(function is not None, f"{name} has a call without a function name")
        arguments = (function or {}).get("arguments")
        try:
            if isinstance(arguments, str) and arguments:
                json.loads(arguments)
        except (ValueError, RecursionError) as error:
            raise Refusal(400, f"{name} has arguments that are not valid JSON: {error}") from error


def _check_tools(body: dict[str, Any]) -> None:
    """Tools as the chat template gets them: none if none may be called."""
    for index, tool in enumerate(as_list("tools", body.get("tools", []))):
        require(function_of(tool) is not None, f"tools[{index}] has to be a function with a name")
        kind = tool.get("type", "function")
        require(kind == "function", f"tools[{index}].type has to be 'function', not {{}}", kind)
    if body.pop("tool_choice", "auto") == "none":
        body.pop("tools", None)


def _prompts(prompt: Any) -> list[str | list[int]]:
    """Texts, or the ids of texts: one of either, or a list of them."""
    require(prompt is not None, "prompt is missing: a text, or the ids of one")
    is_list = isinstance(prompt, list) and all(isinstance(one, str | list) for one in prompt)
    prompts = prompt if is_list and prompt else [prompt]
    many = f"prompt has {len(prompts)} texts, but at most {_MOST_CHOICES} may be"
    require(len(prompts) <= _MOST_CHOICES, many)
    for one in prompts:
        are_ids = isinstance(one, list) and all(type(token) is int for token in one)
        fits = isinstance(one, str) or are_ids
        require(fits, "prompt has to be a text, the ids of one, or a list of these, not {}", one)
    return list(prompts)


def _spread_logprobs(body: dict[str, Any]) -> None:
    """Completions ask for `logprobs` by a number, where chats have `top_logprobs`."""
    count = body.get("logprobs")
    if type(count) is int:
        require_integer("logprobs", count, least=0, most=_MOST_TOP_LOGPROBS)
        body["logprobs"] = True
        body.setdefault("top_logprobs", count)
