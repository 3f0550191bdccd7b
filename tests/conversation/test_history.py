"""Messages of a chat as a template reads them: nothing disappears, and histories stay usable."""

from __future__ import annotations

import json
from base64 import b64encode
from itertools import pairwise
from typing import Any

import pytest
from compared_names import compared_names
from histories import template_messages

from tokalign.conversation.other_histories import of_items, of_messages
from tokalign.conversation.rendering import merged, rendered
from tokalign.errors import UsageError

ASK = {"role": "user", "content": "Skąd płynie Wisła?"}
IMAGE = {"type": "image_url", "image_url": {"url": "http://127.0.0.1:1/x.png"}}


def texts(*messages: dict[str, Any]) -> list[tuple[str, str]]:
    return [(one["role"], one["content"]) for one in template_messages(messages)]


@pytest.mark.parametrize(
    ("role", "read"), [("developer", "system"), ("system", "system"), ("function", "tool")]
)
def test_newer_and_older_names_of_roles(role: str, read: str) -> None:
    assert texts({"role": role, "content": "Krótko."}, ASK)[0] == (read, "Krótko.")


@pytest.mark.parametrize("role", ["critic", "", 5, None, "System"])
def test_an_unknown_role_is_refused_by_name(role: object) -> None:
    with pytest.raises(UsageError, match=r"messages\[1\]\.role"):
        template_messages([ASK, {"role": role, "content": "x"}])


def document(source: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "document", "source": source, **more}


def encoded(text: str) -> str:
    return b64encode(text.encode()).decode()


TEXTS: list[tuple[dict[str, Any], str]] = [
    ({"type": "text", "text": "Wisła"}, "Wisła"),
    ({"type": "input_text", "text": "Wisła"}, "Wisła"),
    ({"type": "refusal", "refusal": "Nie."}, "Nie."),
    (document({"type": "text", "media_type": "text/plain", "data": "Odra"}), "Odra"),
    (document({"type": "text", "data": "Odra"}, title="Rzeki"), "Rzeki\nOdra"),
    (
        document({"type": "base64", "media_type": "text/markdown", "data": encoded("# Łódź")}),
        "# Łódź",
    ),
    (document({"type": "content", "content": [{"type": "text", "text": "San"}]}), "San"),
    (document({"type": "content", "content": "San"}), "San"),
    (
        {
            "type": "search_result",
            "source": "https://a.pl",
            "title": "Bug",
            "content": [{"type": "text", "text": "Rzeka."}],
        },
        "Bug\nhttps://a.pl\nRzeka.",
    ),
]
"""Parts that are text, and what is read of them."""
OTHERS: list[dict[str, Any]] = [
    IMAGE,
    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0="}},
    {"type": "input_audio", "input_audio": {}},
    {"type": "file", "file": {"file_id": "x"}},
    {"type": "web_search_tool_result", "content": []},
    document({"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="}),
    document({"type": "base64", "media_type": "text/plain", "data": "no base64!"}),
    document({"type": "url", "url": "http://127.0.0.1:1/x"}),
    {"no": "type"},
]


@pytest.mark.parametrize(("part", "text"), TEXTS)
def test_what_is_text_is_read_as_text(part: dict[str, Any], text: str) -> None:
    assert texts({"role": "user", "content": [part]}) == [("user", text)]


@pytest.mark.parametrize("part", OTHERS)
def test_what_is_no_text_is_refused_in_a_question_and_marked_in_a_history(
    part: dict[str, Any],
) -> None:
    asked = {"role": "user", "content": [{"type": "text", "text": "Co to?"}, part]}
    with pytest.raises(UsageError, match=r"messages\[0\]\.content\[1\].*only text is served"):
        template_messages([asked])
    answer = {"role": "assistant", "content": "Nie wiem."}
    result = {"role": "tool", "tool_call_id": "a", "content": [part]}
    for history in ([asked, answer, ASK], [ASK, result]):
        kept = "\n".join(text for _, text in texts(*history))
        assert "was left out here" in kept
        assert "127.0.0.1" not in kept


