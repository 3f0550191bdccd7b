"""Responses and messages, through the clients of those who made these APIs; several answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from served import demo_settings, echo_folder, request, serving

from tokalign.serve import Settings
from tokalign.serve.server import Server

WEATHER: dict[str, Any] = {
    "name": "pogoda",
    "description": "Pogoda w mieście.",
    "parameters": {
        "type": "object",
        "properties": {"miasto": {"type": "string", "maxLength": 9}},
        "additionalProperties": False,
    },
}
CALL = '<tool_call>{"name": "pogoda", "arguments": {"miasto": "Łódź"}}</tool_call>'
ASKED = f"Sprawdzam. {CALL}\n{CALL}"
ANSWER = {"miasto": "Łódź"}


@pytest.fixture(scope="module")
def echo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A model that repeats the last turn, so that a user can dictate calls."""
    folder = echo_folder(tmp_path_factory.mktemp("models") / "echo")
    with serving(Settings(model=str(folder), trust_remote_code=True, max_tokens=300)) as running:
        yield running


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving(demo_settings(num_draft_tokens=2, api_keys=("klucz",))) as running:
        yield running


def openai(server: Server) -> Any:
    from openai import OpenAI

    return OpenAI(base_url=f"{server.url}/v1", api_key="klucz", max_retries=0)


def anthropic(server: Server) -> Any:
    from anthropic import Anthropic

    return Anthropic(base_url=server.url, api_key="klucz", max_retries=0)


def respond(server: Server, given: Any, **more: Any) -> Any:
    return openai(server).responses.create(model="default_model", input=given, **more)


def message(server: Server, messages: Any, **more: Any) -> Any:
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    more = {"max_tokens": 300, **more}
    return anthropic(server).messages.create(model="default_model", messages=messages, **more)


# -- responses -------------------------------------------------------------------------------------


def test_a_response_is_the_chats_answer(server: Server) -> None:
    system = "Odpowiadaj krótko."
    messages = [{"role": "system", "content": system}, {"role": "user", "content": "Wisła?"}]
    asked: dict[str, Any] = {"model": "default_model", "messages": messages, "max_tokens": 20}
    plain = openai(server).chat.completions.create(**asked, temperature=0.8, seed=5)
    inputs = ("Wisła?", [{"role": "user", "content": [{"type": "input_text", "text": "Wisła?"}]}])
    sampled = {"max_output_tokens": 20, "temperature": 0.8, "extra_body": {"seed": 5}}
    for given in inputs:
        found = respond(server, given, instructions=system, **sampled)
        assert found.output_text == plain.choices[0].message.content
        assert found.usage.input_tokens == plain.usage.prompt_tokens
        assert found.usage.output_tokens == plain.usage.completion_tokens
        assert found.usage.input_tokens_details.cached_tokens > 0
    developer = [{"role": "developer", "content": system}, {"role": "user", "content": "Wisła?"}]
    assert respond(server, developer, **sampled).output_text == found.output_text
    cut = respond(server, "Wisła?", max_output_tokens=3)
    assert (cut.status, cut.incomplete_details.reason) == ("incomplete", "max_output_tokens")


