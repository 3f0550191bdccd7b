"""Streams as the makers' own clients put them together: what was streamed is the whole answer.

The model of these tests repeats what the user said. To a user who says "?" it repeats what the
template was given of the turn before, so the answer tells whether that turn has survived.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator
from typing import Any, ClassVar, Literal

import pytest
from processes import wait_for
from pydantic import BaseModel
from served import CALL, KEY, WEATHER, chat, content, echo_folder, openai, serving

from tokalign.serve import Settings
from tokalign.serve.job import Job
from tokalign.serve.server import Server

TEMPLATE = (
    "{# <tool_call> tool_call.name #}"
    "{% if tools %}{{ '<|im_start|>system\\n' + tools | tojson + '<|im_end|>\\n' }}{% endif %}"
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\\n' }}"
    "{{ messages[-2] | tojson if message.content == '?' else message.content }}"
    "{% if message.tool_calls %}{{ message.tool_calls | tojson }}{% endif %}"
    "{{ '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

CALLED = ("pogoda", {"miasto": "Łódź"})
SAID: dict[str, tuple[str, list[Any]]] = {
    "text": (
        "Wisła płynie  przez Kraków.\n\n  * i dalej",
        [("text", "Wisła płynie  przez Kraków.\n\n  * i dalej")],
    ),
    "a thought": (
        "<think>Hm, tak.</think>\n\nWisła.",
        [("thought", "Hm, tak."), ("text", "Wisła.")],
    ),
    "two calls": (f"Sprawdzam. {CALL}\n{CALL}", [("text", "Sprawdzam."), CALLED, CALLED]),
    "all three": (
        f"<think>Hm.</think>\n{CALL}\nJuż.",
        [("thought", "Hm."), CALLED, ("text", "Już.")],
    ),
    "what is no call": (
        "<tool_call>{nic}</tool_call> i koniec",
        [("text", "<tool_call>{nic}</tool_call> i koniec")],
    ),
    "a call in a fence": (
        f"Sprawdzam:\n\n```json\n{CALL[11:-12]}\n```\n",
        [("text", "Sprawdzam:"), CALLED],
    ),
    "nothing": ("<think></think>", []),
}
"""What the model says, and its blocks: of a call the name and the arguments."""


@pytest.fixture(scope="module")
def echo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A model that repeats, thinks and calls tools."""
    folder = echo_folder(
        tmp_path_factory.mktemp("models") / "echo", template=TEMPLATE, marks=("<think>", "</think>")
    )
    with serving(Settings(model=str(folder), trust_remote_code=True)) as running:
        yield running


# -- the clients -----------------------------------------------------------------------------------


