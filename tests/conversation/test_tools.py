"""Tools: what a grammar of calls accepts is read back as the value that was meant."""

from __future__ import annotations

import json
import re
from enum import Enum
from functools import cache
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal

import grammars
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from places import DEMO
from pydantic import BaseModel, Field, create_model
from served import echo_folder

from tokalign.conversation import call_grammars
from tokalign.conversation.answer_form import AnswerForm
from tokalign.conversation.blocks import Blocks
from tokalign.conversation.call_grammars import calls_grammar
from tokalign.conversation.tools import ANY_TOOL, HARMONY, ToolFormat, call_id, with_call_ids
from tokalign.errors import UsageError
from tokalign.runtime.grammar import Grammar
from tokalign.runtime.grammar.parameters import Parameter
from tokalign.tokenizer.self_check import read_tokenizer
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import TargetId

Tool = dict[str, Any]


class Unit(Enum):
    C = "C"
    F = "F"


class Place(BaseModel):
    city: str
    numbers: list[int] = []
    inside: Place | None = None


def tool(name: str, parameters: dict[str, Any]) -> Tool:
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


@cache
def tool_of(kind: Any) -> Tool:
    """A tool with one parameter, with the schema that pydantic makes of a type."""
    return tool("f", create_model("f", x=(kind, ...)).model_json_schema())


class Marked:
    """mlx-lm's tokenizer of a template that it has no parser for."""

    tool_parser = None

    def __init__(self, template: str | None, *tokens: str) -> None:
        self.chat_template, self._tokens = template, dict.fromkeys(tokens, 1)

    def get_added_vocab(self) -> dict[str, int]:
        return self._tokens


BEGIN = "<｜tool▁calls▁begin｜>"
OURS = {
    "deepseek_v3": Marked(BEGIN + "\n```json\n"),
    "deepseek_v31": Marked(None, BEGIN),
    "deepseek_v32": Marked(None, BEGIN, "｜DSML｜"),
    "seed_oss": Marked("<seed:tool_call>"),
}
"""Formats that mlx-lm has no parser for."""


def form_of(name: str) -> ToolFormat:
    if name in OURS:
        form = ToolFormat.of(OURS[name])
        assert form is not None
        assert form.parser == name
        return form
    module = import_module(f"mlx_lm.tool_parsers.{name}")
    return ToolFormat(name, module.tool_call_start, module.tool_call_end)


@cache
def target() -> Tokenizer[TargetId]:
    return read_tokenizer(DEMO / "target")


def accepts(grammar: Grammar, text: str, tokenizer: Tokenizer[TargetId] | None = None) -> bool:
    """Whether a text matches a grammar from its beginning to its end."""
    tokenizer = tokenizer or target()
    stops, marks = tokenizer.vocabulary.roles.eos, tokenizer.vocabulary.special_ids
    ids = list[TargetId]()
    for part in re.split(f"({'|'.join(map(re.escape, marks))})", text):
        ids += [marks[part]] if part in marks else tokenizer.encoder.encode(part.encode())
    return grammars.accepts(grammar, tokenizer, stops, ids)


def read(form: ToolFormat, text: str, tools: list[Tool]) -> list[tuple[str, Any]]:
    """The calls in a text that comes letter by letter, and None for a text beside them."""
    blocks = Blocks(AnswerForm(calls=form), tools=tools)
    for letter in text:
        list(blocks.feed(letter))
    list(blocks.end())
    return [
        (one.name, json.loads(one.text)) if one.kind == "call" else ("", one.text)
        for one in blocks.blocks
    ]


# -- values ----------------------------------------------------------------------------------------


def as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def plain(value: Any) -> str:
    return value if isinstance(value, str) else as_json(value)


TAGGED = {
    "qwen3_coder": "\n<function=f>\n<parameter=x>\n{}\n</parameter>\n</function>\n",
    "seed_oss": "\n<function=f>\n<parameter=x>{}</parameter>\n</function>\n",
    "glm47": "f\n<arg_key>x</arg_key>\n<arg_value>{}</arg_value>\n",
    "laguna": "f<arg_key>x</arg_key><arg_value>{}</arg_value>",
    "longcat": "f\n<longcat_arg_key>x</longcat_arg_key>\n<longcat_arg_value>{}"
    "</longcat_arg_value>\n",
    "minimax_m2": '\n<invoke name="f">\n<parameter name="x">{}</parameter>\n</invoke>\n',
    "muse_spark": '\n<atem:invoke name="f">\n<atem:parameter name="x">{}</atem:parameter>\n'
    "</atem:invoke>\n",
    "deepseek_v32": '\n<｜DSML｜invoke name="f">\n<｜DSML｜parameter name="x" string="true">{}'
    "</｜DSML｜parameter>\n</｜DSML｜invoke>\n",
}
"""A call in each format whose arguments are texts between tags."""
CALL, SEP, END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
AS_JSON = {
    "deepseek_v3": f"{CALL}function{SEP}f\n```json\n{{}}\n```{END}",
    "deepseek_v31": f"{CALL}f{SEP}{{}}{END}",
    "json_tools": '\n{{"name": "f", "arguments": {}}}\n',
    "glm47": '\n{{"name": "f", "arguments": {}}}\n',
    "longcat": '\n{{"name": "f", "arguments": {}}}\n',
    "mistral": '[{{"name": "f", "arguments": {}}}]',
    "kimi_k2": "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}<|tool_call_end|>",
}
"""A call in each format whose arguments are an object in JSON."""
BY_NAME = {"pythonic": "[f(x={})]"}
"""A call in each format that has the names of arguments, and their values in JSON."""