def test_a_reference_to_a_tool_is_named() -> None:
    part = {"type": "tool_reference", "tool_name": "pogoda"}
    assert "pogoda" in texts(ASK, {"role": "tool", "content": [part]})[1][1]


def test_a_change_of_tools_is_told_as_claude_code_sends_it() -> None:
    tool = {"type": "tool_reference", "name": "pogoda"}
    parts = [{"type": f"tool_{change}", "tool": tool} for change in ("addition", "removal")]
    assert texts(ASK, {"role": "system", "content": parts})[1][1].split("\n\n") == [
        "[The tool pogoda is available.]",
        "[The tool pogoda is no longer available.]",
    ]


def test_calls_have_arguments_as_objects_and_thoughts_one_name() -> None:
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"x": "ł"}'}}
    said = {"role": "assistant", "content": None, "tool_calls": [call], "reasoning": "hm"}
    (_, read) = template_messages([ASK, said])
    assert read["content"] == ""
    assert read["tool_calls"][0]["function"] == {"name": "f", "arguments": {"x": "ł"}}
    assert read["reasoning_content"] == "hm"
    assert call["function"]["arguments"] == '{"x": "ł"}', "what the client sent stays as it is"


def test_a_result_has_the_name_of_what_was_called() -> None:
    calls = [{"id": name, "type": "function", "function": {"name": f"f{name}"}} for name in "ab"]
    said = {"role": "assistant", "tool_calls": [*calls, {"function": {"name": "g"}}]}
    results: list[dict[str, Any]] = [
        {"role": "tool", "content": "1", **more}
        for more in (
            *({"tool_call_id": "b"}, {"tool_call_id": "a", "name": "own"}),
            *({"tool_call_id": "c"}, {}, {"tool_call_id": [1]}),
        )
    ]
    read = template_messages([ASK, said, *results])[2:]
    assert [one.get("name") for one in read] == ["fb", "own", None, None, None]


def test_a_call_of_a_custom_tool_has_its_text_as_an_argument() -> None:
    """As in the items of responses."""
    call = {"type": "custom", "id": "a", "custom": {"name": "f", "input": "tekst"}}
    (_, read) = template_messages([ASK, {"role": "assistant", "tool_calls": [call]}])
    function = {"name": "f", "arguments": {"input": "tekst"}}
    assert read["tool_calls"] == [{"type": "function", "id": "a", "function": function}]


def test_a_call_in_the_older_form_is_one() -> None:
    said = {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}}
    (_, read, _) = template_messages([ASK, said, {"role": "function", "content": "7"}])
    assert [one["function"] for one in read["tool_calls"]] == [{"name": "f", "arguments": {}}]
    assert "function_call" not in read
    with pytest.raises(UsageError, match=r"messages\[1\]\.tool_calls\[0\]"):
        template_messages([ASK, {**said, "function_call": "f"}])


SYSTEM, MORE = {"role": "system", "content": "Krótko."}, {"role": "system", "content": "Jasno."}
TOOL = {"role": "tool", "tool_call_id": "a", "content": "7"}


def test_neighbours_of_one_role_are_merged_and_later_instructions_are_the_users() -> None:
    assert merged([SYSTEM, MORE, ASK, ASK]) == [
        {"role": "system", "content": "Krótko.\n\nJasno."},
        {"role": "user", "content": f"{ASK['content']}\n\n{ASK['content']}"},
    ]
    assert [one["role"] for one in merged([ASK, MORE, ASK])] == ["user"]
    assert merged([ASK, TOOL, TOOL]) == [ASK, TOOL, TOOL]
    first, second = ({"role": "assistant", "content": "", "tool_calls": [n]} for n in (1, 2))
    assert merged([ASK, first, second])[1]["tool_calls"] == [1, 2]


