"""Blocks: nothing that was generated is lost, and parts give what the whole gives."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokalign.conversation.answer_form import TEXT_ONLY, AnswerForm
from tokalign.conversation.blocks import Block, Blocks, Step
from tokalign.conversation.tools import HARMONY, ToolFormat

JSON = ToolFormat("json_tools", "<tool_call>", "</tool_call>")
CODER = ToolFormat("qwen3_coder", "<tool_call>", "</tool_call>")
CHAT = AnswerForm(("<think>", "</think>"), JSON)
XML = AnswerForm(calls=CODER)
PYTHON = AnswerForm(calls=ToolFormat("pythonic", "<|tool_call_start|>", "<|tool_call_end|>"))
GEMMA = AnswerForm(calls=ToolFormat("gemma4", "<|tool_call>", "<tool_call|>"))
CHANNELS = AnswerForm(calls=ToolFormat(HARMONY, "", ""), has_channels=True)
CALL = '<tool_call>\n{"name": "f", "arguments": {"x": "a"}}\n</tool_call>'
XML_CALL = "<tool_call>\n<function=f>\n<parameter=x>\na\n</parameter>\n</function>\n</tool_call>"
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "f",
            "parameters": {
                "type": "object",
                "properties": {"x": {"type": "string"}, "n": {"type": "integer"}},
            },
        },
    }
]


def steps_of(
    form: AnswerForm,
    parts: list[str] | str,
    *,
    cut: bool = False,
    opens_in: Literal["text", "thought"] = "text",
) -> tuple[list[Block], list[Step]]:
    blocks = Blocks(form, tools=TOOLS, opens_in=opens_in)
    steps = [step for part in parts for step in blocks.feed(part)]
    steps += blocks.end(cut=cut)
    return blocks.blocks, steps


def made(form: AnswerForm, text: str, **more: Any) -> list[tuple[str, str]]:
    """Kinds and texts of the blocks; a call that was none is said to be broken."""
    blocks, _ = steps_of(form, text, **more)
    return [("broken" if one.is_broken else one.kind, one.text) for one in blocks]


PIECES = [
    *("<think>", "</think>", "<tool_call>", "</tool_call>", "\n", " ", "Paris", "<", "{", "}"),
    *(
        CALL,
        XML_CALL,
        '{"name": "f", ',
        '"arguments": {"x": ',
        '"a',
        '"',
        "5",
        "<function=f>",
        "<|",
    ),
    *("```json\n", "```", '{"name": "f", "arguments": {"x": "a"}}\n'),
    *("<|tool_call_start|>", "<|tool_call_end|>", "f(x=", "f()", "[", "]", "(", ")", ",", "'a'"),
    *("<|tool_call>", "<tool_call|>", "call:", "f{x:", '<|"|>'),
    *(
        "<parameter=x>",
        "</parameter>",
        "</function>",
        "<|channel|>",
        "analysis",
        "final",
        "<|end|>",
    ),
    *("<|message|>", "<|start|>", "assistant", " to=functions.f", "<|call|>", "\\u00", "Łódź"),
]
TEXTS = st.lists(st.sampled_from(PIECES), max_size=12).map("".join)
FORMS = st.sampled_from([TEXT_ONLY, CHAT, XML, PYTHON, GEMMA, CHANNELS, CHAT.without_calls()])


@given(FORMS, TEXTS, st.lists(st.integers(0, 200)), st.booleans())
def test_parts_give_what_the_whole_gives(
    form: AnswerForm, text: str, cuts: list[int], cut: bool
) -> None:
    ends = sorted({0, len(text), *(one for one in cuts if one < len(text))})
    parts = [text[a:b] for a, b in pairwise(ends)]
    whole = made(form, text, cut=cut)
    for given_parts in (parts, list(text), [text]):
        blocks, steps = steps_of(form, given_parts, cut=cut)
        found = [("broken" if one.is_broken else one.kind, one.text) for one in blocks]
        assert found == whole
        # What the steps tell is what there is: each block begins, grows and ends once.
        told: list[str] = []
        is_open = False
        for step in steps:
            if step.what == "begin":
                assert not is_open
                assert step.at == len(told)
                told.append("")
            elif step.what == "grow":
                assert step.text
                told[step.at] += step.text
            is_open = step.what != "end"
        assert not is_open
        assert told == [one.text for one in blocks]
        assert sum(step.what == "end" for step in steps) == len(blocks)


@given(FORMS, TEXTS)
def test_nothing_is_lost(form: AnswerForm, text: str) -> None:
    """All that is not white space or a mark is in some block, in its order."""
    told = "".join(one.text for one in steps_of(form, text)[0] if not one.is_broken)
    if form == TEXT_ONLY:
        assert told == text
    for word in ("Paris", "Łódź"):
        if form != CHANNELS:  # where a header may have any name in it
            assert told.count(word) >= text.count(word) - text.count("</parameter>")


@given(TEXTS)
def test_calls_are_json_unless_they_were_cut_off(text: str) -> None:
    for form in (CHAT, XML, PYTHON, GEMMA, CHANNELS):
        for block in steps_of(form, text)[0]:
            if block.kind == "call" and not block.is_broken:
                assert block.name
                assert isinstance(json.loads(block.text), dict)


LIKE_CALLS = [
    'It writes <tool_call>{"call": "f"}</tool_call> around a call.',
    "The tag <tool_call> opens a call; then comes more text.",
    '<tool_call>{"name": "f", "arguments": {broken}}</tool_call>\n',
    '<tool_call>{"name": "f", "arguments": [1]}</tool_call>',
    '<tool_call>{"name": 5, "arguments": {}}</tool_call>',
    "<tool_call>[1]</tool_call>  <tool_call>",
    *(f"a <tool_call>{call}</tool_call>" for call in ('"f"', "null", '{"arguments": {}}', "{")),
    "a <tool_ca",
    *(
        f'{{"id": {number}, "name": "f", "arguments": {{}}}}'
        for number in ("0012345", "1+" * 3000, "+" * 100_000, "...", "1j")
    ),
    f'<tool_call>{{"name": "f", "arguments": {"5" * 5000}}}</tool_call>',
    '{"type": "function", "function": {"name": "f", "description": "Adds.", "parameters": {}}}',
]


@pytest.mark.parametrize("text", [*LIKE_CALLS, CALL, f"Hm.\n{CALL}\n", "x </think>", "\n\n x \n"])
def test_without_tools_a_text_is_itself(text: str) -> None:
    for form in (TEXT_ONLY, CHAT.without_calls()):
        assert made(form, text) == [("text", text)]


@pytest.mark.parametrize("text", LIKE_CALLS)
def test_what_is_no_call_is_text(text: str) -> None:
    assert made(CHAT, text) == [("text", text)]


def test_a_call_that_breaks_after_it_has_begun_is_text_too() -> None:
    text = '<tool_call>{"name": "f", "arguments": {"x": "a" "b"}}</tool_call> x'
    assert made(CHAT, text) == [("broken", '{"x": "a"'), ("text", text)]
    again = '<tool_call>{"name": "f", "arguments": {"x": 1'
    assert made(CHAT, f"{CALL}\n{again}") == [
        ("call", '{"x": "a"}'),
        ("broken", '{"x": 1'),
        ("text", again),
    ]


@pytest.mark.parametrize("mark", ["", "<tool_call>"])
def test_an_object_after_a_call_in_json_is_text_without_the_call_s_brace(mark: str) -> None:
    call, told = '{"name": "f", "arguments": {"x": "a"}}', '{"response": 20}'
    assert made(CHAT, f"{mark}{call}\n{told}") == [("call", '{"x": "a"}'), ("text", told)]


def test_in_a_line_or_a_thought_a_call_without_the_mark_is_text() -> None:
    call = "<function=f>\n<parameter=x>\na\n</parameter>\n</function>"
    for text in (f"Write `{call}`.", f"It is: {call}"):
        assert made(XML, text) == [("text", text)]
    thinking = replace(XML, thought=CHAT.thought)
    assert made(thinking, f"<think>I may:\n{call}</think>To.") == [
        ("thought", f"I may:\n{call}"),
        ("text", "To."),
    ]
    assert made(thinking, f"<think>Hm.</think>{call}") == [
        ("thought", "Hm."),
        ("call", '{"x": "a"}'),
    ]


@pytest.mark.parametrize(("form", "call"), [(CHAT, CALL), (XML, XML_CALL)])
def test_a_call_without_its_end_is_one(form: AnswerForm, call: str) -> None:
    bare = call.removesuffix("\n</tool_call>")
    for text in (bare, f"{bare}\n", f"{bare}\n</tool_ca", call, f"{call}\n"):
        assert made(form, text) == [("call", '{"x": "a"}')]


@pytest.mark.parametrize(("form", "call"), [(CHAT, CALL), (XML, XML_CALL)])
def test_a_call_that_was_cut_off_keeps_what_there_is(form: AnswerForm, call: str) -> None:
    text = call[: call.index("a\n" if form is XML else 'a"') + 1]
    assert made(form, text, cut=True) == [("call", '{"x": "a')]
    assert made(form, text) == [("broken", '{"x": "a'), ("text", text)]


def test_space_beside_marks_is_no_part_of_a_text() -> None:
    assert made(CHAT, f"<think>\nHm.\n</think>\n\nTo:\n\n{CALL}\n\n{CALL}\n Koniec.\n") == [
        ("thought", "Hm."),
        ("text", "To:"),
        ("call", '{"x": "a"}'),
        ("call", '{"x": "a"}'),
        ("text", "Koniec.\n"),
    ]
    assert made(CHAT, " a\n") == [("text", " a\n")]
    assert made(CHAT, "<think>\n\n</think>\n\n") == []


def test_thoughts_begin_where_no_text_has_begun() -> None:
    text = "Some models write <think> before a thought."
    assert made(CHAT, text) == [("text", text)]
    assert made(CHAT, "Hm.</think>To.", opens_in="thought") == [("thought", "Hm."), ("text", "To.")]
    assert made(CHAT, "Hm. To", opens_in="thought") == [("thought", "Hm. To")]
    assert made(CHAT, "\n<think>Hm.") == [("thought", "Hm.")]
    assert made(CHAT, f"<think>Hm.{CALL}To.") == [
        ("thought", "Hm."),
        ("call", '{"x": "a"}'),
        ("text", "To."),
    ]
    blocks = Blocks(CHAT, opens_in="thought")
    kinds = []
    for letter in "ab</think>cd":
        kinds.append(blocks.kind)
        list(blocks.feed(letter))
    assert kinds == ["thought"] * 10 + ["text"] * 2


@pytest.mark.parametrize("opens_in", ["text", "thought"])
def test_marks_of_thoughts_that_change_nothing_are_dropped(
    opens_in: Literal["text", "thought"],
) -> None:
    thought, text = ("thought", "Hm."), ("text", "To.")
    for written in ("<think>Hm.</think>To.", "<think>\nHm.\n</think>\n</think>\n\nTo."):
        assert made(CHAT, written, opens_in=opens_in) == [thought, text]
    assert made(CHAT, "</think>To.", opens_in=opens_in) == [text]
    assert made(CHAT, f"<think>Hm.{CALL}\n</think>To.", opens_in=opens_in)[::2] == [thought, text]
    inside = "<think>Hm. <think> x</think>To </think>."
    assert made(CHAT, inside, opens_in=opens_in) == [
        ("thought", "Hm. <think> x"),
        ("text", "To </think>."),
    ]


def test_marks_that_no_text_has_are_marks_anywhere() -> None:
    """Gemma 4 may end an answer with an empty thought, or with half of one."""
    gemma = AnswerForm(("<|channel>thought", "<channel|>"))
    empty = "<|channel>thought\n<channel|>"
    for written in ("To.", f"{empty}To.", f"To.{empty}", "To.<channel|>", f"To.{empty}<channel|>"):
        assert made(gemma, written) == [("text", "To.")]
    assert made(gemma, "To.<|channel>thought\nHm.<channel|>Tu.") == [
        ("text", "To."),
        ("thought", "Hm."),
        ("text", "Tu."),
    ]


@pytest.mark.parametrize(("form", "long"), [(CHAT, CALL), (XML, XML_CALL)])
def test_the_arguments_of_a_call_are_told_while_they_are_written(
    form: AnswerForm, long: str
) -> None:
    blocks = Blocks(form, tools=TOOLS)
    text = long.replace("a\n", "a" * 99 + "\n").replace('"a"', '"' + "a" * 99 + '"')
    seen = [[step.what for step in blocks.feed(part)] for part in text]
    assert sum("grow" in one for one in seen) >= 99


def test_channels_are_thoughts_text_and_calls() -> None:
    text = (
        "<|channel|>analysis<|message|>The user asks.<|end|>"
        "<|start|>assistant<|channel|>commentary<|message|>I look.<|end|>"
        "<|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>"
        '{"x":"a"}<|call|>'
    )
    assert made(CHANNELS, text) == [
        ("thought", "The user asks."),
        ("text", "I look."),
        ("call", '{"x": "a"}'),
    ]
    assert made(CHANNELS.without_calls(), text)[1:] == [("text", 'I look.\n\n{"x":"a"}')]
    call = ' to=functions.f<|channel|>commentary json<|message|>{"x": "a"}'
    assert made(CHANNELS, call) == [("call", '{"x": "a"}')]
    final = "<|channel|>final<|message|>Paris.<|return|>"
    assert made(CHANNELS, final) == [("text", "Paris.")]
    assert made(CHANNELS, " and Rome.<|return|>") == [("text", " and Rome.")], "one goes on"
    assert made(CHANNELS, f"<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant{final}") == [
        ("thought", "Hm."),
        ("text", "Paris."),
    ]
    assert made(CHANNELS, "<|channel|>analysis<|message|>Hm") == [("thought", "Hm")]
    assert made(CHANNELS, "<|channel|>ana", cut=True) == []
    assert made(CHANNELS, "No header <b>.") == [("text", "No header <b>.")]


def test_messages_of_muse_are_told_by_whom_they_are_to() -> None:
    muse = ToolFormat("muse_spark", "<atem:function_calls>", "</atem:function_calls>")
    call = '<atem:invoke name="f"><atem:parameter name="x">a</atem:parameter></atem:invoke>'
    text = (
        " to=self<|message|>Hm.<|eom|>"
        f"<|start|>assistant to=f<|message|>{muse.begin}{call}{muse.end}<|eom|>"
        "<|start|>assistant to=user<|message|>Paris.<|eot|>"
    )
    assert made(AnswerForm(calls=muse, has_channels=True), text) == [
        ("thought", "Hm."),
        ("call", '{"x": "a"}'),
        ("text", "Paris."),
    ]


def test_marks_that_mean_nothing_are_dropped() -> None:
    form = AnswerForm(dropped=("<|open|>response<|sep|>", "<|close|>response<|sep|>"))
    text = "<|open|>response<|sep|>Paris.<|close|>response<|sep|>"
    for opens_in in ("text", "thought"):  # a model may answer where the prompt lets it think
        assert made(form, text, opens_in=opens_in) == [("text", "Paris.")]


def test_marks_of_thoughts_that_mlx_lm_does_not_look_for() -> None:
    tokenizer: Any = SimpleNamespace(
        tool_parser=None,
        chat_template="",
        get_added_vocab=lambda: {"[THINK]": 1, "[/THINK]": 2},
        has_thinking=False,
        think_start=None,
        think_end=None,
        structural_markers=(),
        response_initial_state=None,
    )
    form = AnswerForm.of(tokenizer)
    assert made(form, "[THINK]Hm.[/THINK]To.") == [("thought", "Hm."), ("text", "To.")]
    vocabulary: Any = SimpleNamespace(special_ids={"[THINK]": 1, "[/THINK]": 2, "[INST]": 3})
    assert form.silent_ids(vocabulary) == {3}


def test_only_the_spelling_of_a_forms_own_marks_is_a_part_of_an_answer() -> None:
    ids = {"<|start|>": 1, "[TOOL_CALLS]": 2, "[ARGS]": 3, "<|end|>": 4}
    mistral = AnswerForm(calls=ToolFormat("mistral", "[TOOL_CALLS]", ""))
    vocabulary: Any = SimpleNamespace(special_ids=ids)
    assert mistral.silent_ids(vocabulary) == {1, 4}
    assert mistral.without_calls().silent_ids(vocabulary) == {1, 2, 3, 4}
    assert CHANNELS.silent_ids(vocabulary) == {2, 3}
    assert mistral.silent_ids(vocabulary, ["x", "<|end|>\n"]) == {1}


BARE = '{"name": "f", "arguments": {"x": "a"}}'


@pytest.mark.parametrize(
    "text",
    [
        BARE,
        f"```json\n{BARE}\n```",
        f"```\n{BARE}\n```\n",
        BARE.replace("arguments", "parameters"),
        '{"type": "function", "name": "f", "parameters": {"x": "a"}}',
        '{"arguments": {"x": "a"}, "name": "f"}',
        f"<think>Hm.</think>\n\n{BARE}",
        f"[\n  {BARE}\n]",
    ],
)
def test_json_that_names_a_tool_is_a_call(text: str) -> None:
    for form in (CHAT, XML):
        assert ("call", '{"x": "a"}') in made(form, text)
    calls = [block for block in steps_of(CHAT, text)[0] if block.kind == "call"]
    assert [call.name for call in calls] == ["f"]
    assert all(kind == "text" for kind, _ in made(TEXT_ONLY, text))


def test_a_call_may_follow_a_sentence_and_others() -> None:
    found = made(CHAT, f"I look it up:\n\n```json\n{BARE}\n```\nand then\n{BARE}\n{BARE}")
    kinds = ["text", "call", "text", "call", "call"]
    assert [kind for kind, _ in found] == kinds
    assert made(CHAT, f"{BARE}\n</tool_call>") == [("call", '{"x": "a"}')]
    after_notes = made(CHAT, "".join(f"[{n}] a\n" for n in range(30)) + BARE)
    assert [kind for kind, _ in after_notes] == ["text", "call"]
    listed = made(CHAT, f"[\n  {BARE},\n  {BARE}\n]\nand then")
    assert [kind for kind, _ in listed] == ["call", "call", "text"]


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "g", "arguments": {"x": "a"}}',
        '{"name": "Anna", "age": 5}',
        '```json\n{"city": "Łódź"}\n```',
        f"```python\nx = {BARE}\n```",
        f"Write {BARE} for a call.",
        '{"name": "f", "arguments": [1]}',
        '{"name": "f", "argum',
        "{" * 40,
        "[1] a\n[2](b)\n[[3]]",
        "```\n" * 20 + "x",
    ],
)
def test_other_json_stays_text_and_streams(text: str) -> None:
    assert [one for one in made(CHAT, text) if one[0] != "broken"] == [("text", text.strip())]
    blocks = Blocks(CHAT, tools=TOOLS)
    steps = [step for letter in text[:-1] for step in blocks.feed(letter)]
    if '"name": "f"' not in text:  # then it may become a call until its end
        told = "".join(step.text for step in steps)
        assert len(text) - len(told) < 30