TEXT = 'Łódź, "5"\n  </param>\n\n'
VALUES: list[tuple[Any, list[Any]]] = [
    (str, ["Paris", "5", "null", "", TEXT, '"Paris"', "{}"]),
    (int, [5, -3]),
    (float, [2.5, 7]),
    (bool, [True, False]),
    (str | None, ["Paris", None, TEXT]),
    (int | None, [5, None]),
    (int | str, [5, "Paris"]),
    (bool | float | None, [True, 2.5, None]),
    (Literal["C", "F"], ["C"]),
    (Literal[1, "a", None], [1, "a", None]),
    (Unit, ["F"]),
    (Unit | None, ["F", None]),
    (Place, [{"city": "Łódź", "numbers": [1, 2], "inside": {"city": "x"}}]),
    (Place | None, [{"city": "Łódź"}, None]),
    (Place | str, [{"city": "Łódź"}, "Łódź"]),
    (list[str], [[], ["a", "b c"]]),
    (list[str] | str, [["a"], "a"]),
    (dict[str, int], [{"a": 1}]),
    (list[Place] | None, [[{"city": "a"}], None]),
    (Annotated[str, Field(max_length=3)], ["abc"]),
    (Annotated[int, Field(ge=1, le=9)] | str, [5, "abc"]),
    (Any, ["Paris", 5, True, None, {"a": [1]}]),
]


@cache
def grammar_of(name: str, kind: Any) -> Grammar:
    return calls_grammar(form_of(name), target().vocabulary, [tool_of(kind)], ANY_TOOL)


@pytest.mark.parametrize("written_as", ["text", "json", "value"])
@pytest.mark.parametrize("name", sorted({*TAGGED, *AS_JSON, *BY_NAME}))
def test_every_value_of_every_schema_is_accepted_and_read_as_it_was_meant(
    name: str, written_as: str
) -> None:
    tables = {"text": TAGGED, "json": AS_JSON, "value": BY_NAME}
    form, call = form_of(name), tables[written_as].get(name)
    if call is None:
        return
    for kind, values in VALUES:
        for value in values:
            written = {"text": plain(value), "json": as_json({"x": value})}
            inside = written.get(written_as, as_json(value))
            typed = call if isinstance(value, str) else call.replace('"true"', '"false"')
            text = form.begin + typed.format(inside) + form.end
            assert accepts(grammar_of(name, kind), text), (kind, value)
            ((called, arguments),) = read(form, text, [tool_of(kind)])
            assert (called, arguments) == ("f", {"x": value}), kind
            assert type(arguments["x"]) is type(value), kind


@pytest.mark.parametrize("kind", [kind for kind, _ in VALUES], ids=str)
def test_whatever_a_grammar_accepts_is_read_as_something_valid(kind: Any) -> None:
    asked = tool_of(kind)
    validator = Draft202012Validator(asked["function"]["parameters"])
    tried = [
        *("Paris", '"Paris"', "C", '"C"', "c", "", " ", "5", "5.0", "-3", "99", "1e3", "null"),
        *("None", "true", "True", "[]", '["a"]', "[1]", "{}", '{"city": "x"}', '{"city": 1}'),
        *("abc/", "abcd", "\n\n", "nan", "{'a': 1}", '{"a": 1}', "</parameter>"),
    ]
    for name, value in product(("qwen3_coder", "glm47", "deepseek_v32"), tried):
        form = form_of(name)
        for call in (TAGGED[name], TAGGED[name].replace('"true"', '"false"')):
            text = form.begin + call.format(value) + form.end
            if accepts(grammar_of(name, kind), text):
                ((_, arguments),) = read(form, text, [asked])
                validator.validate(arguments)


def test_marks_may_be_special_tokens_or_texts(tmp_path: Path) -> None:
    """A text may have in it what a mark begins with."""
    marks = ("｜DSML｜", "<arg_value>", "</arg_value>")
    marked: Tokenizer[TargetId] = read_tokenizer(echo_folder(tmp_path / "m", marks=marks))
    for name in ("deepseek_v32", "glm47"):
        form = form_of(name)
        for value in ("Paris", "</", "<b></b></", "a\n<"):
            text = form.begin + TAGGED[name].format(value) + form.end
            for tokenizer in (target(), marked):
                grammar = calls_grammar(form, tokenizer.vocabulary, [tool_of(str)], ANY_TOOL)
                assert accepts(grammar, text, tokenizer), (name, value)
            assert read(form, text, [tool_of(str)]) == [("f", {"x": value})]