GREETING = {"role": "assistant", "content": "Dzień dobry!"}


class Template:
    """Writes messages as a function of them; its complaint is an error."""

    def __init__(self, write: Any) -> None:
        self.render = lambda messages, /, **_: write(messages)


def strict(messages: list[dict[str, Any]]) -> str:
    roles = [one["role"] for one in messages if one["role"] != "system"]
    if "system" in [one["role"] for one in messages[1:]] or any(a == b for a, b in pairwise(roles)):
        raise UsageError("roles must alternate")
    return free(messages)


def free(messages: list[dict[str, Any]]) -> str:
    return "".join(f"<{one['role']}>{one['content']}" for one in messages)


def forgetful(messages: list[dict[str, Any]]) -> str:
    """Writes the first message of the system and no other."""
    return free([one for i, one in enumerate(messages) if i == 0 or one["role"] != "system"])


def deaf(messages: list[dict[str, Any]]) -> str:
    return free([one for one in messages if one["role"] in ("user", "assistant")])


HISTORIES = ([ASK, ASK], [SYSTEM, MORE, ASK], [SYSTEM, ASK, MORE, ASK], [ASK, MORE])


@pytest.mark.parametrize("history", HISTORIES)
@pytest.mark.parametrize("write", [strict, free, forgetful])
def test_a_template_gets_merged_messages_only_if_it_needs_them(
    write: Any, history: list[dict[str, Any]]
) -> None:
    text = rendered(Template(write), history, {})  # type: ignore[arg-type]
    assert all(one["content"] in text for one in history)
    if write is free:
        assert text == free(history)


def without_system(messages: list[dict[str, Any]]) -> str:
    """As Gemma 2."""
    if messages[0]["role"] == "system":
        raise UsageError("no system here")
    return strict(messages)


@pytest.mark.parametrize("write", [deaf, without_system])
def test_the_user_says_what_a_template_has_no_other_role_for(write: Any) -> None:
    for history in ([SYSTEM, ASK], [SYSTEM, GREETING, ASK], [SYSTEM], [SYSTEM, ASK, GREETING, ASK]):
        text = rendered(Template(write), history, {})  # type: ignore[arg-type]
        assert all(one["content"] in text for one in history)
        assert text.startswith("<user>")
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": {"x": 1}}}
    said = {"role": "assistant", "content": "", "tool_calls": [call]}
    for history in ([ASK, TOOL], [ASK, said, TOOL], [ASK, said, {**TOOL, "name": "f"}, ASK]):
        text = rendered(Template(deaf), history, {})  # type: ignore[arg-type]
        assert TOOL["content"] in text
        assert ('"name": "f"' in text) is (said in history)


def test_a_message_that_a_template_leaves_out_is_refused() -> None:
    last = Template(lambda messages: free(messages[-1:]))
    with pytest.raises(UsageError, match="leaves out a message of the role 'system'"):
        rendered(last, [SYSTEM, ASK, GREETING, ASK], {})  # type: ignore[arg-type]


def mistral(messages: list[dict[str, Any]]) -> str:
    """As Mistral: calls have no text, and who speaks without them alternates."""
    spoken = [one for one in messages if "tool_calls" not in one and one["role"] != "tool"]
    turns = [one["role"] for one in spoken if one["role"] != "system"]
    if turns != (["user", "assistant"] * 9)[: len(turns)] or not all(
        one["content"] for one in spoken
    ):
        raise UsageError("roles must alternate")
    calls = functions(*messages)
    return free([one for one in messages if "tool_calls" not in one]) + str(calls)


