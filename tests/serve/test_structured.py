"""Answers that have to match something, through OpenAI's own client: schemas, grammars, calls."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import served
from jsonschema import validate
from served import answered, echo_folder, metric, serving, text_of

from tokalign.serve import Settings
from tokalign.serve.completions import Chats
from tokalign.serve.json_body import as_form
from tokalign.serve.messages import Messages
from tokalign.serve.responses import Responses
from tokalign.serve.server import Server

PERSON = {
    "type": "object",
    "properties": {
        "imię": {"type": "string", "maxLength": 8},
        "wiek": {"type": "integer", "minimum": 1, "maximum": 120},
    },
    "required": ["imię", "wiek"],
    "additionalProperties": False,
}
BY_SCHEMA = {
    "type": "json_schema",
    "json_schema": {"name": "osoba", "schema": PERSON, "strict": True},
}


def tool(name: str, **properties: Any) -> dict[str, Any]:
    parameters = {
        "type": "object",
        "properties": properties,
        "required": [*properties][:1],
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


TOOLS = [
    tool("pogoda", miasto={"type": "string", "maxLength": 9}, dni={"type": "integer"}),
    tool("czas", strefa={"type": "string", "enum": ["CET", "UTC"]}),
]


def ask(server: Server, text: str = "Kto to?", **more: Any) -> Any:
    return served.ask(server, text, **{"max_tokens": 80, **more})


def said(server: Server, **more: Any) -> tuple[str, str]:
    choice = ask(server, **more).choices[0]
    return choice.message.content, choice.finish_reason


@pytest.mark.parametrize("sampling", [{"temperature": 0.0}, {"temperature": 1.0, "seed": 3}])
def test_a_schema_is_followed_with_and_without_drafts(
    server: Server, sampling: dict[str, Any]
) -> None:
    given = {"response_format": BY_SCHEMA, **sampling}
    text, reason = said(server, **given)
    validate(json.loads(text), PERSON)
    assert reason == "stop"
    assert said(server, extra_body={"num_draft_tokens": 0}, **given) == (text, reason)
    assert text_of(list(ask(server, stream=True, **given))) == text
    assert said(server, max_tokens=3, **given)[1] == "length"


@pytest.mark.parametrize(
    ("field", "value", "pattern"),
    [
        ("guided_json", PERSON, r"\{.*\}"),
        ("json_schema", json.dumps(PERSON), r"\{.*\}"),
        ("guided_regex", "[a-z]{2,5} [0-9]{3}", "[a-z]{2,5} [0-9]{3}"),
        ("guided_choice", ["tak", "nie wiem"], "tak|nie wiem"),
        ("guided_grammar", 'start: "a" /[0-9]{2}/', "a[0-9]{2}"),
        ("grammar", 'root ::= "a" [0-9] "b"?', "a[0-9]b?"),
        ("regex", "[a-z]{2,5} [0-9]{3}", "[a-z]{2,5} [0-9]{3}"),
        ("ebnf", 'root ::= "a" [0-9] "b"?', "a[0-9]b?"),
        ("structured_outputs", {"choice": ["tak", "nie"]}, "tak|nie"),
        ("response_format", {"type": "json_object", "schema": PERSON}, r"\{.*\}"),
        (
            "response_format",
            {"type": "json_object", "schema": None, "value": {"enum": ["tak"]}},
            '"tak"',
        ),
        ("response_format", {"type": "json", "value": {"enum": ["tak"]}}, '"tak"'),
        ("response_format", {"type": "json_schema", "json_schema": {"schema": True}}, ".*"),
        ("response_format", {"type": "json_schema", "schema": PERSON}, r"\{.*\}"),
    ],
)
def test_grammars_as_other_servers_take_them(
    server: Server, field: str, value: Any, pattern: str
) -> None:
    text, reason = said(server, temperature=1.0, seed=1, extra_body={field: value})
    assert re.fullmatch(pattern, text), text
    assert reason == "stop"


@pytest.mark.parametrize("wrap", [lambda form: {"output_config": {"format": form}}, None])
def test_messages_have_a_schema_by_its_new_and_its_old_name(server: Server, wrap: Any) -> None:
    form = {"type": "json_schema", "schema": PERSON}
    field = {"output_format": form} if wrap is None else wrap(form)
    body = {"messages": [{"role": "user", "content": "Kto?"}], "max_tokens": 200, **field}
    (block,) = served.request(server, "POST", "/v1/messages", body).json["content"]
    validate(json.loads(block["text"]), PERSON)


def test_json_without_a_schema_is_an_object(server: Server) -> None:
    asked: list[dict[str, Any]] = [
        {"response_format": {"type": "json_object"}},
        {"response_format": {"type": "json_object", "schema": None}},
        {"extra_body": {"structured_outputs": {"json_object": True}}},
    ]
    for given in asked:
        text, reason = said(server, **given)
        assert text.startswith("{")
        assert reason == "length" or isinstance(json.loads(text), dict)


def test_answers_that_come_together_are_those_that_come_alone(server: Server) -> None:
    """In a batch the grammar is a logits processor; a request may move in and out of it."""
    more = {"temperature": 1.0, "seed": 3}
    asked = [{**more, "response_format": BY_SCHEMA}, more, {"response_format": BY_SCHEMA}, {}]
    alone = [said(server, **one) for one in asked]
    before = metric(server, 'tokalign_output_tokens_total{decoding="batch"}')
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda one: said(server, **one), asked * 2))
    assert together == alone * 2
    assert metric(server, 'tokalign_output_tokens_total{decoding="batch"}') > before


@pytest.mark.parametrize("choice", ["required", "czas"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_that_has_to_be_called_is(echo: Server, choice: str, stream: bool) -> None:
    named = {"type": "function", "function": {"name": choice}}
    given: dict[str, Any] = {
        "tools": TOOLS,
        "tool_choice": choice if choice == "required" else named,
        "max_tokens": 80,
    }
    _, (call,), reason = answered(echo, "Nie wołaj niczego.", stream=stream, **given)
    assert reason == "tool_calls"
    names = {one["function"]["name"]: one["function"]["parameters"] for one in TOOLS}
    assert call.function.name in ([*names] if choice == "required" else [choice])
    validate(json.loads(call.function.arguments), names[call.function.name])


@pytest.mark.parametrize(("several", "calls"), [(None, 1), (False, 1), (True, 2)])
def test_a_call_is_made_once_unless_several_are_asked_for(several: Any, calls: int) -> None:
    tools: list[Any] = [{"type": "function", "name": "f"}]
    body = {"input": "x", "messages": [{"role": "user", "content": "x"}]}
    body["parallel_tool_calls"] = several
    for api, given, choice in (
        (Chats, [{"type": "function", "function": tools[0]}], "required"),
        (Responses, tools, "required"),
        (Messages, [{"name": "f"}], {"type": "any"}),
    ):
        if api is Messages and several is not None:
            choice = {"type": "any", "disable_parallel_tool_use": not several}
        (asked,) = as_form({**body, "tools": given, "tool_choice": choice}, api.form).requests(
            Settings(), ""
        )
        assert (asked.several_calls is True) == (calls == 2)
        assert (asked.several_calls is False) == (several is False)


def test_a_schema_leaves_tools_that_may_be_called(echo: Server) -> None:
    call = '<tool_call>\n{"name": "czas", "arguments": {"strefa": "UTC"}}\n</tool_call>'
    given: dict[str, Any] = {"tools": TOOLS, "response_format": BY_SCHEMA}
    (made,) = ask(echo, call, **given).choices[0].message.tool_calls
    assert made.function.arguments == '{"strefa": "UTC"}'
    text = '{"imię": "Ala", "wiek": 7}'
    assert ask(echo, text, **given).choices[0].message.content == text


def test_what_is_not_enforced_is_named_in_every_apis_answer(server: Server) -> None:
    schema = {
        "type": "object",
        "properties": {"kod": {"type": "string", "maxLength": 4, "pattern": r"^(?=.*\d).{4}$"}},
        "required": ["kod"],
    }
    form = {"type": "json_schema", "json_schema": {"name": "kod", "schema": schema}}
    text = {"format": {"type": "json_schema", "name": "kod", "schema": schema}}
    chat = {"messages": [{"role": "user", "content": "Kod?"}], "max_tokens": 30}
    for path, body in (
        ("/v1/chat/completions", {**chat, "response_format": form}),
        ("/v1/completions", {"prompt": "Kod?", "max_tokens": 30, "response_format": form}),
        ("/v1/responses", {"input": "Kod?", "max_output_tokens": 30, "text": text}),
        ("/v1/messages", {**chat, "response_format": form}),
    ):
        answer = served.request(server, "POST", path, body)
        assert answer.status == 200, answer.text
        (named,) = answer.json["tokalign"]["not_enforced"]
        assert named.endswith("kod.pattern")
        assert named in served.request(server, "POST", path, {**body, "stream": True}).text
    strict = {**form, "json_schema": {**form["json_schema"], "strict": True}}
    refused = served.request(
        server, "POST", "/v1/chat/completions", {**chat, "response_format": strict}
    )
    assert refused.status == 400
    assert "kod.pattern" in refused.json["error"]["message"]


def test_tools_that_are_not_told_or_not_enforced_are_named(server: Server, echo: Server) -> None:
    def named(where: Server, path: str, **body: Any) -> list[str]:
        given = {"max_tokens": 60, "input": "x", "messages": [{"role": "user", "content": "x"}]}
        answer = served.request(where, "POST", path, {**given, **body})
        assert answer.status == 200, answer.text
        return list(answer.json.get("tokalign", {}).get("not_enforced", []))

    chat, responses, messages = (f"/v1/{name}" for name in ("chat/completions", *_OTHERS))
    function, space = TOOLS[0]["function"], {"type": "namespace", "name": "n"}
    strict = {"type": "function", "function": {**function, "strict": True}}
    assert named(server, chat, tools=TOOLS) == ["tools"], "the template knows no tools"
    assert named(echo, chat, tools=TOOLS) == []
    assert named(echo, chat, tools=[*TOOLS, strict]) == [f"tools[{len(TOOLS)}].strict"]
    assert named(echo, chat, tools=[strict], tool_choice="required") == []
    assert named(echo, chat, tools=[strict], tool_choice="none") == []
    other = {**space, "tools": [{"type": "function", **function}, {"type": "custom", "name": "p"}]}
    tools = [{"type": "web_search"}, other]
    assert named(echo, responses, tools=tools) == ["tools[0]", "tools[1].tools[1]"]
    own = {"name": "f", "input_schema": {"type": "object"}, "strict": True}
    tools = [own, {"type": "web_search_20250305", "name": "web_search"}]
    assert named(echo, messages, tools=tools) == ["tools[1]", "tools[0].strict"]
    parameters = {"properties": {"x": {"type": "string", "not": {"const": "a"}}}}
    followed = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    assert named(echo, chat, tools=[followed], tool_choice="required") == [
        "tools.f.properties.x.not"
    ]


_OTHERS = ("responses", "messages")


@pytest.mark.parametrize(
    ("begin", "end"),
    [
        ("<think>", "</think>"),
        ("<longcat_think>", "</longcat_think>"),
        ("<|think:start|>", "<|think:end|>"),
        ("<|channel>thought\n", "<channel|>"),
    ],
)
def test_a_thought_that_the_template_opens_comes_first_and_is_none_of_the_content(
    tmp_path: Path, begin: str, end: str
) -> None:
    """The model repeats the message, of which its own turn has the beginning."""
    template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        f"<|im_start|>assistant\n{begin}"
    )
    marks = (begin.removesuffix("thought\n"), end)
    folder = echo_folder(tmp_path / "echo", template=template, marks=marks)
    with serving(Settings(model=str(folder), trust_remote_code=True)) as server:
        form = {"type": "json_object"}
        message = (
            ask(server, f'{begin}(Hm){end}{{"a": 1}}', response_format=form).choices[0].message
        )
    assert (message.reasoning, message.content) == ("(Hm)", '{"a": 1}')