def user(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


class Chat:
    """`client.chat.completions.stream`."""

    CHOICE: ClassVar[Any] = {"type": "function", "function": {"name": "pogoda"}}

    @staticmethod
    def results(answer: Any, text: str) -> list[Any]:
        """What the called tools return."""
        calls = answer.choices[0].message.tool_calls
        return [{"role": "tool", "tool_call_id": call.id, "content": text} for call in calls]

    @staticmethod
    def asked(messages: list[Any], **more: Any) -> dict[str, Any]:
        tools = [{"type": "function", "function": WEATHER}]
        return {"model": "default_model", "messages": messages, "tools": tools, **more}

    @classmethod
    def stream(cls, server: Server, messages: list[Any], **more: Any) -> Any:
        usage = {"include_usage": True}
        given = cls.asked(messages, stream_options=usage, **more)
        with openai(server).chat.completions.stream(**given) as stream:
            return stream.get_final_completion()

    @classmethod
    def whole(cls, server: Server, messages: list[Any], **more: Any) -> Any:
        return openai(server).chat.completions.create(**cls.asked(messages, **more))

    @staticmethod
    def turn(answer: Any) -> list[Any]:
        """What is appended to the messages of the next request."""
        return [answer.choices[0].message]

    @staticmethod
    def told(answer: Any) -> Any:
        """All that an answer says, but for ids and times."""
        left_out = {"id", "index", "parsed", "parsed_arguments"}
        choices = [without(one.to_dict(), left_out) for one in answer.choices]
        return choices, answer.usage.completion_tokens, answer.usage.prompt_tokens

    @staticmethod
    def blocks(answer: Any) -> list[Any]:
        message = answer.choices[0].message
        texts = [("thought", getattr(message, "reasoning", None)), ("text", message.content)]
        calls = [c.function for c in message.tool_calls or ()]
        called = [(one.name, json.loads(one.arguments)) for one in calls]
        return [*(one for one in texts if one[1]), *called]


class Responses:
    """`client.responses.stream`."""

    CHOICE: ClassVar[Any] = {"type": "function", "name": "pogoda"}

    @staticmethod
    def results(answer: Any, text: str) -> list[Any]:
        calls = [item for item in answer.output if item.type == "function_call"]
        kind = "function_call_output"
        return [{"type": kind, "call_id": call.call_id, "output": text} for call in calls]

    @staticmethod
    def asked(messages: list[Any], **more: Any) -> dict[str, Any]:
        tools = [{"type": "function", **WEATHER}]
        if "stop" in more:
            more["extra_body"] = {"stop": more.pop("stop")}
        return {"model": "default_model", "input": messages, "tools": tools, **more}

    @classmethod
    def stream(cls, server: Server, messages: list[Any], **more: Any) -> Any:
        with openai(server).responses.stream(**cls.asked(messages, **more)) as stream:
            return stream.get_final_response()

    @classmethod
    def whole(cls, server: Server, messages: list[Any], **more: Any) -> Any:
        return openai(server).responses.create(**cls.asked(messages, **more))

    @staticmethod
    def turn(answer: Any) -> list[Any]:
        return list(answer.output)

    @staticmethod
    def told(answer: Any) -> Any:
        left_out = {"id", "call_id", "parsed", "parsed_arguments"}
        items = [without(item.to_dict(), left_out) for item in answer.output]
        return items, answer.status, answer.usage.output_tokens, answer.usage.input_tokens

    @staticmethod
    def blocks(answer: Any) -> list[Any]:
        return [
            (item.name, json.loads(item.arguments))
            if item.type == "function_call"
            else ("text" if item.type == "message" else "thought", item.content[0].text)
            for item in answer.output
        ]


class Messages:
    """`client.messages.stream`."""

    CHOICE: ClassVar[Any] = {"type": "tool", "name": "pogoda"}

    @staticmethod
    def results(answer: Any, text: str) -> list[Any]:
        content = [{"type": "text", "text": text}]
        calls = [block for block in answer.content if block.type == "tool_use"]
        kind = "tool_result"
        parts = [{"type": kind, "tool_use_id": call.id, "content": content} for call in calls]
        return [{"role": "user", "content": parts}]

    @staticmethod
    def client(server: Server) -> Any:
        from anthropic import Anthropic

        return Anthropic(base_url=server.url, api_key=KEY, max_retries=0).messages

    @staticmethod
    def asked(messages: list[Any], **more: Any) -> dict[str, Any]:
        tools = [{"name": "pogoda", "input_schema": WEATHER["parameters"]}]
        if "stop" in more:
            more["stop_sequences"] = more.pop("stop")
        given = {"max_tokens": 300, "messages": messages, "tools": tools}
        return {"model": "default_model", **given, **more}

    @classmethod
    def stream(cls, server: Server, messages: list[Any], **more: Any) -> Any:
        with cls.client(server).stream(**cls.asked(messages, **more)) as stream:
            return stream.get_final_message()

    @classmethod
    def whole(cls, server: Server, messages: list[Any], **more: Any) -> Any:
        return cls.client(server).create(**cls.asked(messages, **more))

    @staticmethod
    def turn(answer: Any) -> list[Any]:
        return [{"role": answer.role, "content": answer.content}]

    @staticmethod
    def told(answer: Any) -> Any:
        blocks = [without(block.to_dict(), {"id", "parsed_output"}) for block in answer.content]
        usage = answer.usage
        read = usage.input_tokens + usage.cache_read_input_tokens
        return blocks, answer.stop_reason, answer.stop_sequence, usage.output_tokens, read

    @staticmethod
    def blocks(answer: Any) -> list[Any]:
        return [
            (block.name, block.input)
            if block.type == "tool_use"
            else ("text", block.text)
            if block.type == "text"
            else ("thought", block.thinking)
            for block in answer.content
        ]


def without(value: Any, names: set[str]) -> Any:
    """An object of JSON without these fields at any depth, and without those that say nothing."""
    if isinstance(value, list):
        return [without(one, names) for one in value]
    if isinstance(value, dict):
        said = {name: one for name, one in value.items() if one not in (None, "", [])}
        return {name: without(one, names) for name, one in said.items() if name not in names}
    return value


Api = type[Chat] | type[Responses] | type[Messages]
every_api = pytest.mark.parametrize("api", [Chat, Responses, Messages])


# -- what was streamed is the whole answer ---------------------------------------------------------


@every_api
@pytest.mark.parametrize("kind", SAID)
def test_a_helper_makes_the_whole_answer_of_a_stream(echo: Server, api: Api, kind: str) -> None:
    said, blocks = SAID[kind]
    streamed, whole = (ask(echo, user(said)) for ask in (api.stream, api.whole))
    assert api.told(streamed) == api.told(whole)
    in_order = blocks if api is not Chat else sorted(blocks, key=lambda one: one[0] == "pogoda")
    assert api.blocks(streamed) == in_order


@pytest.mark.parametrize("kind", SAID)
def test_the_events_of_a_response_add_up_to_its_items(echo: Server, kind: str) -> None:
    """No text comes twice, and log-probabilities come with the text that they are of."""
    given = Responses.asked(user(SAID[kind][0]), include=["message.output_text.logprobs"])
    kept: dict[int, Any] = {}
    spoken: dict[int, list[Any]] = {}
    with openai(echo).responses.stream(**given) as stream:
        for event in stream:
            if event.type.endswith(("output_text.delta", "arguments.delta")):
                kept[event.output_index] = event.snapshot
            if event.type == "response.output_text.delta":
                spoken.setdefault(event.output_index, []).extend(one.id for one in event.logprobs)
            elif event.type == "response.output_text.done":
                assert kept[event.output_index] == event.text
                assert [one.id for one in event.logprobs] == spoken[event.output_index]
            elif event.type == "response.function_call_arguments.done":
                assert kept[event.output_index] == event.arguments
        streamed = stream.get_final_response()
    whole = openai(echo).responses.create(**given)
    assert Responses.told(streamed) == Responses.told(whole)
    for item in whole.output:
        if item.type == "message":
            tokens = b"".join(bytes(one.bytes) for one in item.content[0].logprobs).decode()
            assert tokens.endswith(item.content[0].text)
            before = tokens.removesuffix(item.content[0].text)
            assert [word for word in ("Hm", "pogoda") if word in before] == []


@every_api
def test_an_answer_has_one_call_where_more_are_not_wanted(echo: Server, api: Api) -> None:
    said = f"Sprawdzam. {CALL}\n{CALL} Koniec."
    one: Any = {"parallel_tool_calls": False}
    if api is Messages:
        one = {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}}
    whole, streamed = (get(echo, user(said), **one) for get in (api.whole, api.stream))
    assert api.told(whole) == api.told(streamed)
    assert api.blocks(whole) == [("text", "Sprawdzam."), CALLED]
    assert len(api.blocks(api.whole(echo, user(said)))) > 2