def test_quotes_of_json_are_neither_forced_nor_taken_where_a_text_may_stand() -> None:
    form = form_of("qwen3_coder")
    for kind in (str | None, Any, int | str):
        for value, fits in (("Paris", True), ('"Paris"', False)):
            text = form.begin + TAGGED["qwen3_coder"].format(value) + form.end
            assert accepts(grammar_of("qwen3_coder", kind), text) is fits


@pytest.mark.parametrize(
    ("schema", "fits", "no", "named"),
    [
        ({"maxLength": 0}, [""], ["a"], []),
        ({"pattern": "^a$"}, ["a", "x"], [], ["pattern"]),
        ({"format": "date"}, ["x"], [], ["format"]),
        ({"maxLength": 9000}, ["a"], [], ["maxLength"]),
    ],
)
def test_texts_between_tags_follow_their_schema_or_that_is_said(
    schema: dict[str, Any], fits: list[str], no: list[str], named: list[str]
) -> None:
    asked = tool("f", {"properties": {"x": {"type": "string", **schema}}, "required": ["x"]})
    for name in ("qwen3_coder", "glm47"):
        form = form_of(name)
        grammar = calls_grammar(form, target().vocabulary, [asked], ANY_TOOL)
        for value in (*fits, *no):
            text = form.begin + TAGGED[name].format(value) + form.end
            assert accepts(grammar, text) is (value in fits), value
        assert sorted(grammar.ignored) == [f"tools.f.properties.x.{keyword}" for keyword in named]


def test_texts_beside_lists_follow_nothing_and_that_is_said() -> None:
    schema = {"anyOf": [{"type": "array"}, {"type": "string", "maxLength": 1}]}
    asked = [tool("f", {"properties": {"x": schema}})]
    for name, named in (("qwen3_coder", ("tools.f.properties.x.maxLength",)), ("kimi_k2", ())):
        grammar = calls_grammar(form_of(name), target().vocabulary, asked, ANY_TOOL)
        assert grammar.ignored == named


def test_schemas_that_no_library_makes() -> None:
    parameters = {
        "type": "object",
        "$defs": {"A": {"$ref": "#/$defs/B"}, "B": {"enum": ["a", 2]}, "L": {"$ref": "#/$defs/L"}},
        "properties": {
            "chain": {"$ref": "#/$defs/A"},
            "loop": {"$ref": "#/$defs/L"},
            "nowhere": {"$ref": "https://example.org/x"},
            "same": {"$ref": "#/properties/chain"},
            "kinds": {"type": ["integer", "null"]},
            "unknown": {"type": "dictionary"},
            "untyped": {"minimum": 3},
            "all": {"allOf": [{"$ref": "#/$defs/B"}], "default": "a"},
            "none": True,
        },
    }
    asked = tool("f", parameters)
    form = form_of("qwen3_coder")
    grammar = calls_grammar(form, target().vocabulary, [asked], ANY_TOOL)
    meant = {"chain": 2, "loop": "x", "nowhere": "x", "same": "a", "kinds": None, "unknown": "x"}
    meant |= {"untyped": 4, "all": "a", "none": [1]}
    texts = [f"<parameter={key}>\n{plain(value)}\n</parameter>\n" for key, value in meant.items()]
    text = f"{form.begin}\n<function=f>\n{''.join(texts)}</function>\n{form.end}"
    assert accepts(grammar, text)
    assert read(form, text, [asked]) == [("f", meant)]


X = {"properties": {"x": {"type": "integer"}}, "required": ["x"]}
ROOTS: list[Any] = [
    *({}, X, {**X, "type": "array"}, {**X, "type": ["object", "null"]}),
    *({"$defs": {"A": X}, "$ref": "#/$defs/A"}, {"anyOf": [X, {"type": "object"}]}),
]


@pytest.mark.parametrize("parameters", ROOTS)
@pytest.mark.parametrize("name", AS_JSON)
def test_arguments_are_an_object_whatever_a_schema_says(name: str, parameters: Any) -> None:
    form, asked = form_of(name), tool("f", parameters)
    grammar = calls_grammar(form, target().vocabulary, [asked], ANY_TOOL)
    call = AS_JSON[name]
    for value, fits in (('{"x": 1}', True), ("1", False), ("[1]", False), ("null", False)):
        text = form.begin + call.format(value) + form.end
        assert accepts(grammar, text) is fits
    assert read(form, form.begin + call.format('{"x": 1}') + form.end, [asked]) == [("f", {"x": 1})]


@pytest.mark.parametrize("more", [{}, {"additionalProperties": True}, {"required": ["x", "y"]}])
@pytest.mark.parametrize("name", AS_JSON)
def test_arguments_have_no_names_but_those_of_properties(name: str, more: dict[str, Any]) -> None:
    """Unless the schema says so: models fill a tool of no arguments with what they make up."""
    form, call = form_of(name), AS_JSON[name]

    def takes(parameters: Any, arguments: str) -> bool:
        asked = [tool("f", parameters)]
        grammar = calls_grammar(form, target().vocabulary, asked, ANY_TOOL)
        return accepts(grammar, form.begin + call.format(arguments) + form.end)

    assert takes({**X, **more}, '{"x": 1, "y": 2}') is bool(more)
    if not more:
        for nothing in (None, True, {"type": "object", "properties": {}}):
            assert takes(nothing, "{}")
            assert not takes(nothing, '{"y": 2}')


