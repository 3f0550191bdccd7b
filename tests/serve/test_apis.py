"""Responses and messages, through the clients of those who made these APIs; several answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import chain
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from places import DEMO
from pydantic import TypeAdapter
from served import CALL, KEY, WEATHER, ask, demo_settings, openai, serving

from tokalign.conversation.answer_form import AnswerForm
from tokalign.conversation.prompts import fill_in_prompt
from tokalign.conversation.tools import ToolFormat
from tokalign.errors import TokalignError
from tokalign.runtime.chat import Prompt
from tokalign.serve import Settings
from tokalign.serve.admission import Refusal
from tokalign.serve.answer import Choice, Rendering
from tokalign.serve.completions import Chats, Completions
from tokalign.serve.job import NO_TOKEN, Emitted, Job
from tokalign.serve.json_body import as_form, read
from tokalign.serve.messages import Messages
from tokalign.serve.models import Models
from tokalign.serve.request import ApiRequest
from tokalign.serve.responses import Responses
from tokalign.serve.server import Server
from tokalign.serve.streams import Written
from tokalign.tokenizer.self_check import read_tokenizer
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import TargetId

ASKED = f"Sprawdzam. {CALL}\n{CALL}"
ANSWER = {"miasto": "Łódź"}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving(demo_settings(num_draft_tokens=2, api_keys=(KEY,))) as running:
        yield running


def anthropic(server: Server) -> Any:
    from anthropic import Anthropic

    return Anthropic(base_url=server.url, api_key=KEY, max_retries=0)


def respond(server: Server, asked: Any, **more: Any) -> Any:
    return openai(server).responses.create(model="default_model", input=asked, **more)


def message(server: Server, messages: Any, **more: Any) -> Any:
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    more = {"max_tokens": 300, **more}
    return anthropic(server).messages.create(model="default_model", messages=messages, **more)


# -- responses -------------------------------------------------------------------------------------


def test_a_response_is_the_chats_answer(server: Server) -> None:
    system = "Odpowiadaj krótko."
    messages = [{"role": "system", "content": system}, {"role": "user", "content": "Wisła?"}]
    plain = ask(server, messages=messages, max_tokens=20, temperature=0.8, seed=5)
    inputs = ("Wisła?", [{"role": "user", "content": [{"type": "input_text", "text": "Wisła?"}]}])
    sampled = {"max_output_tokens": 20, "temperature": 0.8, "extra_body": {"seed": 5}}
    for one in inputs:
        found = respond(server, one, instructions=system, **sampled)
        assert (found.text.format.type, found.instructions) == ("text", system)
        assert found.output_text == plain.choices[0].message.content
        assert found.usage.input_tokens == plain.usage.prompt_tokens
        assert found.usage.output_tokens == plain.usage.completion_tokens
        assert found.usage.input_tokens_details.cached_tokens > 0
        counted = openai(server).responses.input_tokens.count(input=one, instructions=system)
        assert counted.object == "response.input_tokens"
        assert counted.input_tokens == plain.usage.prompt_tokens
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
    # Signs of life, where a call takes long, are further events of the beginning.
    kinds = [e.type.removeprefix("response.") for e in events]
    kinds = [kind for i, kind in enumerate(kinds) if i < 2 or kind != "in_progress"]
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


_OPEN_RESPONSES = (
    "id object created_at completed_at status incomplete_details model previous_response_id "
    "instructions output error tools tool_choice truncation parallel_tool_calls text top_p "
    "presence_penalty frequency_penalty top_logprobs temperature reasoning usage "
    "max_output_tokens max_tool_calls store background service_tier metadata safety_identifier "
    "prompt_cache_key"
)
"""Fields that every response has (openresponses.org, ResponseResource)."""


@pytest.mark.parametrize("given", [{}, {"text": {"verbosity": "low"}, "temperature": 0.5}])
def test_a_response_has_all_fields_of_open_responses(echo: Server, given: Any) -> None:
    tool = {"type": "function", "name": "pogoda", "parameters": {"type": "object"}}
    asked: dict[str, Any] = {"tools": [tool], "max_tool_calls": 3, **given}
    events = list(respond(echo, "Dzień dobry", stream=True, **asked))
    found = [event.response for event in events if hasattr(event, "response")]
    for one in [*found, respond(echo, "Dzień dobry", **asked)]:
        sent = one.model_dump(exclude_unset=True)
        assert sent.keys() >= {*_OPEN_RESPONSES.split()}
        assert (sent["temperature"], sent["top_p"]) == (given.get("temperature", 0), 1)
        assert sent["tools"] == [{"description": None, "strict": None, **tool}]
        assert sent["text"] == {"format": {"type": "text"}, **given.get("text", {})}
        assert (sent["completed_at"] is None) == (sent["status"] == "in_progress")
        assert sent["max_tool_calls"] == 3


def test_functions_in_a_namespace_are_called_by_their_own_names(echo: Server) -> None:
    space = {"type": "namespace", "name": "mcp", "description": "x"}
    space["tools"] = [{"type": "function", **WEATHER}, {"type": "custom", "name": "patch"}]
    asked = CALL.replace("pogoda", "mcp__pogoda")
    plain = respond(echo, asked, tools=[{"type": "function", **WEATHER}])
    whole = respond(echo, asked, tools=[space])
    (call,) = whole.output
    assert (call.name, call.namespace, json.loads(call.arguments)) == ("pogoda", "mcp", ANSWER)
    assert abs(whole.usage.input_tokens - plain.usage.input_tokens) < 9, "the prompt names it"
    events = [e for e in respond(echo, asked, stream=True, tools=[space]) if hasattr(e, "item")]
    assert [(e.item.name, e.item.namespace) for e in events] == [("pogoda", "mcp")] * 2
    chosen = {"type": "function", "name": "pogoda", "namespace": "mcp"}
    (forced,) = respond(echo, "x", tools=[space], tool_choice=chosen, max_output_tokens=90).output
    assert (forced.name, forced.namespace) == ("pogoda", "mcp")
    (turn,) = messages_of(call.model_dump())
    assert turn["tool_calls"][0]["function"]["name"] == "mcp__pogoda"


def test_a_response_of_a_schema_with_logprobs(server: Server) -> None:
    by_schema = {"type": "json_schema", "name": "r", "schema": WEATHER["parameters"]}
    more: dict[str, Any] = {
        "text": {"format": {**by_schema, "strict": True}},
        "include": ["message.output_text.logprobs"],
        "top_logprobs": 2,
    }
    whole = respond(server, "Rok?", **more)
    assert json.loads(whole.output_text).keys() <= {"miasto"}
    shown = whole.output[0].content[0].logprobs
    text = "".join(one.token for one in shown)
    assert text.removesuffix("<|im_end|>") == whole.output_text
    assert {len(one.top_logprobs) for one in shown} == {2}
    *_, last = respond(server, "Rok?", stream=True, **more)
    assert [one.id for one in last.response.output[0].content[0].logprobs] == [
        one.id for one in shown
    ]


# -- messages --------------------------------------------------------------------------------------


def test_a_message_is_the_chats_answer(server: Server) -> None:
    user = {"role": "user", "content": "Wisła?"}
    messages = [{"role": "system", "content": "Krótko."}, user]
    plain = ask(server, messages=messages, max_tokens=20, temperature=0.8, seed=5)
    sampled = {"max_tokens": 20, "extra_body": {"seed": 5, "temperature": 0.8}}
    for system in ("Krótko.", [{"type": "text", "text": "Krótko."}]):
        found = message(server, "Wisła?", system=system, **sampled)
        (block,) = found.content
        assert block.text == plain.choices[0].message.content
        usage = found.usage
        assert usage.input_tokens + usage.cache_read_input_tokens == plain.usage.prompt_tokens
        assert usage.output_tokens == plain.usage.completion_tokens
    counted = anthropic(server).messages.count_tokens(
        model="default_model", system="Krótko.", messages=[user]
    )
    assert counted.input_tokens == plain.usage.prompt_tokens
    assert message(server, "Wisła?", max_tokens=3).stop_reason == "max_tokens"


def test_an_answer_that_is_given_goes_on_in_every_api(server: Server) -> None:
    given = [{"role": "user", "content": "Wisła?"}, {"role": "assistant", "content": "To rzeka"}]
    goes_on = ask(server, messages=given, max_tokens=20).choices[0].message.content
    assert goes_on != ask(server, messages=given[:1], max_tokens=20).choices[0].message.content
    assert respond(server, given, max_output_tokens=20).output_text == goes_on
    assert message(server, given, max_tokens=20).content[0].text == goes_on


def test_a_thread_of_anthropics_client_is_sent_whole_in_every_turn(server: Server) -> None:
    thread = anthropic(server).beta.messages.thread(model="default_model", max_tokens=4)
    for question in ("Wisła?", "A Odra?", "A Warta?"):
        usage = thread.send({"role": "user", "content": question}).usage
        counted = anthropic(server).messages.count_tokens(
            model="default_model", messages=thread.messages[:-1]
        )
        assert usage.input_tokens + usage.cache_read_input_tokens == counted.input_tokens


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


# -- several answers -------------------------------------------------------------------------------


def complete(server: Server, **more: Any) -> Any:
    return openai(server).completions.create(model="default_model", **{"max_tokens": 8, **more})


def test_choices_have_seeds_of_their_own(server: Server) -> None:
    given: dict[str, Any] = {"temperature": 1.0, "logprobs": 0, "logit_bias": {"2": -100}}
    alone = [complete(server, prompt="Wisła", seed=seed, **given) for seed in (7, 8, 9)]
    several = complete(server, prompt="Wisła", seed=7, n=3, **given)
    assert [c.text for c in several.choices] == [c.choices[0].text for c in alone]
    assert len({c.text for c in several.choices}) == 3
    assert [c.index for c in several.choices] == [0, 1, 2]
    assert several.usage.prompt_tokens == alone[0].usage.prompt_tokens
    assert several.usage.completion_tokens == sum(a.usage.completion_tokens for a in alone)
    assert [len(c.logprobs.tokens) for c in several.choices] == [8] * 3
    parts = list(complete(server, prompt="Wisła", seed=7, n=3, stream=True, **given))
    for index, choice in enumerate(several.choices):
        own = [p.choices[0] for p in parts if p.choices[0].index == index]
        assert "".join(part.text for part in own) == choice.text
        assert [part.finish_reason for part in own][-1] == choice.finish_reason
    equal = ask(server, "Wisła?", n=2, max_tokens=5)
    assert equal.choices[0].message == equal.choices[1].message


def test_a_list_of_prompts_is_answered_as_each_alone(server: Server) -> None:
    prompts = ["Wisła jest", "Odra płynie", "Zupa"]
    sampled: dict[str, Any] = {"temperature": 0.9, "seed": 3}
    alone = [complete(server, prompt=prompt, **sampled) for prompt in prompts]
    ids = [read_tokenizer(DEMO / "target").encode(f"<s>{text}", specials=True) for text in prompts]
    one = complete(server, prompt=ids[0], **sampled)
    assert one.choices[0].text == alone[0].choices[0].text
    for either in (prompts, ids):
        together = complete(server, prompt=either, **sampled)
        assert [c.text for c in together.choices] == [a.choices[0].text for a in alone]
        assert together.usage.prompt_tokens == sum(a.usage.prompt_tokens for a in alone)
    twice = complete(server, prompt=prompts, n=2, **sampled)
    assert [c.text for c in twice.choices[::2]] == [a.choices[0].text for a in alone]


@pytest.mark.parametrize("given", ["Wisła jest", [5, 300, 301]])
def test_an_echo_comes_first(server: Server, given: Any) -> None:
    text = given if isinstance(given, str) else read_tokenizer(DEMO / "target").decode(given)
    answer = complete(server, prompt=given).choices[0].text
    assert complete(server, prompt=given, echo=True).choices[0].text == text + answer
    parts = complete(server, prompt=given, echo=True, stream=True)
    assert "".join(part.choices[0].text for part in parts) == text + answer


def test_a_suffix_asks_in_the_tokens_of_the_model(server: Server) -> None:
    from openai import BadRequestError

    with pytest.raises(BadRequestError, match="suffix is not served"):
        complete(server, prompt="Wisła", suffix="Bałtyk")

    def asked(*names: str, prompt: Any = "a{0}") -> str:
        return fill_in_prompt(SimpleNamespace(get_added_vocab=lambda: names), prompt, "b")

    codestral, qwen = (
        ("[SUFFIX]", "[PREFIX]"),
        [f"<|fim_{n}|>" for n in ("prefix", "suffix", "middle")],
    )
    assert asked(qwen[0], *codestral) == "[SUFFIX]b[PREFIX]a{0}"
    assert asked(*qwen) == "<|fim_prefix|>a{0}<|fim_suffix|>b<|fim_middle|>"
    with pytest.raises(BadRequestError, match="not ids"):
        complete(server, prompt=[5], suffix="b")


def test_a_bias_leaves_drafting_exact(server: Server) -> None:
    bias = {"2": -100, "4": -100, "300": 2.5, "301": -3, "310": 4}
    for sampled in ({}, {"temperature": 1.0, "seed": 4}):
        drafted, plain = (
            complete(
                server, prompt="Wisła", logit_bias=bias, max_tokens=40, extra_body=more, **sampled
            )
            for more in ({}, {"num_draft_tokens": 0})
        )
        assert drafted.choices[0].text == plain.choices[0].text
        assert drafted.usage.completion_tokens_details.accepted_prediction_tokens > 0
        assert plain.usage.completion_tokens_details.accepted_prediction_tokens == 0


def test_models_that_may_be_named_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tokalign.serve.models.models_here", lambda: ["bielik", "llama3.2"])
    listed = Models(Settings(model="bielik"), print).model_list()
    assert [model["id"] for model in listed] == ["bielik"]
    listed = Models(Settings(model="bielik", allow_model_switching=True), print).model_list()
    assert [model["id"] for model in listed] == ["bielik", "llama3.2"]


_NAMES = (
    "role content type text name id call_id input output arguments tool_use_id thinking function "
    "input_schema parameters format schema system messages instructions tools tool_choice include "
    "output_config stop_sequences max_output_tokens n chat_template_kwargs "
    "results error status reasoning_effort effort"
)
_WORDS = (
    "user assistant system developer text input_text tool_use tool_result thinking reasoning "
    "message function function_call function_call_output tool any auto json_schema custom "
    "shell_call mcp_call shell_call_output"
)


JUNK = st.recursive(
    st.sampled_from([None, True, 5, "", "x", *_WORDS.split()]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(_NAMES.split()), inner, max_size=4)
    ),
    max_leaves=25,
)


@given(st.dictionaries(st.sampled_from(_NAMES.split()), JUNK), JUNK)
def test_whatever_a_body_holds_it_is_read_or_refused(given: dict[str, Any], turns: Any) -> None:
    data = json.dumps({**given, "input": turns, "messages": turns, "prompt": turns}).encode()
    for api in (Chats, Completions, Responses, Messages):
        try:
            (asked, *_) = read(data, api.form).requests(Settings(), "")
        except TokalignError:
            continue
        if asked.messages is not None:
            json.dumps(asked.messages)
            assert all(isinstance(one["content"], str) for one in asked.messages)


def test_what_the_assistant_said_in_two_items_is_two_paragraphs() -> None:
    """As chats write it; the parts of one item are one text."""
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    parts = [{"type": "output_text", "text": text} for text in ("A ", "teraz.")]
    said = [{"role": "assistant", "content": content} for content in ("Tak.", parts)]
    items = [{"role": "user", "content": "x"}, said[0], call, said[1]]
    (asked,) = read(json.dumps({"input": items}).encode(), Responses.form).requests(Settings(), "")
    assert [one["content"] for one in asked.messages or ()] == ["x", "Tak.\n\nA teraz."]
    called = {"type": "tool_use", "id": "c", "name": "f", "input": {}}
    before, *after = ({"type": "text", "text": text} for text in ("Tak.", "A ", "teraz."))
    spoken = [{"role": "assistant", "content": [called, before, called, called, *after, called]}]
    (asked,) = read(json.dumps({"messages": spoken}).encode(), Messages.form).requests(
        Settings(), ""
    )
    assert [one["content"] for one in asked.messages or ()] == ["Tak.\n\nA teraz."]


def test_what_the_assistant_said_and_called_is_one_message() -> None:
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    items = [
        {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "Hm.\n\nHa."}]},
        {"type": "message", "role": "assistant", "content": "Tak."},
        call,
        call,
        {"type": "function_call_output", "call_id": "c", "output": "5"},
    ]
    blocks = [
        {"type": "thinking", "thinking": "Hm.", "signature": ""},
        {"type": "thinking", "thinking": "Ha.", "signature": ""},
        {"type": "text", "text": "Tak."},
        *[{"type": "tool_use", "id": "c", "name": "f", "input": {}}] * 2,
    ]
    result = {
        "role": "user",
        "content": [{"type": "tool_result", "tool_use_id": "c", "content": "5"}],
    }
    called = {"type": "function", "id": "c", "function": {"name": "f", "arguments": {}}}
    said = {
        "role": "assistant",
        "content": "Tak.",
        "reasoning_content": "Hm.\n\nHa.",
        "thinking": "Hm.\n\nHa.",
        "tool_calls": [called, called],
    }
    expected = [said, {"role": "tool", "tool_call_id": "c", "content": "5", "name": "f"}]
    spoken = {"role": "assistant", "content": blocks}
    bodies = ((Responses, {"input": items}), (Messages, {"messages": [spoken, result]}))
    for api, body in bodies:
        (asked,) = read(json.dumps(body).encode(), api.form).requests(Settings(), "")
        assert asked.messages == expected


def test_a_share_of_nothing_is_off_only_as_the_servers_default() -> None:
    said: Any = {"messages": [{"role": "user", "content": "x"}], "input": "x"}
    for api in (Chats, Completions, Responses, Messages):
        body = {"prompt": "x"} if api is Completions else said
        for more, share in (({}, 0), ({"top_p": 0}, 1e-9), ({"top_p": 1e-60}, 1e-9)):
            (asked,) = as_form({**body, **more}, api.form).requests(Settings(top_p=0), "")
            assert asked.sampling.top_p == share


_WHOLE = (1 << 31) - 1


@pytest.mark.parametrize(
    ("given", "factor", "windows"),
    [
        ({}, 0, [20, 20, 20]),
        ({"repetition_penalty": 1.3}, 1.3, [20, 20, 20]),
        ({"repetition_penalty": 1}, 0, [20, 20, 20]),
        ({"repetition_penalty": -1}, 0, [20, 20, 20]),
        ({"repetition_penalty": 2, "repeat_penalty": 1.3}, 1.3, [20, 20, 20]),
        ({"repetition_penalty": 2, "repeat_penalty": 1.0}, 0, [20, 20, 20]),
        ({"repeat_penalty": 1.3, "repeat_last_n": 64}, 1.3, [64, 64, 64]),
        ({"presence_penalty": 1, "repeat_last_n": -1}, 0, [_WHOLE, _WHOLE, _WHOLE]),
        ({"repeat_penalty": 1.3, "repeat_last_n": 0}, None, []),
    ],
)
def test_penalties_have_the_names_of_mlx_lm_or_of_llama_cpp(
    given: dict[str, Any], factor: float | None, windows: list[int]
) -> None:
    (asked,) = as_form({"prompt": "x", **given}, Completions.form).requests(Settings(), "")
    found = [size for name, size in asked.penalties.items() if name.endswith("context_size")]
    assert (asked.penalties.get("repetition_penalty"), found) == (factor, windows)


def test_a_call_that_failed_is_told_to_the_model() -> None:
    result = {"type": "tool_result", "tool_use_id": "c", "is_error": True}
    for more, told in (
        ({}, "[This call failed.]"),
        ({"content": "No such city."}, "[This call failed.]\n\nNo such city."),
        ({"content": [{"type": "text", "text": "No."}]}, "[This call failed.]\n\nNo."),
        ({"content": "It rains.", "is_error": False}, "It rains."),
    ):
        body = {"messages": [{"role": "user", "content": [result | more]}]}
        (asked,) = as_form(body, Messages.form).requests(Settings(), "")
        assert asked.messages == [{"role": "tool", "tool_call_id": "c", "content": told}]
    call = {"type": "mcp_call", "id": "c", "name": "f", "arguments": "{}", "error": "No."}
    assert messages_of(call)[1]["content"] == "[This call failed.]\n\nNo."


def messages_of(*items: dict[str, Any]) -> list[dict[str, Any]]:
    body = json.dumps({"input": [*items, {"role": "user", "content": "?"}]}).encode()
    (asked,) = read(body, Responses.form).requests(Settings(), "")
    assert asked.messages is not None
    *history, question = asked.messages
    assert question == {"role": "user", "content": "?"}
    return history


def test_a_thought_without_content_is_its_summary() -> None:
    summary = [{"type": "summary_text", "text": "Ha."}]
    content = [{"type": "reasoning_text", "text": "Hm."}]
    for more, thought in (({}, "Ha."), ({"content": []}, "Ha."), ({"content": content}, "Hm.")):
        (read,) = messages_of({"type": "reasoning", "summary": summary, **more})
        assert read["reasoning_content"] == thought


PATCH = {"type": "update_file", "path": "a.py", "diff": "+ł"}
SCREEN = {"type": "computer_screenshot", "image_url": "data:image/png;base64,iVBORw0="}
LEFT_OUT = "[A part of type {} was left out here: this model reads only text.]"
HOSTED: list[tuple[dict[str, Any], tuple[str, Any] | None, str | None]] = [
    ({"type": "web_search_call", "action": {"type": "search", "query": "a"}}, None, None),
    ({"type": "file_search_call", "queries": ["a"], "results": None}, None, None),
    ({"type": "mcp_list_tools", "server_label": "s", "tools": []}, None, None),
    ({"type": "mcp_approval_request", "server_label": "s", "name": "f"}, None, None),
    ({"type": "mcp_approval_response", "approve": True}, None, None),
    (
        {"type": "file_search_call", "queries": ["a"], "results": [{"text": "Łódź"}]},
        ("file_search", {"queries": ["a"]}),
        '[{"text": "Łódź"}]',
    ),
    (
        {"type": "mcp_call", "server_label": "s", "name": "f", "arguments": "{}", "output": "7"},
        ("f", {}),
        "7",
    ),
    (
        {"type": "code_interpreter_call", "code": "1", "outputs": [{"type": "logs", "logs": "1"}]},
        ("code_interpreter", {"code": "1"}),
        '[{"type": "logs", "logs": "1"}]',
    ),
    (
        {"type": "custom_tool_call", "call_id": "c", "name": "f", "input": "ł"},
        ("f", {"input": "ł"}),
        None,
    ),
    ({"type": "custom_tool_call_output", "call_id": "c", "output": "ł"}, None, "ł"),
    (
        {"type": "shell_call", "call_id": "c", "action": {"commands": ["ls"]}},
        ("shell", {"action": {"commands": ["ls"]}}),
        None,
    ),
    (
        {"type": "shell_call_output", "call_id": "c", "output": [{"stdout": "a"}]},
        None,
        '[{"stdout": "a"}]',
    ),
    ({"type": "local_shell_call_output", "id": "c", "output": "a"}, None, "a"),
    (
        {"type": "apply_patch_call", "call_id": "c", "operation": PATCH},
        ("apply_patch", {"operation": PATCH}),
        None,
    ),
    ({"type": "apply_patch_call_output", "call_id": "c", "status": "completed"}, None, "completed"),
    (
        {"type": "computer_call", "call_id": "c", "action": {"type": "wait"}},
        ("computer", {"action": {"type": "wait"}}),
        None,
    ),
    (
        {"type": "computer_call_output", "call_id": "c", "output": SCREEN},
        None,
        LEFT_OUT.format("computer_screenshot"),
    ),
]
"""Items of OpenAI's tools, with the call and the result that are read of each."""


