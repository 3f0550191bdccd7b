"""Prompts through chat templates: the text and the ids are those that transformers makes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from histories import template_messages
from places import DEMO

from tokalign.conversation.rendering import rendered
from tokalign.errors import UsageError
from tokalign.runtime.chat import (
    ChatTemplate,
    Message,
    as_messages,
    encode_chat,
    encode_prompt,
    find_template,
    with_bos,
)
from tokalign.tokenizer.self_check import read_tokenizer
from tokalign.tokenizer.tokenizer import Tokenizer

HISTORY: list[Message] = [
    {"role": "system", "content": "Mów krótko."},
    {"role": "user", "content": "Zażółć gęślą jaźń?"},
    {"role": "assistant", "content": "Tak, a\n\nb  c 🐟"},
    {"role": "user", "content": "Dlaczego?"},
]


def write_config(folder: Path, template: Any) -> Path:
    config = {"chat_template": template, "bos_token": "<s>", "eos_token": "<|im_end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def template_of(folder: Path) -> ChatTemplate:
    found = find_template(folder)
    assert found is not None
    return found


def test_templates_are_found_where_models_keep_them(tmp_path: Path) -> None:
    """In the configuration, several of them by name, or in a file of its own, which comes first."""
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "plain"}]
    places = {name: tmp_path / name for name in ("configured", "named", "file")}
    for folder in places.values():
        folder.mkdir()
    write_config(places["configured"], "configured")
    write_config(places["named"], named)
    (write_config(places["file"], "configured") / "chat_template.jinja").write_text("file")
    assert {name: template_of(folder).render(HISTORY) for name, folder in places.items()} == {
        "configured": "configured",
        "named": "plain",
        "file": "file",
    }
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    assert template_of(places["named"]).render(HISTORY, tools=tools) == "tools"
    assert find_template(tmp_path) is None
    assert find_template(write_config(tmp_path, None)) is None


def test_templates_may_mark_generated_text_and_read_variables(tmp_path: Path) -> None:
    template = (
        "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}"
        "{% if not enable_thinking %}<no>{% endif %}{% for t in tools %}{{ t.function.name }}"
        "{% endfor %}"
    )
    found = template_of(write_config(tmp_path, template))
    tools = [{"type": "function", "function": {"name": "pogoda", "parameters": {}}}]
    messages: list[Message] = [{"role": "user", "content": "a"}]
    assert found.render(messages, enable_thinking=True, tools=tools) == "apogoda"
    assert found.render(messages, enable_thinking=False, tools=[]) == "a<no>"


@pytest.mark.parametrize(
    "template", ["{{ raise_exception('no system role') }}", "{{ 'no system role' + 1 }}", "{% if"]
)
def test_what_a_template_cannot_render_is_a_usage_error(tmp_path: Path, template: str) -> None:
    with pytest.raises(UsageError, match="cannot render") as raised:
        template_of(write_config(tmp_path, template)).render(HISTORY)
    assert "without a template" in str(raised.value), "what requests and callers can do, too"
    assert "--" not in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_configuration_that_cannot_be_read_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text('{"bos_token": {"content": "<s>"}}')
    with pytest.raises(UsageError, match=r"tokenizer_config\.json.*--ignore-chat-template"):
        find_template(tmp_path)


def test_a_conversation_is_rendered_by_the_program_that_the_folder_names(tmp_path: Path) -> None:
    from mlx_lm.chat_templates import deepseek_v32

    config = {"chat_template_type": "deepseek_v32", "chat_template": "no"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    messages = as_messages("Zażółć?", system="Krótko.")
    expected = deepseek_v32.apply_chat_template(
        [dict(message) for message in messages], add_generation_prompt=True, enable_thinking=True
    )
    assert template_of(tmp_path).render(messages, enable_thinking=True) == expected
    find_template.cache_clear()
    config["chat_template_type"] = "os.path"
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(UsageError, match=r"chat_template_type os\.path"):
        find_template(tmp_path)


def test_a_template_sees_that_a_content_is_none(tmp_path: Path) -> None:
    """Without which DeepSeek V3's writes no calls."""
    template = "{% for m in messages %}{{ m.name if m.content is none else m.content }}{% endfor %}"
    messages = [{"role": "user", "content": "a"}, {"role": "tool", "name": "b", "content": None}]
    assert template_of(write_config(tmp_path, template)).render(messages) == "ab"