@every_api
def test_a_thought_that_a_question_spells_ends_with_it(echo: Server, api: Api) -> None:
    """Neither is the answer a thought, nor does its grammar wait for the end of one."""
    messages = [*user("Co to <think>?"), *api.turn(api.whole(echo, user("x"))), *user("Wisła")]
    assert api.blocks(api.whole(echo, messages)) == [("text", "Wisła")]
    assert content(chat(echo, "Co to <think>?", guided_regex="tak")) == "tak"


@every_api
def test_a_stop_text_is_in_no_stream(echo: Server, api: Api) -> None:
    asked, stop = user("jeden dwa trzy"), ["trzy", "dwa"]
    streamed, whole = (ask(echo, asked, stop=stop) for ask in (api.stream, api.whole))
    assert api.told(streamed) == api.told(whole)
    assert api.blocks(streamed) == [("text", "jeden ")]
    if api is Messages:
        assert (whole.stop_reason, whole.stop_sequence) == ("stop_sequence", "dwa")


@pytest.mark.long  # what other tests leave in a process may hold a job, too
@every_api
def test_what_an_answer_held_is_freed_at_its_end(echo: Server, api: Api) -> None:
    """Its caches are large, and Python seldom looks for objects that hold each other."""

    def jobs() -> list[Job]:
        return [held for held in gc.get_objects() if type(held) is Job]

    before = jobs()
    gc.disable()
    try:
        for ask in (api.whole, api.stream):
            ask(echo, user("Wisła"))
            wait_for(lambda: all(job in before for job in jobs()))
    finally:
        gc.enable()