@settings(max_examples=25)
@given(st.text(max_size=20), st.text(max_size=20))
def test_a_text_arrives_exactly_as_it_was_written(text: str, other: str) -> None:
    for name, call in TAGGED.items():
        form = form_of(name)
        written = form.begin + call.format(text) + form.end
        assert read(form, written, [tool_of(str)]) == [("f", {"x": text})]
    gemma = form_of("gemma4")
    written = f'{gemma.begin}call:f{{x:<|"|>{text}<|"|>,y:[<|"|>{other}<|"|>,1]}}{gemma.end}'
    assert read(gemma, written, []) == [("f", {"x": text, "y": [other, 1]})]
    for name, call in AS_JSON.items():
        form = form_of(name)
        written = form.begin + call.format(as_json({text: other})) + form.end
        assert read(form, written, []) == [("f", {text: other})]


@given(st.text())
def test_a_parameter_has_a_value_whatever_is_written(text: str) -> None:
    for kind, _ in VALUES:
        schema = tool_of(kind)["function"]["parameters"]
        value = Parameter.of(schema["properties"]["x"], schema).value(text)
        json.dumps(value, allow_nan=False)


# -- formats ---------------------------------------------------------------------------------------

SEVERAL = {
    "deepseek_v3": [
        f'{CALL}function{SEP}f\n```json\n{{"x": 1}}\n```{END}\n'
        f"{CALL}function{SEP}g\n```json\n{{}}\n```{END}"
    ],
    "deepseek_v31": [f'{CALL}f{SEP}{{"x": 1}}{END}{CALL}g{SEP}{{}}{END}'],
    "deepseek_v32": [
        '<｜DSML｜invoke name="f">\n<｜DSML｜parameter name="x" string="false">1'
        '</｜DSML｜parameter>\n</｜DSML｜invoke>\n<｜DSML｜invoke name="g">\n</｜DSML｜invoke>'
    ],
    "json_tools": [
        '{"name": "f", "arguments": {"x": 1}}\n{"arguments": {}, "name": "g"}',
        '[{"name": "f", "parameters": {"x": 1}}, {"name": "g", "arguments": ""}]',
        '{"type": "function", "function": {"name": "f", "arguments": {"x": 1}}}'
        '{"type": "function", "function": "g"}',
        '[{"tool_call_id": "0", "tool_name": "f", "parameters": {"x": 1}}, {"g": {}}]',
        '[{"f": {"x": 1}, "g": {}}]',
    ],
    "glm47": ["f\n<arg_key>x</arg_key>\n<arg_value>1</arg_value>\n</tool_call>\n<tool_call>g"],
    "longcat": ['{"name": "f", "arguments": {"x": 1}}</longcat_tool_call><longcat_tool_call>g'],
    "mistral": [
        'f[ARGS]{"x": 1}[TOOL_CALLS]g[CALL_ID]a12345678[ARGS]{}',
        'f{"x": 1}[TOOL_CALLS]g{}',
        'f[ARGS]{"x": 1}g[ARGS]{}',
        '[{"name": "f", "arguments": {"x":1}, "id": "a12345678"}, '
        '{"name": "g", "arguments": "{}"}]',
        '{"name": "f", "arguments": {"x": 1}}[TOOL_CALLS]{"name": "g", "arguments": {}}',
    ],
    "kimi_k2": [
        '<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"x": 1}<|tool_call_end|>'
        "<|tool_call_begin|>functions.g:1<|tool_call_argument_begin|>{}<|tool_call_end|>",
        '<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"x": 1}'
        "<|tool_call_begin|>functions.g:1<|tool_call_argument_begin|>{}",
    ],
    "minimax_m2": [
        '\n<invoke name="f">\n<parameter name="x">1</parameter>\n</invoke>\n'
        '<invoke name="g">\n</invoke>\n'
    ],
    "qwen3_coder": [
        "\n<function=f>\n<parameter=x>\n1\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n"
        "<function=g>\n</function>\n",
        "<function=f\n<parameter=x\n1\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n"
        "<function=g\n</parameter>\n</function>\n",
    ],
    "seed_oss": [
        "<function=f>\n<parameter=x>1</parameter>\n</function>\n<function=g>\n</function>\n"
    ],
    "gemma4": [
        "call:f{x:1}call:g{}",
        ":f{x:1}:g{}",
        ":call:f{x:1}:call:g{}",
        "call:f(x=1)call:g()",
    ],
    "function_gemma": ["call:f{x:1}<end_function_call><start_function_call>call:g{}"],
    "pythonic": [
        "[f(x=1), g()]",
        "\nf(x=1)\ng()\n",
        '[{"name": "f", "arguments": {"x": 1}}, {"name": "g", "arguments": {}}]',
        '[\n  {"name": "f", "arguments": {"x": 1}},\n  {"name": "g", "arguments": {}}\n]',
        '{"name": "f", "arguments": {"x": 1}}{"name": "g", "arguments": {}}',
    ],
    "muse_spark": [
        '<atem:invoke name="f"><atem:parameter name="x">1</atem:parameter></atem:invoke>'
        '<atem:invoke name="g"></atem:invoke>'
    ],
    "minicpm5": ['"f"><param name="x">1</param></function><function name="g">'],
    "kimi_k3": [
        '<|open|>call tool="f" index="1"<|sep|><|open|>argument key="x" type="integer"<|sep|>1'
        "<|close|>argument<|sep|><|close|>call<|sep|>"
        '<|open|>call tool="g" index="2"<|sep|><|close|>call<|sep|>'
    ],
}