REAL = Path(os.environ.get("TOKALIGN_REAL_MODELS", "/nowhere"), "tokenizers", "deepseek_v3")


def test_calls_are_written_by_the_template_that_tools_need(tmp_path: Path) -> None:
    write = "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}{} {% endfor %}"
    write += "{% endfor %}"
    own = [
        {"name": "default", "template": write.replace("{}", "")},
        {"name": "tool_use", "template": write.replace("{}", "{{ c.function.name }}!")},
    ]
    call = {"id": "a", "function": {"name": "f", "arguments": "{}"}}
    history = template_messages([{"role": "assistant", "tool_calls": [call]}, as_messages("b")[0]])
    template = template_of(write_config(tmp_path, own))
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    assert rendered(template, history, {"tools": [tool]}) == "f! b"
    assert rendered(template, history, {"tools": None}) == '{"name": "f", "arguments": {}}b'


def test_after_a_call_an_answer_begins(tmp_path: Path) -> None:
    """A text that went on from the content would leave the call out."""
    write = "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}"
    write += "{{ c.function.name }}!{% endfor %}{% endfor %}"
    write += "{% if add_generation_prompt %}>{% endif %}"
    call = {"id": "a", "function": {"name": "f", "arguments": "{}"}}
    turn = {"role": "assistant", "content": "b", "tool_calls": [call]}
    template = template_of(write_config(tmp_path, write))
    assert rendered(template, template_messages([turn]), {}) == "bf!>"


def test_calls_are_in_the_prompts_of_every_deepseek(tmp_path: Path) -> None:
    call = {"id": "a", "function": {"name": "pogoda", "arguments": '{"miasto": "Łódź"}'}}
    turn = {"role": "assistant", "content": "Tak.", "tool_calls": [call]}
    result = {"role": "tool", "tool_call_id": "a", "content": "7"}
    history = template_messages([{"role": "user", "content": "?"}, turn, result])
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template_type": "deepseek_v32"}')
    text = rendered(template_of(tmp_path), history, {"enable_thinking": True})
    assert 'invoke name="pogoda"' in text
    assert 'string="true">Łódź<' in text
    if REAL.is_dir():
        text = rendered(template_of(REAL), history, {})
        assert 'pogoda\n```json\n{"miasto": "Łódź"}' in text
        assert "Tak." in text


def assert_prompts_are_those_of_transformers(folder: Path) -> None:
    from transformers import AutoTokenizer

    ours: Tokenizer[Any] = read_tokenizer(folder)
    theirs = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    template = template_of(folder)
    for messages in (HISTORY, HISTORY[1:2]):
        expected = theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        assert template.render(messages) == expected
    for text in ("Zażółć gęślą jaźń?", "a\n\nb  c 🐟"):
        messages = [{"role": "user", "content": text}]
        expected = theirs.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
        assert encode_chat(ours, template, as_messages(text)) == list(expected)
        assert encode_prompt(ours, text) == theirs.encode(text)
        assert with_bos(ours, encode_prompt(ours, text)) == theirs.encode(text), "once"
    assert (
        encode_chat(ours, template, as_messages("a", system="b"))
        == theirs.apply_chat_template(
            [{"role": "system", "content": "b"}, *as_messages("a")], add_generation_prompt=True
        )["input_ids"]
    )


@pytest.mark.parametrize("name", ["target", "draft"])
def test_prompts_of_the_demo_pair_are_those_of_transformers(name: str) -> None:
    """Although the template is read without the vocabulary that transformers would load."""
    assert_prompts_are_those_of_transformers(DEMO / name)


@pytest.mark.long
@pytest.mark.shared
@pytest.mark.parametrize("name", ["target-bielik-tiny", "draft-llama-tiny", "draft-polish-tiny"])
def test_prompts_of_the_shared_models_are_those_of_transformers(
    shared_data: Path, name: str
) -> None:
    assert_prompts_are_those_of_transformers(shared_data / "models" / name)