@pytest.mark.parametrize(("item", "call", "result"), HOSTED)
def test_items_of_hosted_tools_are_calls_and_results(
    item: dict[str, Any], call: tuple[str, Any] | None, result: str | None
) -> None:
    item = {"id": "c", "status": "completed", **item}
    history = messages_of(item)
    called = [one["function"] for turn in history for one in turn.get("tool_calls", ())]
    assert [(one["name"], one["arguments"]) for one in called] == ([call] if call else [])
    returned = [turn for turn in history if turn["role"] == "tool"]
    assert [turn["content"] for turn in returned] == ([result] if result else [])
    assert all(turn["tool_call_id"] == "c" for turn in returned)


def test_an_item_that_says_nothing_parts_no_message() -> None:
    said = [{"role": "assistant", "content": text} for text in ("a", "b")]
    search = {"id": "c", "type": "web_search_call", "status": "completed"}
    assert messages_of(said[0], search, said[1]) == [{"role": "assistant", "content": "a\n\nb"}]
    (turn,) = messages_of({"id": "c", "type": "image_generation_call", "result": "iVBORw0="})
    assert turn["content"] == LEFT_OUT.format("image_generation_call")


def test_tools_that_items_add_are_told() -> None:
    space = {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "g"}]}
    added = {"type": "additional_tools", "role": "developer", "tools": [space, 5]}
    search = {"type": "tool_search_call", "call_id": "c", "arguments": {"query": "f"}}
    output = {
        "type": "tool_search_output",
        "call_id": "c",
        "tools": [{"type": "function", "name": "f"}],
    }
    items = [added, search, output, {"role": "user", "content": "?"}]
    (asked,) = as_form({"input": items}, Responses.form).requests(Settings(), "")
    assert [tool["function"]["name"] for tool in asked.tools] == ["n__g", "f"]
    assert asked.messages is not None
    assert [turn["role"] for turn in asked.messages] == ["assistant", "tool", "user"]
    assert asked.messages[0]["tool_calls"][0]["function"]["arguments"] == {"query": "f"}
    assert "f" in asked.messages[1]["content"]