def test_a_response_streams_its_events_in_their_order(echo: Server) -> None:
    more: dict[str, Any] = {"tools": [{"type": "function", **WEATHER}, {"type": "web_search"}]}
    whole = respond(echo, ASKED, **more)
    text, *calls = whole.output
    assert (text.type, text.content[0].text.strip()) == ("message", "Sprawdzam.")
    assert [(one.type, one.name, json.loads(one.arguments)) for one in calls] == [
        ("function_call", "pogoda", ANSWER)
    ] * 2
    events = list(respond(echo, ASKED, stream=True, **more))
    assert [one.sequence_number for one in events] == list(range(len(events)))
    kinds = [one.type.removeprefix("response.") for one in events]
    item = ["output_item.added", "{}", "output_item.done"]
    said = ["content_part.added", "output_text.delta", "output_text.done", "content_part.done"]
    called = ["function_call_arguments.delta", "function_call_arguments.done"]
    one_call = [item[0], *called, item[2]]
    order = ["created", "in_progress", item[0], *said, item[2], *one_call * 2, "completed"]
    assert [a for a, b in zip(kinds, ["", *kinds], strict=False) if a != b] == order
    last = events[-1].response
    assert "".join(e.delta for e in events if e.type.endswith("text.delta")) == last.output_text
    for index, item_ in enumerate(last.output):
        of_item = [e for e in events if getattr(e, "output_index", None) == index]
        assert {getattr(e, "item_id", item_.id) for e in of_item} == {item_.id}
        assert of_item[-1].item == item_
    assert [(o.type, getattr(o, "arguments", None)) for o in last.output] == [
        (o.type, getattr(o, "arguments", None)) for o in whole.output
    ]
    with openai(echo).responses.stream(model="default_model", input=ASKED, **more) as helper:
        assert helper.get_final_response().output_text == last.output_text


def test_a_response_goes_on_with_the_results_of_tools(echo: Server) -> None:
    tools = [{"type": "function", **WEATHER}]
    first = respond(echo, ASKED, tools=tools)
    given = [{"role": "user", "content": ASKED}, *(one.to_dict() for one in first.output)]
    for one in first.output[1:]:
        result = {"type": "function_call_output", "call_id": one.call_id, "output": "Słońce."}
        given.append(result)
    # The echo model repeats the turn before its own: here the last tool's.
    assert "Słońce." in respond(echo, given, tools=tools).output_text
    chosen = respond(
        echo, "x", tools=tools, tool_choice={"type": "function", "name": "pogoda"}
    ).output
    assert [one.type for one in chosen] == ["function_call"]


def test_a_response_of_a_schema_with_logprobs(server: Server) -> None:
    schema = {
        "type": "object",
        "properties": {"rok": {"type": "integer", "minimum": 1, "maximum": 99}},
        "required": ["rok"],
        "additionalProperties": False,
    }
    more: dict[str, Any] = {
        "text": {"format": {"type": "json_schema", "name": "r", "schema": schema, "strict": True}},
        "include": ["message.output_text.logprobs"],
        "top_logprobs": 2,
    }
    whole = respond(server, "Rok?", **more)
    assert 1 <= json.loads(whole.output_text)["rok"] <= 99
    shown = whole.output[0].content[0].logprobs
    assert "".join(one.token for one in shown) in (
        whole.output_text,
        whole.output_text + "<|im_end|>",
    )
    assert {len(one.top_logprobs) for one in shown} == {2}
    *_, last = respond(server, "Rok?", stream=True, **more)
    assert [one.id for one in last.response.output[0].content[0].logprobs] == [
        one.id for one in shown
    ]


# -- messages --------------------------------------------------------------------------------------


def test_a_message_is_the_chats_answer(server: Server) -> None:
    plain = chat_of(server, "Krótko.", "Wisła?", max_tokens=20, temperature=0.8, seed=5)
    sampled = {"max_tokens": 20, "extra_body": {"seed": 5, "temperature": 0.8}}
    for system in ("Krótko.", [{"type": "text", "text": "Krótko."}]):
        found = message(server, "Wisła?", system=system, **sampled)
        (block,) = found.content
        assert block.text == plain["choices"][0]["message"]["content"]
        usage = found.usage
        assert usage.input_tokens + usage.cache_read_input_tokens == plain["usage"]["prompt_tokens"]
        assert usage.output_tokens == plain["usage"]["completion_tokens"]
    counted = anthropic(server).messages.count_tokens(
        model="default_model", system="Krótko.", messages=[{"role": "user", "content": "Wisła?"}]
    )
    assert counted.input_tokens == plain["usage"]["prompt_tokens"]
    assert message(server, "Wisła?", max_tokens=3).stop_reason == "max_tokens"