@pytest.mark.parametrize("name", SEVERAL)
def test_every_format_is_read(name: str) -> None:
    asked = [tool_of(int), tool("g", {})]
    for text in SEVERAL[name]:
        form = form_of(name)
        calls = [("f", {"x": 1}), ("g", {})]
        assert read(form, f"{form.begin}{text}{form.end}", asked) == calls
        # The end of a call in Mistral's is that of its JSON.
        for after in [""] if form.end else ["[x] ", "\nBoth say x."]:
            read_back = read(form, f"{form.begin}{text}{form.end}{after}", asked)
            assert read_back == [*calls, *[("", after.lstrip())] * bool(after)]


@pytest.mark.parametrize("name", [name for name in SEVERAL if form_of(name).opening])
def test_some_models_leave_out_the_mark_that_opens_calls(name: str) -> None:
    asked = [tool_of(int), tool("g", {})]
    form, calls = form_of(name), [("f", {"x": 1}), ("g", {})]
    for text in SEVERAL[name]:
        bare = text.strip().replace(f"{form.end}\n{form.begin}", "")
        if not bare.startswith(form.opening):
            continue
        for end in (form.end, f"\n{form.end}", ""):
            assert read(form, bare + end, asked) == calls
        assert read(form, f"I look.\n{bare}{form.end} Done.", asked) == [
            ("", "I look."),
            *calls,
            ("", "Done."),
        ]
        others = [tool("other", {})]
        assert "".join(text for _, text in read(form, bare, others)) == bare
        assert read(form, bare, []) == [("", bare)]


@pytest.mark.parametrize("value", ["'a) b, c'", '"a) b, c"', '<|"|>a) b, c<|"|>'])
def test_gemma_s_round_brackets_hold_texts_in_quotes(value: str) -> None:
    form = form_of("gemma4")
    for begin in (form.begin, ""):
        calls = read(form, f"{begin}call:f(x={value}){form.end}", [tool_of(str)])
        assert calls == [("f", {"x": "a) b, c"})]
    prose = "call:f(x) gives what you ask for"
    assert read(form, prose, [tool_of(str)]) == [("", prose)]


def test_deepseeks_marks_are_those_of_the_template() -> None:
    form = ToolFormat.of(Marked("{{ '<' + dsml + 'tool_calls>' }}", "｜DSML｜"))
    assert form == ("deepseek_v32", "<｜DSML｜tool_calls>", "</｜DSML｜tool_calls>")
    assert ToolFormat.of(Marked("<｜DSML｜tool_calls>")) == form


def test_a_text_by_its_mark_is_one_only_where_the_schema_has_texts() -> None:
    form = form_of("deepseek_v32")
    text = form.begin + TAGGED["deepseek_v32"].format(5) + form.end
    for kind, value in ((int, 5), (str, "5"), (int | str, "5"), (Any, "5")):
        assert read(form, text, [tool_of(kind)]) == [("f", {"x": value})]
        unmarked = text.replace(' string="true"', "")
        for otherwise in (unmarked, text.replace("true", "false")):
            meant = "5" if kind is str else 5
            assert read(form, otherwise, [tool_of(kind)]) == [("f", {"x": meant})]


@pytest.mark.parametrize("name", TAGGED)
def test_some_models_write_all_arguments_between_tags_as_json(name: str) -> None:
    form = form_of(name)
    before, _, after = TAGGED[name].partition("{}")
    begin, end = re.split("<[^<]*(parameter|arg_key)", before)[0], after.partition(">")[2]
    text = f'{form.begin}{begin}\n{{"x": "a"}}\n{end}{form.end}'
    assert read(form, text, [tool_of(str)]) == [("f", {"x": "a"})]


def test_between_the_marks_of_tags_models_leave_out_the_tail_and_write_json() -> None:
    form, asked = form_of("qwen3_coder"), [tool_of(int), tool("g", {})]
    tagged = (
        "\n<function=f>\n<parameter=x>\n1\n</parameter>\n</tool_call>\n<tool_call>\n<function=g>\n"
    )
    as_json = '\n{"name": "f", "arguments": {"x": 1}}\n{"name": "g", "arguments": {}}\n'
    for text in (tagged, as_json):
        assert read(form, form.begin + text + form.end, asked) == [("f", {"x": 1}), ("g", {})]


def test_a_name_without_its_mark_ends_with_its_line() -> None:
    form, asked = form_of("qwen3_coder"), [tool_of(str)]
    text = form.begin + TAGGED["qwen3_coder"].format("a>b") + form.end
    assert read(form, text.replace("=x>", "=x"), asked) == [("f", {"x": "a>b"})]


