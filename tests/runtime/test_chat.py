"""Prompts through chat templates: the ids are those transformers makes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tokalign.errors import UsageError
from tokalign.runtime.chat import ChatTemplate, encode_prompt, with_bos
from tokalign.tokenizer.tokenizer import Tokenizer

CHATML = (
    "{{ bos_token }}{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + "
    "message['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TOKENS = {"bos_token": "<s>", "eos_token": "<|im_end|>"}


def test_a_conversation_is_rendered_up_to_the_answer(bielik: Tokenizer[Any]) -> None:
    template = ChatTemplate(CHATML, TOKENS)
    ids = encode_prompt(bielik, template, "Cześć", system="Mów krótko.")
    spelled = "<s><|im_start|>system\nMów krótko.<|im_end|>\n<|im_start|>user\nCześć<|im_end|>\n"
    assert ids == bielik.encode(spelled + "<|im_start|>assistant\n", specials=True)
    assert ids.count(bielik.vocabulary.roles.turn_start) == 3


def test_a_template_is_found_where_models_keep_it(tmp_path: Path) -> None:
    assert ChatTemplate.from_folder(tmp_path) is None
    config = {"chat_template": "old", "bos_token": {"content": "<s>"}, "eos_token": None}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    found = ChatTemplate.from_folder(tmp_path)
    assert found is not None
    assert (found.source, found.tokens["bos_token"]) == ("old", "<s>")
    named = [{"name": "tools", "template": "x"}, {"name": "default", "template": "y"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    assert ChatTemplate.from_folder(tmp_path) == ChatTemplate("y", dict.fromkeys(found.tokens, ""))
    (tmp_path / "chat_template.jinja").write_text("new")
    assert ChatTemplate.from_folder(tmp_path) == ChatTemplate(
        "new", dict.fromkeys(found.tokens, "")
    )


def test_a_templates_own_complaint_is_a_usage_error() -> None:
    template = ChatTemplate("{{ raise_exception('no system role') }}", TOKENS)
    with pytest.raises(UsageError, match=r"no system role.*--ignore-chat-template"):
        template.render([{"role": "user", "content": "a"}])


def test_a_raw_prompt_gets_bos_once_and_only_where_the_tokenizer_adds_it(
    bielik: Tokenizer[Any], shared_data: Path
) -> None:
    assert encode_prompt(bielik, None, "Ala ma") == bielik.encode("Ala ma")
    polish: Tokenizer[Any] = Tokenizer.from_file(shared_data / "tokenizers" / "polish-spm-32k")
    assert encode_prompt(polish, None, "Ala ma") == [1, *polish.encode("Ala ma")]
    assert with_bos(polish, [1, 5]) == [1, 5]


@pytest.mark.shared
@pytest.mark.parametrize("name", ["target-bielik-tiny", "draft-llama-tiny", "draft-polish-tiny"])
def test_prompts_are_those_of_transformers(shared_data: Path, name: str) -> None:
    from mlx_lm.utils import load_tokenizer

    folder = shared_data / "models" / name
    ours: Tokenizer[Any] = Tokenizer.from_file(folder)
    theirs = load_tokenizer(folder)
    template = ChatTemplate.from_folder(folder)
    for text in ("Zażółć gęślą jaźń?", "a\n\nb  c 🐟"):
        asked = [{"role": "user", "content": text}]
        expected = theirs.apply_chat_template(asked, add_generation_prompt=True)
        assert encode_prompt(ours, template, text) == list(expected)
        assert encode_prompt(ours, None, text) == theirs.encode(text)