@pytest.mark.parametrize(
    ("item", "remedy"),
    [
        ({"type": "item_reference", "id": "msg_1"}, "send the items themselves.* store: false"),
        ({"id": "msg_1"}, "send the items themselves"),
        ({"type": "compaction", "encrypted_content": "x"}, "only OpenAI can read: send the items"),
        ({"type": "program", "code": "1"}, "leave it out"),
        ({"type": "function_call", "name": "f"}, "all of its fields"),
    ],
)
def test_an_item_that_cannot_be_read_is_refused_with_a_remedy(
    item: dict[str, Any], remedy: str
) -> None:
    with pytest.raises(TokalignError, match=rf"input\[0\].*{remedy}"):
        messages_of(item)


FORM = AnswerForm(("<think>", "</think>"), ToolFormat("json_tools", "<tool_call>", "</tool_call>"))


def rendering_of(api: type[Rendering], **more: Any) -> Rendering:
    return api(as_form({"messages": [], "input": "", **more}, api.form))


def events_of(api: type[Rendering], text: str, **more: Any) -> tuple[list[Any], dict[str, Any]]:
    """The events and the whole answer for a text that begins with a thought. more: of the body."""
    tokenizer: Tokenizer[TargetId] = read_tokenizer(DEMO / "target")
    job = Job(
        request=ApiRequest(tools=[{"type": "function", "function": WEATHER}]),
        put=print,
        form=FORM,
        opens_in="thought",
    )
    job.tokenizer, job.prompt = tokenizer, Prompt(target=[TargetId(5)] * 3)
    job.statistics.generation_tokens = len(text)
    given = [Emitted(text=part, token=7) for part in text]
    given.append(Emitted(text="", token=2, finish_reason="stop"))
    choice = Choice(0, job)
    rendering = rendering_of(api, **more)
    steps = [*chain.from_iterable(map(choice.feed, given)), None]
    parts = chain(*(rendering.step(choice, step) for step in steps))
    data = b"".join(chain(rendering.begin([choice]), parts, rendering.end([choice]))).decode()
    found = [line.partition("data: ")[2] for line in data.split("\n") if line.startswith("data: {")]
    return [json.loads(one) for one in found], rendering.whole([choice])