def test_arguments_may_be_wrapped_in_one_that_the_tool_does_not_have() -> None:
    form = form_of("deepseek_v32")
    text = form.begin + TAGGED["deepseek_v32"].format('\n{"x": "a"}') + form.end
    own = tool("f", {"properties": {"x": {}, "arguments": {}, "input": {}}})
    for name in ("arguments", "input"):
        wrapped = text.replace('name="x"', f'name="{name}"')
        assert read(form, wrapped, [tool_of(str)]) == [("f", {"x": "a"})]
        assert read(form, wrapped, [own])[0][1].keys() == {name}
        assert read(form, wrapped, [])[0][1].keys() == {name}


@pytest.mark.parametrize("name", TAGGED)
def test_some_models_leave_out_the_tag_that_ends_a_value(name: str) -> None:
    form = form_of(name)
    properties = {"x": {"type": "string"}, "n": {"type": "integer"}}
    before, _, after = TAGGED[name].partition("{}")
    begin = re.search("<[^<]*(parameter|arg_key)", before)
    assert begin is not None
    head, first = before[: begin.start()], before[begin.start() :]
    second = first.replace("x", "n").replace("true", "false")
    tag, mark, rest = after.partition(">")
    for written in (f"{first}a\n{second}5{tag}{mark}{rest}", f"{first}a{tag}{mark}{second}5{rest}"):
        text = f"{form.begin}{head}{written.rstrip()}\n{form.end}"
        ((_, arguments),) = read(form, text, [tool("f", {"properties": properties})])
        assert arguments in ({"x": "a", "n": 5}, {"x": "a\n", "n": 5})


@pytest.mark.parametrize("name", TAGGED)
def test_what_only_looks_like_the_next_argument_is_part_of_a_value(name: str) -> None:
    """An argument that has a value, or none of the tool's; code may be about calls."""
    form = form_of(name)
    asked = tool("f", {"properties": {key: {"type": "string"} for key in ("y", "x", "n")}})
    before, _, after = TAGGED[name].partition("{}")
    begin = re.search("<[^<]*(parameter|arg_key)", before)
    assert begin is not None
    head, first = before[: begin.start()], before[begin.start() :]
    tag, mark, _ = after.partition(">")
    given = first.replace("x", "y")
    value = f"{given}x\n{given} {first.replace('x', 'other')}, {begin[0]}"
    text = f"{form.begin}{head}{given}b{tag}{mark}{first}{value}{after}{form.end}"
    assert read(form, text, [asked]) == [("f", {"y": "b", "x": value})]


def test_types_may_have_the_names_of_python() -> None:
    form = form_of("qwen3_coder")
    for kind, value in (("str", "5"), ("int", 5), ("list", [5]), ("dict", {"a": 5})):
        asked = [tool("f", {"properties": {"x": {"type": kind}}})]
        text = form.begin + TAGGED["qwen3_coder"].format(value) + form.end
        assert read(form, text, asked) == [("f", {"x": value})]


def test_lists_and_objects_may_be_written_as_in_python() -> None:
    form = form_of("qwen3_coder")
    for kind, written, value in (
        (list[str], "['a', \"b\"]", ["a", "b"]),
        (dict[str, Any], "{'a': True, 'b': None}", {"a": True, "b": None}),
        (list[str] | None, "['a']", ["a"]),
        (list[str] | str, "['a']", "['a']"),
        (str, "{'a': 1}", "{'a': 1}"),
        (list[str], "['a'", "['a'"),
        (dict[str, Any], "{1j, b'x'}", "{1j, b'x'}"),
        (list[str], "(1, 2)", "(1, 2)"),
    ):
        text = form.begin + TAGGED["qwen3_coder"].format(written) + form.end
        assert read(form, text, [tool_of(kind)]) == [("f", {"x": value})], written


PYTHON: list[tuple[str, Any]] = [
    ("""'it is "5"'""", 'it is "5"'),
    (r'"it\'s \"5\" \\ \/ \n\t\u0142 \x41 \d"', 'it\'s "5" \\ / \n\tł A \\d'),
    (r'"\ud83d\ude00 \U0001F600"', "😀 😀"),
    ('"""a "b"\nc"""', 'a "b"\nc'),
    ('"a) b, c=[1]"', "a) b, c=[1]"),
    ('{"a": [1, True, null], "b": {}}', {"a": [1, True, None], "b": {}}),
    ("[ 1,-2.5, .5, 1_000 ]", [1, -2.5, 0.5, 1000]),
    ("None", None),
    ("(800, [1, 2, ], {'a': 5,}, )", [800, [1, 2], {"a": 5}]),
    ("07", 7),
    ("123456789012345678901234567890", 123456789012345678901234567890),
]


@pytest.mark.parametrize(("written", "value"), PYTHON)
def test_arguments_as_python_writes_them(written: str, value: Any) -> None:
    form = form_of("pythonic")
    text = f"{form.begin}[a.f( from={written}, class = 1, ), g()]{form.end}"
    assert read(form, text, []) == [("a.f", {"from": value, "class": 1}), ("g", {})]
    for other in ("[see](x)", "[f(1)]", "[f(*x)]", "[]", "f("):
        assert read(form, form.begin + other, []) == [("", form.begin + other)]