@every_api
@pytest.mark.parametrize("kind", [kind for kind in SAID if SAID[kind][1]])
def test_a_turn_that_was_streamed_survives_in_the_history(
    echo: Server, api: Api, kind: str
) -> None:
    said, blocks = SAID[kind]
    turn = turn_before(echo, api, said, api.stream(echo, user(said)))
    texts = {"text": turn["content"], "thought": turn.get("reasoning_content", "")}
    calls = [
        (c["function"]["name"], c["function"]["arguments"]) for c in turn.get("tool_calls", ())
    ]
    assert (turn["role"], texts) == ("assistant", {"text": "", "thought": "", **of_kind(blocks)})
    assert calls == [one for one in blocks if one[0] == "pogoda"]


def of_kind(blocks: list[Any]) -> dict[str, str]:
    return {kind: text for kind, text in blocks if kind != "pogoda"}


@every_api
def test_a_conversation_goes_on_with_the_results_of_tools(echo: Server, api: Api) -> None:
    said, _ = SAID["two calls"]
    answer = api.stream(echo, user(said))
    messages = [*user(said), *api.turn(answer), *api.results(answer, "Słońce.")]
    ((kind, text),) = api.blocks(api.whole(echo, messages))  # the last turn, which is the tool's
    assert (kind, text) == ("text", "Słońce.")
    (called,) = api.blocks(api.whole(echo, user("x"), tool_choice=api.CHOICE))
    assert called[0] == "pogoda"


@every_api
def test_what_fails_in_a_stream_fails_in_the_helper(
    echo: Server, monkeypatch: pytest.MonkeyPatch, api: Api
) -> None:
    deliver, given = Job.deliver, iter(range(99))

    def fail(*args: Any, **more: Any) -> None:
        if next(given) == 3:
            raise RuntimeError("the device is lost")
        deliver(*args, **more)

    monkeypatch.setattr(Job, "deliver", fail)
    expected = "completed" if api is Responses else "the device is lost"
    with pytest.raises(Exception, match=expected) as failed:
        api.stream(echo, user(SAID["text"][0]))
    assert type(failed.value).__module__.partition(".")[0] in ("openai", "anthropic", "builtins")
    assert next(given) < 99
    monkeypatch.undo()
    assert api.blocks(api.stream(echo, user("Wisła"))) == [("text", "Wisła")]


# -- several choices, log-probabilities and parts of a completion ----------------------------------


def test_a_helper_keeps_choices_and_log_probabilities_apart(server: Server) -> None:
    given: dict[str, Any] = {
        "model": "default_model",
        "messages": user("Opisz krótko Wisłę."),
        "max_tokens": 8,
        "temperature": 1.0,
        "seed": 5,
        "n": 2,
        "logprobs": True,
        "top_logprobs": 2,
        "stream_options": {"include_usage": True},
    }
    with openai(server).chat.completions.stream(**given) as stream:
        streamed = stream.get_final_completion()
    given.pop("stream_options")
    whole = openai(server).chat.completions.create(**given)
    said = [(c.message.role, c.message.content, c.finish_reason) for c in streamed.choices]
    assert said == [(c.message.role, c.message.content, c.finish_reason) for c in whole.choices]
    ids = [[token.id for token in choice.logprobs.content] for choice in streamed.choices]
    assert ids == [[token.id for token in choice.logprobs.content] for choice in whole.choices]
    tokens = streamed.usage.completion_tokens
    assert tokens == whole.usage.completion_tokens == sum(len(one) for one in ids)