def chat_of(server: Server, system: str, text: str, **more: Any) -> Any:
    messages = [{"role": "system", "content": system}, {"role": "user", "content": text}]
    key = {"Authorization": "Bearer klucz"}
    return request(server, "POST", "/v1/chat/completions", {"messages": messages, **more}, key).json


def test_a_message_streams_its_events_in_their_order(echo: Server) -> None:
    tool = {"name": "pogoda", "input_schema": WEATHER["parameters"]}
    more: dict[str, Any] = {"tools": [tool, {"type": "web_search_20250305", "name": "web_search"}]}
    whole = message(echo, ASKED, **more)
    text, *calls = whole.content
    assert (text.text.strip(), whole.stop_reason) == ("Sprawdzam.", "tool_use")
    assert [(one.type, one.name, one.input) for one in calls] == [
        ("tool_use", "pogoda", ANSWER)
    ] * 2
    events = [one for one in message(echo, ASKED, stream=True, **more) if one.type != "ping"]
    kinds = [one.type for one in events]
    block = ["content_block_start", "content_block_delta", "content_block_stop"]
    order = ["message_start", *block * 3, "message_delta", "message_stop"]
    assert [a for a, b in zip(kinds, ["", *kinds], strict=False) if a != b] == order
    assert [e.index for e in events if e.type == "content_block_start"] == [0, 1, 2]
    assert events[-2].delta.stop_reason == "tool_use"
    assert events[-2].usage.output_tokens == whole.usage.output_tokens
    with anthropic(echo).messages.stream(
        model="default_model",
        max_tokens=300,
        messages=[{"role": "user", "content": ASKED}],
        **more,
    ) as helper:
        final = helper.get_final_message()
    assert [one.model_dump(exclude={"id"}) for one in final.content] == [
        one.model_dump(exclude={"id"}) for one in whole.content
    ]


def test_a_message_goes_on_with_the_results_of_tools(echo: Server) -> None:
    tools = [{"name": "pogoda", "input_schema": WEATHER["parameters"]}]
    first = message(echo, ASKED, tools=tools)
    results = [
        {"type": "tool_result", "tool_use_id": one.id, "content": [{"type": "text", "text": said}]}
        for one, said in zip(first.content[1:], ("Słońce.", "Deszcz."), strict=True)
    ]
    messages: list[Any] = [
        {"role": "user", "content": ASKED},
        {"role": "assistant", "content": [one.to_dict() for one in first.content]},
        {"role": "user", "content": results},
    ]
    assert "Deszcz." in message(echo, messages, tools=tools).content[0].text
    chosen = message(echo, "x", tools=tools, tool_choice={"type": "any"})
    assert [one.type for one in chosen.content] == ["tool_use"]


def test_a_stop_sequence_is_named(echo: Server) -> None:
    for stream in (False, True):
        found = message(echo, "jeden dwa trzy", stop_sequences=["trzy", "dwa"], stream=stream)
        if stream:
            *_, end, _ = found
            found = end.delta
        else:
            assert found.content[0].text == "jeden "
        assert (found.stop_reason, found.stop_sequence) == ("stop_sequence", "dwa")


def test_errors_are_those_of_anthropics_client(server: Server, echo: Server) -> None:
    from anthropic import Anthropic, AuthenticationError, BadRequestError, NotFoundError

    with pytest.raises(AuthenticationError) as wrong:
        Anthropic(base_url=server.url, api_key="x", max_retries=0).models.list()
    assert wrong.value.status_code == 401
    image = {"type": "image", "source": {"type": "url", "url": "http://127.0.0.1:1/x.png"}}
    with pytest.raises(BadRequestError, match="only text is served") as refused:
        message(server, [{"role": "user", "content": [image]}])
    error = {"type": "invalid_request_error", "message": refused.value.body["error"]["message"]}
    assert refused.value.body == {"type": "error", "error": error}
    with pytest.raises(BadRequestError, match="prompt is too long"):
        message(server, "Wisła " * 4000, stream=True)
    with pytest.raises(NotFoundError, match="someone/else"):
        message(server, "x", extra_body={"model": "someone/else"})