def test_required_arguments_come_first_in_a_call_as_python_writes_it() -> None:
    form = form_of("pythonic")
    optional = {name: {"type": "boolean"} for name in "abc"}
    some = tool("f", {"properties": {**optional, "x": {"type": "string"}}, "required": ["x"]})
    for asked, fits, no in (
        (some, ['x="", a=True, c=false', 'x="a"'], ["", "a=True", 'x="", c=True, a=True']),
        (tool("f", {"properties": optional}), ["", "b=True"], ["x=1", ", a=1"]),
        (tool("f", {}), [""], ["a=1"]),
    ):
        grammar = calls_grammar(form, target().vocabulary, [asked], ANY_TOOL)
        for arguments in (*fits, *no):
            text = f"{form.begin}[f({arguments})]{form.end}"
            assert accepts(grammar, text) is (arguments in fits), arguments


def test_any_optional_arguments_may_be_given_in_their_order_as_python_writes_them() -> None:
    form = form_of("pythonic")
    names = "abcde"
    asked = tool("f", {"properties": {name: {"type": "boolean"} for name in names}})
    grammar = calls_grammar(form, target().vocabulary, [asked], ANY_TOOL)
    for chosen in product([True, False], repeat=len(names)):
        some = [f"{name}=True" for name, is_in in zip(names, chosen, strict=True) if is_in]
        assert accepts(grammar, f"{form.begin}[f({', '.join(some)})]{form.end}"), some
        if len(some) > 1:
            assert not accepts(grammar, f"{form.begin}[f({', '.join(some[::-1])})]{form.end}")


def test_what_is_written_of_tools_grows_with_them_and_is_bounded_before_all_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """4,000 optional arguments took 3.6 GB before they were refused."""
    form = form_of("pythonic")
    many = tool("f", {"properties": {f"p{i}": {"type": "boolean"} for i in range(400)}})
    assert accepts(
        calls_grammar(form, target().vocabulary, [many], ANY_TOOL),
        f"{form.begin}[f(p7=True, p399=False)]{form.end}",
    )
    written = []

    def writes(_: object, function: dict[str, Any]) -> str:
        written.append(function["name"])
        return '"' + "x" * 1000 + '"'

    monkeypatch.setitem(call_grammars._LARK, "pythonic", writes)
    tools = [tool(f"f{i}", {}) for i in range(2000)]
    with pytest.raises(UsageError, match="the grammar of the tools has 5"):
        calls_grammar(form, target().vocabulary, tools, ANY_TOOL)
    assert len(written) < 600
    large = tool("g", {"properties": {f"p{i}": {} for i in range(4000)}})
    with pytest.raises(UsageError, match="properties in the JSON schema has 4,000"):
        calls_grammar(form, target().vocabulary, [large], ANY_TOOL)
    assert "g" not in written


def test_models_may_write_json_as_python_or_with_line_breaks_and_forget_a_brace() -> None:
    form = form_of("json_tools")
    for call in (
        '{"name": "f", "arguments": {"x": "a\nb"}}',
        '{"name":"f","arguments":{"x":"a\nb"}',
        "{'name': 'f', 'arguments': {'x': 'a\\nb'}}",
    ):
        for end in (form.end, "\n" + form.end, ""):
            assert read(form, form.begin + call + end, []) == [("f", {"x": "a\nb"})]
    for call in (
        '{"function": {"name": "f", "arguments": {"a": 1}}',
        '{"f": {"a": 1}',
        '{"name": "f", "arguments": {"a": 1}, "parameters": {}}',
        '{"name": "f", "arguments": {"a": 1}, "arguments": {"a": 2}}',
        '{"name": "f", "function": {"description": "x"}, "arguments": {"a": 1}}',
        '{"id": ' + "5" * 5000 + ', "name": "f", "arguments": {"a": 1}}',
    ):
        assert read(form, form.begin + call + form.end, [tool("f", {})]) == [("f", {"a": 1})], call


def test_a_named_tool_is_the_only_one_and_several_calls_are_asked_for() -> None:
    asked = [tool_of(int), tool("g", {})]
    form = form_of("qwen3_coder")
    text = SEVERAL["qwen3_coder"][0]
    one, two = (form.begin + call + form.end for call in (TAGGED[form.parser].format(1), text))
    vocabulary = target().vocabulary
    for choice, several, fits in (
        (ANY_TOOL, False, (True, False)),
        (ANY_TOOL, True, (True, True)),
        ("f", True, (True, False)),
        ("g", True, (False, False)),
    ):
        grammar = calls_grammar(form, vocabulary, asked, choice, several=several)
        assert (accepts(grammar, one), accepts(grammar, two)) == fits


