"""Prompts of chats and of texts to fill in, and where other chats part from a chat."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, cast

from tokalign.conversation.answer_form import AnswerForm
from tokalign.conversation.rendering import Message, rendered
from tokalign.conversation.tools import with_call_ids
from tokalign.errors import TokalignError, UsageError, require
from tokalign.runtime.chat import (
    ChatTemplate,
    Prompt,
    encode_prompt,
    plain_text,
    with_bos,
    with_thinking,
)
from tokalign.runtime.rounds import common_prefix
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import DraftId, TargetId

_FILL_IN = (
    "<|fim_prefix|>{0}<|fim_suffix|>{1}<|fim_middle|>",  # Qwen, CodeGemma
    "<fim_prefix>{0}<fim_suffix>{1}<fim_middle>",  # StarCoder, Granite
    "<｜fim▁begin｜>{0}<｜fim▁hole｜>{1}<｜fim▁end｜>",  # DeepSeek
    "<|code_prefix|>{0}<|code_suffix|>{1}<|code_middle|>",  # GLM
    "[SUFFIX]{1}[PREFIX]{0}",  # Codestral
)
"""How models are asked for the text between two others."""

_MARK = re.compile(r"<[|｜].*[|｜]>|<(fim|file|repo)\w*>|\[(PREFIX|SUFFIX|MIDDLE)\]")
"""Tokens that are marks and no text, whether a tokenizer calls them special or not."""


class Beginning(NamedTuple):
    """A prompt, and the kind of block that it leaves open. marks: numbers of the target's ids that
    other conversations begin with, and whether any chat may be one of them. ignored: which of
    `effort_variables` the template does not follow."""

    prompt: Prompt
    marks: Mapping[int, bool] = {}
    opens_in: Literal["text", "thought"] = "text"
    ignored: tuple[str, ...] = ()


def effort_variables(effort: str | None, thinks: bool | None = None) -> dict[str, Any]:
    """Variables by which templates are told how much to think. effort: in OpenAI's words, of which
    "none" is one. thinks: whether to think at all, if it is said apart from the effort."""
    told: dict[str, Any] = {} if effort is None else {"reasoning_effort": effort}
    if thinks is None and effort is not None:
        thinks = effort != "none"
    return told if thinks is None else {**told, "enable_thinking": thinks, "thinking": thinks}


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompts:
    """Writes the prompts of a target and its draft model.

    template: the target's; without one, a prompt is the messages' texts. draft: the template and
    the tokenizer of a draft model that has its own rendering. library: mlx-lm's tokenizer of the
    target. form: of the target's answers. marks_all: whether to mark every place that a later
    request may begin with, and not only the end of the system's message.
    """

    tokenizer: Tokenizer[TargetId]
    template: ChatTemplate | None
    draft: tuple[ChatTemplate, Tokenizer[DraftId]] | None
    library: Any
    form: AnswerForm
    marks_all: bool

    def of_chat(
        self,
        messages: Sequence[Message],
        variables: Mapping[str, Any],
        effort: Mapping[str, Any],
        check: Callable[[str], None],
    ) -> Beginning:
        """The prompt of a conversation. effort: variables for a template that reads them and takes
        their values. check: is given its text before that is encoded. Raises: as `rendered`, and as
        `check` does."""
        if self.form.calls is not None and self.form.calls.parser == "mistral":
            messages = with_call_ids(messages)
        if self.template is None:
            text = plain_text(messages)
            check(text)
            prompt = Prompt(target=encode_prompt(self.tokenizer, text))
            return Beginning(prompt, ignored=tuple(effort)[:1])
        plain, named = variables, [name for name in effort if self.template.names(name)]
        for refused in range(len(named) + 1):  # templates refuse values of the first, the effort
            variables = {**plain, **{name: effort[name] for name in named[refused:]}}
            try:
                text = rendered(self.template, messages, with_thinking(self.tokenizer, variables))
                break
            except UsageError:
                if refused == len(named):
                    raise
        ignored = tuple(named[:refused] if named else effort)[:1]
        says = effort.get("reasoning_effort") != "none"
        if named == ["reasoning_effort"] and effort["enable_thinking"] != says:
            ignored += ("enable_thinking",)  # which was said apart from the effort
        check(text)
        ids = self.tokenizer.encode(text, specials=True)
        marks: dict[int, bool] = {}
        for variant, is_shared in self._others(messages):
            others = _encoded(self.template, self.tokenizer, variant, variables) or []
            # The last id that they share may be a part of another one, where a letter follows.
            marks.setdefault(common_prefix(ids, others) - 1, is_shared)
        opens = self.library.response_initial_state == "reasoning"
        if self.library.has_thinking:  # a thought that somebody's turn spells ends with that turn
            turn_ends = self.tokenizer.vocabulary.roles.eos
            turn = max((i for i, token in enumerate(ids) if token in turn_ends), default=-1)
            ends = max(turn, self.library.rfind_think_end(ids))
            opens = opens or self.library.rfind_think_start(ids) > ends
        theirs = None
        if self.draft is not None and messages[-1].get("role") != "assistant":
            theirs = _encoded(*self.draft, messages, variables)
        opens_in: Literal["text", "thought"] = "thought" if opens else "text"
        prompt = Prompt(target=ids, draft=theirs)
        return Beginning(prompt, marks, opens_in, ignored)

    def of_text(
        self, given: str | Sequence[int], suffix: str, size: int, check: Callable[[str], None]
    ) -> Beginning:
        """The prompt of a text, which may have to end before another one, or of given ids. size:
        how many ids the model has. check: as in `of_chat`. Raises: UsageError; as `check`."""
        if isinstance(given, str):
            text = fill_in_prompt(self.library, given, suffix) if suffix else given
            check(text)
            tokenizer = self.tokenizer
            ids = encode_prompt(tokenizer, text) if text else with_bos(tokenizer, [])
            return Beginning(Prompt(target=ids))
        require(not suffix, "suffix needs a prompt that is a text, not ids")
        for place, token in enumerate(given):
            wrong = f"prompt[{place}] is {{}}, but the model's ids are from 0 to {size - 1}"
            require(0 <= token < size, wrong, token)
        return Beginning(Prompt(target=cast("Sequence[TargetId]", given)))

    def _others(self, messages: Sequence[Message]) -> Iterator[tuple[list[Message], bool]]:
        """Conversations that share only the system's message, all but the last question, and the
        whole as the next turn does; and whether any chat may begin so."""
        question: Message = {"role": "user", "content": ""}
        roles = [message["role"] for message in messages]
        begin = next((i for i, role in enumerate(roles) if role != "system"), 0)
        last = max((i for i, role in enumerate(roles) if role == "user"), default=0)
        if begin:
            yield [*messages[:begin], question], True
        if self.marks_all and last > begin:
            yield [*messages[:last], question], False
        if self.marks_all and messages[-1]["role"] != "assistant":
            yield [*messages, {"role": "assistant", "content": "Yes."}, question], False


def _encoded(
    template: ChatTemplate,
    tokenizer: Tokenizer[Any],
    messages: Sequence[Message],
    variables: Mapping[str, Any],
) -> list[Any] | None:
    """The ids of a conversation; None where a template does not take it."""
    try:
        text = rendered(template, messages, with_thinking(tokenizer, variables))
        return tokenizer.encode(text, specials=True)
    except TokalignError:
        return None


# -- a text between two others ---------------------------------------------------------------------


def fill_in_prompt(library: Any, prompt: str, suffix: str) -> str:
    """The text that asks for what stands between `prompt` and `suffix`. library: mlx-lm's
    tokenizer. Raises: UsageError if the model was not made for it."""
    tokens = library.get_added_vocab()
    for form in _FILL_IN:
        if all(mark in tokens for mark in re.findall(r"<[^>]+>|\[[A-Z]+\]", form)):
            return form.format(prompt, suffix)
    raise UsageError(
        "suffix is not served: the tokenizer of this model has no tokens that mark a text to be "
        "filled in; leave the field out"
    )


def fill_in_ends(tokenizer: Tokenizer[TargetId]) -> frozenset[TargetId]:
    """The ids that end a text which was filled in: all special tokens and other marks.

    A chat's text may have marks in it, such as those of calls; between two texts of code there is
    none, and what follows one is another file or nothing.
    """
    tokens = tokenizer.vocabulary.tokens
    marks = [i for i in tokenizer.spec.text_tokens if _MARK.fullmatch(tokens[i].decode())]
    return frozenset([*tokenizer.vocabulary.specials, *cast("list[TargetId]", marks)])