def test_calls_may_part_what_one_speaker_says() -> None:
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": {"x": 1}}}
    looks = {"role": "assistant", "content": "Sprawdzam.", "tool_calls": [call]}
    for turns in (
        [ASK, {**looks, "content": ""}, TOOL, ASK],
        [ASK, looks, TOOL, GREETING, ASK],
        [ASK, looks, TOOL, looks, TOOL],
    ):
        history = [SYSTEM, *turns]
        text = rendered(Template(mistral), history, {})  # type: ignore[arg-type]
        assert text.startswith("<system>")
        assert text.count(TOOL["content"]) == sum(one is TOOL for one in history)
        said = [one["content"] for one in history if one["role"] == "assistant"]
        assert [text.count(each) for each in said if each] == [said.count(e) for e in said if e]


def test_a_message_may_be_written_otherwise() -> None:
    loud = Template(lambda messages: free(messages).upper())
    assert "KRÓTKO." in rendered(loud, [SYSTEM, ASK], {})  # type: ignore[arg-type]


def test_a_message_that_is_written_as_json_costs_no_other_rendering() -> None:
    times = []

    def quoting(messages: list[dict[str, Any]]) -> str:
        times.append(len(messages))
        return "".join(json.dumps(one["content"], ensure_ascii=False) for one in messages)

    result = {**TOOL, "content": 'Słońce:\n\t"7"'}
    assert "7" in rendered(Template(quoting), [ASK, result, ASK], {})  # type: ignore[arg-type]
    assert times.count(3) == 1, "besides the trial of the template"


class Searched(str):
    """A text that counts the characters in which something was looked for."""

    __slots__ = ()
    count = 0

    def find(self, piece: str, begin: int = 0) -> int:  # type: ignore[override]
        place = super().find(piece, begin)
        Searched.count += (len(self) if place < 0 else place) - begin
        return place

    def __contains__(self, piece: object) -> bool:
        return self.find(str(piece)) >= 0


@pytest.mark.parametrize("moved", [False, True])
def test_many_short_messages_are_looked_for_in_one_reading_of_the_text(moved: bool) -> None:
    """moved: whether the template writes the system's message last, and results as JSON."""

    def write(messages: Any, **_: Any) -> str:
        system, *others = [
            json.dumps(m["content"]) if m["role"] == "tool" and moved else m["content"] or ""
            for m in messages
        ]
        return Searched("|".join([*others, system] if moved else [system, *others]))

    turns = [{"role": ("user", "tool")[i % 2], "content": f'"{i}"'} for i in range(2000)]
    Searched.count = 0
    text = rendered(Template(write), [SYSTEM, *turns], {})  # type: ignore[arg-type]
    assert Searched.count < 5 * len(text)


@pytest.mark.parametrize("history", [[ASK], []])
def test_a_templates_own_complaint_is_told(history: list[dict[str, Any]]) -> None:
    def complain(_messages: Any) -> str:
        raise UsageError("no tools here")

    with pytest.raises(UsageError, match="no tools here"):
        rendered(Template(complain), history, {})  # type: ignore[arg-type]


def functions(*messages: dict[str, Any]) -> list[dict[str, Any]]:
    return [call["function"] for one in messages for call in one.get("tool_calls", ())]


def only_calls(messages: list[dict[str, Any]]) -> str:
    """As DeepSeek V3: the calls of a message without content, whose arguments are a text."""
    texts = [one["content"] for one in messages if one["content"] is not None]
    calls = functions(*(one for one in messages if one["content"] is None))
    return "|".join(texts + [each["name"] + each["arguments"] for each in calls])


def texts_of_calls(messages: list[dict[str, Any]]) -> str:
    """As DeepSeek V3.1 and V3.2: arguments are a text."""
    try:
        return free(messages) + "".join(
            each["name"] + str(json.loads(each["arguments"])) for each in functions(*messages)
        )
    except TypeError as error:
        raise UsageError(str(error)) from error


def objects(messages: list[dict[str, Any]]) -> str:
    """As most: the members of an object."""
    calls = functions(*messages)
    return free(messages) + "".join(each["name"] + str({**each["arguments"]}) for each in calls)