class Town(BaseModel):
    """A town whose every field is bounded."""

    name: Literal["Łódź", "Kraków"]
    rank: Literal[1, 2, 3]


def test_a_helper_parses_what_was_streamed(server: Server) -> None:
    asked = user("Podaj miasto.")
    chats, responses = openai(server).chat.completions, openai(server).responses
    with chats.stream(model="default_model", messages=asked, response_format=Town) as stream:
        (choice,) = stream.get_final_completion().choices
    with responses.stream(model="default_model", input=asked, text_format=Town) as stream:
        response = stream.get_final_response()
    assert isinstance(choice.message.parsed, Town)
    assert choice.message.parsed == response.output_parsed
    assert choice.message.content == response.output_text


def test_the_parts_of_a_completion_are_its_text(echo: Server) -> None:
    """Nothing is looked for in it, so marks of thoughts and calls stay where they are."""
    prompt = "<|im_start|>user\n  <think>a</think> b {}<|im_end|>\n<|im_start|>assistant\n"
    given = {"model": "default_model", "prompt": prompt.format(CALL), "max_tokens": 80}
    completions = openai(echo).completions
    (whole,) = completions.create(**given).choices
    parts = [one.choices[0] for one in completions.create(**given, stream=True)]
    assert "".join(one.text for one in parts) == whole.text == f"  <think>a</think> b {CALL}"
    assert [one.finish_reason for one in parts if one.finish_reason] == [whole.finish_reason]


# -- calls that came to nothing --------------------------------------------------------------------

BROKEN = '<tool_call>{"name": "pogoda", "arguments": {"miasto": !}}</tool_call> Koniec.'


def turn_before(server: Server, api: Api, said: str, answer: Any) -> Any:
    """What the template is given of an answer that was sent back."""
    (block,) = api.blocks(api.whole(server, [*user(said), *api.turn(answer), *user("?")]))
    return json.loads(block[1])


@every_api
def test_a_call_that_was_cut_does_not_end_a_session(echo: Server, api: Api) -> None:
    limit = "max_output_tokens" if api is Responses else "max_tokens"
    (call,) = turn_before(echo, api, CALL, api.whole(echo, user(CALL), **{limit: 35}))["tool_calls"]
    assert call["function"]["name"] == "pogoda"
    assert call["function"]["arguments"]["arguments"] in CALL


@every_api
def test_a_call_that_was_none_does_not_end_a_session(echo: Server, api: Api) -> None:
    turn = turn_before(echo, api, BROKEN, api.stream(echo, user(BROKEN)))
    assert turn["content"] == BROKEN


@pytest.mark.parametrize("said", [BROKEN, CALL])
def test_no_client_takes_a_broken_call_for_a_complete_one(echo: Server, said: str) -> None:
    """Codex runs the call of every item that is completed, when it ends."""
    asked = Responses.asked(user(said), max_output_tokens=35 if said == CALL else 300)
    events = list(openai(echo).responses.create(**asked, stream=True))
    ended = [one.item for one in events if one.type == "response.output_item.done"]
    assert [one.status for one in ended if one.type == "function_call"] == ["incomplete"]
    assert [one.status for one in ended if one.type == "message"] in ([], ["completed"])
    output = events[-1].response.output
    assert [(one.id, one.status) for one in output] == [
        (one.id, one.status) for one in ended if said == CALL or one.type == "message"
    ]


@pytest.mark.parametrize("several", [True, False])
def test_a_call_that_was_cut_ends_its_answer_by_length(echo: Server, several: bool) -> None:
    asked = Chat.asked(user(CALL), max_tokens=35, parallel_tool_calls=several)
    (choice,) = openai(echo).chat.completions.create(**asked).choices
    assert choice.message.tool_calls
    assert choice.finish_reason == "length"
