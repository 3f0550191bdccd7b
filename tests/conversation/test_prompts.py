"""What a template is told of how much to think, and what is said of the rest."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from places import DEMO

from tokalign.conversation.answer_form import TEXT_ONLY
from tokalign.conversation.prompts import Prompts, effort_variables
from tokalign.runtime.chat import find_template
from tokalign.tokenizer.self_check import read_tokenizer
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import TargetId

SAID = "{{ messages[0].content }}"
QWEN = "{{ enable_thinking }} " + SAID
GPT_OSS = "{{ reasoning_effort }} {{ messages[0].thinking }}{# thinking #}{{ 'thinking' }} " + SAID
STRICT = "{% if reasoning_effort == 'max' %}{{ raise_exception('no') }}{% endif %}" + QWEN


@pytest.mark.parametrize(
    ("template", "effort", "thinks", "ignored"),
    [
        (QWEN, "low", None, ()),
        (QWEN, "low", False, ()),
        (GPT_OSS, "low", None, ()),
        (GPT_OSS, "none", False, ()),
        (GPT_OSS, "low", False, ("enable_thinking",)),
        (GPT_OSS, None, False, ("enable_thinking",)),
        (STRICT, "max", False, ("reasoning_effort",)),
        (SAID, "low", False, ("reasoning_effort",)),
    ],
)
def test_what_a_template_does_not_follow_of_an_effort_is_told(
    template: str, effort: str | None, thinks: bool | None, ignored: tuple[str, ...]
) -> None:
    tokenizer: Tokenizer[TargetId] = read_tokenizer(DEMO / "target")
    library: Any = SimpleNamespace(response_initial_state="", has_thinking=False)
    prompts = Prompts(
        tokenizer=tokenizer,
        template=find_template(DEMO / "target", template),
        draft=None,
        library=library,
        form=TEXT_ONLY,
        marks_all=False,
    )
    variables, texts = effort_variables(effort, thinks), list[str]()
    message = {"role": "user", "content": "x"}
    beginning = prompts.of_chat([message], {}, variables, texts.append)
    assert beginning.ignored == ignored
    if "enable_thinking" in template:
        assert texts == [f"{variables['enable_thinking']} x"]