def single(messages: list[dict[str, Any]]) -> str:
    """As Llama 3: one call, and no text beside it."""
    texts = []
    for one in messages:
        calls = functions(one)
        if len(calls) > 1:
            raise UsageError("single calls only")
        written = [each["name"] + str(each["arguments"]) for each in calls]
        texts += written or [one["content"]]
    return "|".join(texts)


@pytest.mark.parametrize("write", [only_calls, texts_of_calls, objects, single, free])
@pytest.mark.parametrize("said", [None, "", "Sprawdzam."])
def test_calls_are_written_in_the_form_that_the_template_takes(
    write: Any, said: str | None
) -> None:
    call = {"id": "a", "function": {"name": "pogoda", "arguments": '{"x": "Łódź"}'}}
    turn = {"role": "assistant", "content": said, "tool_calls": [call]}
    history = template_messages([ASK, turn, TOOL, ASK])
    text = rendered(Template(write), history, {})  # type: ignore[arg-type]
    assert all(part in text for part in ("pogoda", "Łódź", said or "", TOOL["content"]))


def test_what_was_thought_before_a_call_stays_with_it() -> None:
    """As in gpt-oss's template, which writes no other thought, and refuses a text beside it."""

    def write(messages: list[dict[str, Any]]) -> str:
        if any(one.get("thinking") and one["content"] for one in messages):
            raise UsageError("either")
        calling = [one for one in messages if one.get("tool_calls")]
        thoughts = [f"<{one.get('thinking')}>" for one in calling]
        return single(messages) + "".join(thoughts)

    call = {"id": "a", "function": {"name": "f", "arguments": "{}"}}
    said = {"role": "assistant", "content": "Już.", "reasoning": "Hm.", "tool_calls": [call]}
    text = rendered(Template(write), template_messages([ASK, said, TOOL]), {})  # type: ignore[arg-type]
    assert "|Już.|f{}|" in text
    assert text.endswith("<Hm.>")


class Joining:
    """A template that reads descriptions and parameters of every tool, as gpt-oss's does."""

    def render(self, messages: list[dict[str, Any]], /, **variables: Any) -> str:
        functions = [tool["function"] for tool in variables["tools"]]
        try:
            inner = [one for f in functions for one in f["parameters"]["properties"].values()]
            told = "".join("//" + one["description"] for one in (*functions, *inner))
        except (KeyError, TypeError) as error:
            raise UsageError("something is not there") from error
        return free(messages) + told


def test_what_a_tool_does_not_say_is_empty_where_a_template_needs_it() -> None:
    functions = [
        {"name": "f", "parameters": {"type": "object", "properties": {"x": {"type": "string"}}}},
        {"name": "g", "description": None, "parameters": {}},
        {"name": "h", "description": "Pogoda."},
    ]
    tools = [{"type": "function", "function": one} for one in functions]
    text = rendered(Joining(), template_messages([ASK]), {"tools": tools})  # type: ignore[arg-type]
    assert text.endswith("//////Pogoda.//")
    assert "parameters" not in functions[2], "what the client sent stays as it is"


def test_a_template_of_single_calls_gets_each_with_its_result_in_whatever_order() -> None:
    names, compared = compared_names(range(300))
    calls = [
        {"id": name, "function": {"name": "f", "arguments": json.dumps({"x": str(name)})}}
        for name in names
    ]
    results = [{"role": "tool", "tool_call_id": name, "content": f"<{name}>"} for name in names]
    other = {"role": "tool", "tool_call_id": "c", "content": "of another"}
    turn = {"role": "assistant", "content": "Sprawdzam.", "tool_calls": calls}
    history = template_messages([ASK, turn, *reversed(results), other, ASK])
    text = rendered(Template(single), history, {})  # type: ignore[arg-type]
    pairs = "|".join(f"f{{'x': '{name}'}}|<{name}>" for name in names)
    assert text == f"{ASK['content']}|Sprawdzam.|{pairs}|of another|{ASK['content']}"
    assert len(compared) < 10 * len(names)