def test_thoughts_and_broken_calls_have_the_shapes_of_the_clients_types() -> None:
    from anthropic.types import Message, RawMessageStreamEvent
    from openai.types.chat import ChatCompletion, ChatCompletionChunk
    from openai.types.responses import Response, ResponseStreamEvent

    broken = "<tool_call>{broken</tool_call>\nKoniec"
    text = f"Hm, tak.</think>\n\n{CALL}\n{broken}"
    for api, event_type, whole_type, kinds in (
        (Chats, ChatCompletionChunk, ChatCompletion, None),
        (Responses, ResponseStreamEvent, Response, ["reasoning", "function_call", "message"]),
        (Messages, RawMessageStreamEvent, Message, ["thinking", "tool_use", "text"]),
    ):
        events, whole = events_of(api, text)
        for one in events:
            if one.get("type") in ("keepalive", "ping"):  # sent, but in none of the clients' types
                continue
            TypeAdapter(event_type).validate_python(one)
        TypeAdapter(whole_type).validate_python(whole)
        if kinds is None:
            told = whole["choices"][0]["message"]
            assert (told["reasoning"], told["content"]) == ("Hm, tak.", broken)
        else:
            assert [item["type"] for item in whole.get("output") or whole["content"]] == kinds
    failed = rendering_of(Messages).fail(Refusal(500, "x"))
    assert b'"api_error"' in failed
    last = json.loads(rendering_of(Responses).fail(Refusal(500, "x")).split(b"data: ")[1])
    assert TypeAdapter(ResponseStreamEvent).validate_python(last).response.status == "failed"