def test_calls_of_kimi_have_the_ids_that_the_model_gives_them() -> None:
    form, asked = form_of("kimi_k2"), [tool("g", {})]
    grammar = calls_grammar(form, target().vocabulary, asked, ANY_TOOL, several=True)
    names = ("functions.g:4", "functions.g:15")
    call = "<|tool_call_begin|>{}<|tool_call_argument_begin|>{{}}<|tool_call_end|>"
    text = "".join(form.begin + call.format(name) + form.end for name in names)
    assert accepts(grammar, text)
    blocks = Blocks(AnswerForm(calls=form), tools=asked)
    list(blocks.feed(text))
    assert tuple(block.id for block in blocks.blocks) == names


def test_calls_in_a_format_that_is_no_grammar_are_enforced_as_json() -> None:
    llama = ToolFormat.of(Marked("{% if tools %} {{ '\"parameters\": ' }}"))
    assert llama is not None
    asked = [tool_of(int), tool("g", {})]
    for form, key in ((form_of("gemma4"), "arguments"), (llama, "parameters")):
        grammar = calls_grammar(form, target().vocabulary, asked, ANY_TOOL, several=True)
        one, other = f'{{"name": "f", "{key}": {{"x": 1}}}}', f'{{"name": "g", "{key}": {{}}}}'
        for text, fits in (
            *((one, True), (f"{one}\n{other}", True), (one.replace("1", '"a"'), False)),
            (one.replace("f", "h"), False),
        ):
            assert accepts(grammar, text) is fits, text
        for between in ("\n", "; ", ";\n", ", "):
            for begin in ("", llama.begin if form is llama else ""):
                text = f"{begin}{one}{between}{other}"
                assert read(form, text, asked) == [("f", {"x": 1}), ("g", {})]
        assert read(form, f"{one}; x", asked)[1] == ("", "; x")
    assert read(llama, "Na przykład:\n" + one.replace("f", "h"), asked)[0][0] == ""
    assert read(llama, f"I look: {llama.begin}{one}", asked) == [("", "I look:"), ("f", {"x": 1})]
    for without in (
        "{{ messages }}",
        "{{ messages[0]['tools'] }} <|tool_call|>",
        "<tools> <tool_call> {{ 'without tools.' }} No tools.",
    ):
        assert ToolFormat.of(Marked(without)) is None
    with pytest.raises(UsageError, match="none can be enforced"):
        calls_grammar(None, target().vocabulary, [tool_of(int)], ANY_TOOL)
    with pytest.raises(UsageError, match=r"'g{59}…, which is not among tools"):
        calls_grammar(form_of("mistral"), target().vocabulary, [tool_of(int)], "g" * 70)


@pytest.mark.parametrize(
    ("tokenizer", "marks"),
    [
        (Marked("{{ tools }} <|tool_call|>"), ("<|tool_call|>", "")),
        (
            Marked("{{ tools }}", "<|tool_call|>", "<|/tool_call|>"),
            ("<|tool_call|>", "<|/tool_call|>"),
        ),
        (Marked("{{ tools }} <TOOLCALL>[]</TOOLCALL>"), ("<TOOLCALL>", "</TOOLCALL>")),
        (Marked("{{ tools }} <tool_call> </tool_call>"), ("<tool_call>", "</tool_call>")),
        (Marked("{{ tools }}"), ("", "")),
    ],
)
def test_other_templates_with_tools_have_calls_in_json(
    tokenizer: Marked, marks: tuple[str, str]
) -> None:
    form = ToolFormat.of(tokenizer)
    assert form == ("json_tools", *marks)
    asked = [tool_of(int), tool("g", {})]
    one, other = '{"name": "f", "arguments": {"x": 1}}', '{"name": "g", "arguments": {}}'
    for text in (f"[{one}, {other}]", f"{one}\n{other}"):
        assert read(form, form.begin + text + form.end, asked) == [("f", {"x": 1}), ("g", {})]
        assert read(form, text, asked) == [("f", {"x": 1}), ("g", {})]
    grammar = calls_grammar(form, target().vocabulary, asked, ANY_TOOL)
    assert accepts(grammar, f"{form.begin}\n{one}\n{form.end}")


def test_ids_are_those_that_every_template_takes() -> None:
    ids = {call_id() for _ in range(100)}
    assert len(ids) == 100
    given = [*ids, "call_abc", "550e8400-e29b-41d4-a716-446655440000", 7]
    messages = [
        {"role": "assistant", "tool_calls": [{"id": one, "type": "function"}]} for one in given
    ]
    results = [{"role": "tool", "tool_call_id": one, "content": "x"} for one in given]
    called = [message["tool_calls"][0]["id"] for message in with_call_ids(messages)]
    assert called == [message["tool_call_id"] for message in with_call_ids(results)]
    assert all(len(one) == 9 and one.isascii() and one.isalnum() for one in called)
    assert set(called) > ids
    assert len(set(called)) == len(given)
    assert with_call_ids([{"role": "user", "content": "x"}]) == [{"role": "user", "content": "x"}]


def test_the_format_of_gpt_oss_is_known_by_its_tokens() -> None:
    form = ToolFormat.of(Marked(None, "<|start|>", "<|channel|>", "<|message|>", "<|call|>"))
    assert form is not None
    assert form.parser == HARMONY