@pytest.mark.parametrize("history", [[GREETING, ASK], [SYSTEM, GREETING, ASK], [SYSTEM, MORE]])
def test_where_a_template_wants_a_user_first_one_begins(history: list[dict[str, Any]]) -> None:
    """As Gemma 3, which has no system's turn."""

    def write(messages: list[dict[str, Any]]) -> str:
        system = messages[0]["content"] if messages[0]["role"] == "system" else ""
        turns = messages[1:] if system else messages
        if [one["role"] for one in turns] != (["user", "assistant"] * 9)[: len(turns)]:
            raise UsageError("roles must alternate")
        return free(turns[:1]) + system + free(turns[1:]) if turns else ""

    text = rendered(Template(write), history, {})  # type: ignore[arg-type]
    assert text.startswith("<user>")
    assert all(one["content"] in text for one in history)


def test_a_template_that_knows_no_tools_gets_calls_and_results_as_texts() -> None:
    """As Gemma 3: the user and the assistant take turns, and nobody else speaks."""

    def write(messages: list[dict[str, Any]]) -> str:
        if [one["role"] for one in messages] != (["user", "assistant"] * 9)[: len(messages)]:
            raise UsageError("roles must alternate")
        return "|".join(one["content"] for one in messages)

    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    said = {"role": "assistant", "content": "Sprawdzam.", "tool_calls": [call, call]}
    history = template_messages([ASK, said, TOOL, TOOL, ASK])
    written = '{"name": "f", "arguments": {"x": 1}}'
    assert rendered(Template(write), history, {}).split("|") == [  # type: ignore[arg-type]
        ASK["content"],
        f"Sprawdzam.\n{written}\n{written}",
        f"[Result of f]\n7\n\n[Result of f]\n7\n\n{ASK['content']}",
    ]
    alone = template_messages([TOOL, ASK])
    text = rendered(Template(write), alone, {})  # type: ignore[arg-type]
    assert text == f"[Result of a tool]\n7\n\n{ASK['content']}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *[
            (text, {"arguments": text})
            for text in ('{"a": "\\ud800"}', '{"a": NaN}', '{"a": 1e999}')
        ],
        *[(json.dumps(value), {"arguments": value}) for value in ([1, 2], "a", 5, True)],
        ("null", {}),
    ],
)
def test_arguments_that_are_no_object_or_that_no_prompt_holds_are_one_argument(
    text: str, expected: Any
) -> None:
    """Templates such as those of Gemma 4 and Qwen 3.5 refuse anything but an object."""
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": text}}
    read = template_messages([ASK, {"role": "assistant", "tool_calls": [call]}, ASK])
    assert read[1]["tool_calls"][0]["function"]["arguments"] == expected


def test_empty_thoughts_are_none() -> None:
    for thoughts, read in ((["", ""], None), (["", "x"], "x"), (["x", "", "y"], "x\n\ny")):
        parts = [{"type": "thinking", "thinking": thought} for thought in thoughts]
        answer = {"role": "assistant", "content": [*parts, {"type": "text", "text": "a"}]}
        ((_, turn),) = of_messages("", [answer])
        assert turn.get("reasoning_content") == read


@pytest.mark.parametrize("api", ["responses", "messages"])
def test_each_part_that_says_nothing_is_looked_at_a_few_times(api: str) -> None:
    """A body of 8 MB has 300,000 of them."""
    looks = list[object]()

    class Nothing(dict[str, Any]):
        def __len__(self) -> int:
            looks.append(self)
            return 0

    parts, asked = [Nothing() for _ in range(300)], [{"role": "user", "content": "x"}]
    if api == "messages":
        said = list(of_messages("", [{"role": "assistant", "content": parts}, *asked]))
    else:
        turns = [{"role": "assistant", "content": [part]} for part in parts]
        said = list(of_items(None, [*turns, *asked]))
    assert said[-1][1] == asked[0]
    assert len(looks) < 20 * len(parts)