def test_every_api_counts_the_tokens_of_thoughts() -> None:
    """Each character is a token here. The mark that ends a thought may be counted with it."""
    thought = "Hm, tak."
    for api, total, details, field in (
        (Chats, "completion_tokens", "completion_tokens_details", "reasoning_tokens"),
        (Responses, "output_tokens", "output_tokens_details", "reasoning_tokens"),
        (Messages, "output_tokens", "output_tokens_details", "thinking_tokens"),
    ):
        events, whole = events_of(api, f"{thought}</think>Wisła.")
        usage = whole["usage"]
        assert len(thought) <= usage[details][field] < usage[total]
        if api is Messages:
            assert events[-2]["usage"] == usage  # the last one but `message_stop`


def test_a_chat_tells_no_thought_where_vllms_field_says_so() -> None:
    """Its parts are sent all the same, so that a long thought is no silence."""
    said = "Hm.</think>Wisła."
    events, whole = events_of(Chats, said, include_reasoning=False)
    assert whole["choices"][0]["message"] == {"role": "assistant", "content": "Wisła."}
    assert not any("reasoning" in c["delta"] for one in events for c in one["choices"])
    assert len(events) == len(events_of(Chats, said)[0])


def test_what_follows_the_only_call_of_an_answer_is_no_part_of_it() -> None:
    """Decoding goes on until it hears that its reader has enough: how far is a matter of time."""
    tool = {"type": "function", "function": WEATHER}
    job = Job(request=ApiRequest(tools=[tool], several_calls=False), put=print, form=FORM)
    choice = Choice(0, job)
    for text in (CALL, " I", " koniec"):
        list(choice.feed(Emitted(text=text, token=7)))
    job.stop_text = "."
    list(choice.feed(Emitted(text="", token=NO_TOKEN, finish_reason="stop")))
    assert (choice.count, len(choice.tokens)) == (1, 1)
    whole = rendering_of(Messages).whole([choice])
    assert (whole["stop_reason"], whole["stop_sequence"]) == ("tool_use", None)


def test_texts_with_something_between_them_are_paragraphs_of_a_chat() -> None:
    broken = "<tool_call>{broken"
    text = f"Hm.</think>Raz.\n{CALL}\nDwa. <tool_call>x{CALL}</think><think>Ach.</think>{broken}"
    events, whole = events_of(Chats, text)
    message = whole["choices"][0]["message"]
    assert message["content"] == f"Raz.\n\nDwa. <tool_call>x\n\n{broken}"
    assert message["reasoning"] == "Hm.\n\nAch."
    for name in ("content", "reasoning"):
        deltas = [choice["delta"] for one in events for choice in one["choices"]]
        assert "".join(delta.get(name) or "" for delta in deltas) == message[name]


@pytest.mark.parametrize("value", ['"\\ud83d"', "1e999", "-1e999", '{"y": ["\\ud800"]}'])
def test_calls_with_what_json_libraries_cannot_write_are_answered(value: str) -> None:
    call = f'{{"name": "pogoda", "arguments": {{"city": {value}}}}}'
    for api in (Chats, Responses, Messages):
        _, whole = events_of(api, f"</think><tool_call>{call}</tool_call>")
        assert json.loads(Written(whole).body) == whole
        json.dumps(whole, allow_nan=False)
