"""Prompts: conversations rendered by each model's own chat template, and encoded.

transformers, which comes with mlx-lm, renders; it is imported when the first template is looked
for. Our own tokenizer encodes the text, so that a prompt's ids stand for exactly its bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from tokalign.errors import UsageError, in_one_line
from tokalign.runtime.translation.base import Pair
from tokalign.runtime.translation.committed_text import ChunkedText, DraftText
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import DraftId, Id, TargetId

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizer

Message = Mapping[str, object]
"""{"role": "user", "content": "..."}, and whatever else the template reads, such as tool calls."""

RESERVED = frozenset(
    {
        *("add_generation_prompt", "chat_template", "continue_final_message", "conversation"),
        *("conversations", "max_length", "messages", "padding", "return_assistant_tokens_mask"),
        *("return_dict", "return_tensors", "self", "tokenize", "tokenizer_kwargs", "truncation"),
    }
)
"""Arguments of `apply_chat_template` and of what renders, which are no variables of a template."""

_REMEDY = "give --ignore-chat-template to use the prompt as it is"


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """The ids that the target reads first, and the draft's rendering of the same conversation.
    draft: None if the draft model reads the target's prompt, special tokens matched by role."""

    target: Sequence[TargetId]
    draft: Sequence[DraftId] | None = None

    def draft_text(self, pair: Pair, *, chunked: bool = False) -> DraftText:
        """The draft's view of the prompt, to be extended by the output. chunked: encode each
        round's output separately, as the published systems do."""
        kind = ChunkedText if chunked else DraftText
        if self.draft is not None:
            return kind(pair.target, pair.draft, draft_prompt=self.draft, covered=self.target)
        own_bos, bos = pair.draft.vocabulary.roles.bos, pair.target.vocabulary.roles.bos
        if own_bos is not None and [*self.target[:1]] == [bos]:
            return kind(pair.target, pair.draft)
        # What is put before texts is no text, even where it has no role, as `[gMASK]<sop>`.
        opening = cast("tuple[TargetId, ...]", pair.target.spec.opening)
        begun = opening if tuple(self.target[: len(opening)]) == opening else ()
        return kind(pair.target, pair.draft, draft_prompt=with_bos(pair.draft, []), covered=begun)


class ChatTemplate:
    """The chat template of a model's folder, rendered by transformers.
    program: mlx-lm's own function of the same arguments, in place of a template (DeepSeek V3.2)."""

    def __init__(
        self, tokenizer: PreTrainedTokenizer, program: Callable[..., str] | None = None
    ) -> None:
        self._render = program or partial(_rendered, tokenizer)
        self._text = "{{ enable_thinking }}" if program else str(tokenizer.chat_template)

    def names(self, variable: str) -> bool:
        """Whether the template reads a variable, as far as its text tells."""
        return reads(self._text, variable)

    def render_with(self, messages: Sequence[Message], variables: Mapping[str, object]) -> str:
        """`render`, as a `Render`."""
        return self.render(messages, **variables)

    def render(self, messages: Sequence[Message], /, **variables: object) -> str:
        """The text of a conversation, up to where the assistant's answer begins or goes on; after
        calls it begins.

        variables: what the template reads besides, for example `tools` or `enable_thinking`.
        Raises: UsageError with the template's own complaint, if it has one.
        """
        last = messages[-1] if messages else {}
        goes_on = last.get("role") == "assistant" and not last.get("tool_calls")
        try:
            return str(
                self._render(
                    [dict(message) for message in messages],
                    add_generation_prompt=not goes_on,
                    continue_final_message=goes_on,
                    **variables,
                )
            )
        except Exception as error:  # a template is a program, and raises what it likes
            raise UsageError(
                "the model's chat template cannot render this conversation "
                f"({in_one_line(error)}); change the messages, or give a text without a template"
            ) from error


@lru_cache(maxsize=64)
def reads(template: str, variable: str) -> bool:
    """Whether a template has a variable; not a key of a message, as `tools` in Phi-4-mini's and
    `thinking` in gpt-oss's, nor a text."""
    from jinja2 import Environment, TemplateSyntaxError

    try:
        lexed = [part[1:] for part in Environment().lex(template) if part[1] != "whitespace"]
    except TemplateSyntaxError:  # such as of several templates in one text
        return variable in template
    pairs = pairwise(lexed)
    return any(two == ("name", variable) and one != ("operator", ".") for one, two in pairs)


Render: TypeAlias = Callable[[ChatTemplate, Sequence[Any], Mapping[str, object]], str]
"""Writes messages by a template, which is given variables."""


def _rendered(tokenizer: PreTrainedTokenizer, messages: list[Message], /, **variables: Any) -> str:
    """As `apply_chat_template`, which drops the content that is None: older templates of DeepSeek
    write the calls of no other message."""
    from transformers.utils.chat_template_utils import render_jinja_template

    template = tokenizer.get_chat_template(tools=variables.get("tools"))
    variables = {**tokenizer.special_tokens_map, **variables}
    (text,), _ = render_jinja_template([messages], chat_template=template, **variables)
    return str(text)


@lru_cache(maxsize=8)
def find_template(folder: Path, text: str | None = None) -> ChatTemplate | None:
    """The chat template of a model's folder, or `text` in its place; None if the model has none.
    Raises: UsageError if transformers cannot read the folder's configuration."""
    try:
        tokenizer = _template_reader().from_pretrained(folder, local_files_only=True)
    except (OSError, TypeError, ValueError) as error:
        raise UsageError(
            f"transformers cannot read the chat template in {folder} ({in_one_line(error)}); "
            f"correct its tokenizer_config.json, or {_REMEDY}"
        ) from error
    if text is not None:
        tokenizer.chat_template = text
        _require_template(text)
    elif (named := tokenizer.init_kwargs.get("chat_template_type")) is not None:
        return ChatTemplate(tokenizer, _program(str(named), folder))
    return None if tokenizer.chat_template is None else ChatTemplate(tokenizer)


def _require_template(text: str) -> None:
    """Raises: UsageError for a text that jinja cannot read."""
    from jinja2 import TemplateSyntaxError
    from transformers.utils.chat_template_utils import _compile_jinja_template

    try:
        _compile_jinja_template(text)
    except TemplateSyntaxError as error:
        raise UsageError(
            f"the chat template that was given is wrong in line {error.lineno} "
            f"({in_one_line(error)}); correct it"
        ) from error


def _program(name: str, folder: Path) -> Callable[..., str]:
    """mlx-lm's function that renders conversations of this kind. Raises: UsageError."""
    try:
        if not name.isidentifier():
            raise ImportError(f"{name} is no name")
        module = import_module(f"mlx_lm.chat_templates.{name}")
    except ImportError as error:
        raise UsageError(
            f"{folder} asks for mlx-lm's chat_template_type {name}, which is not installed "
            f"({in_one_line(error)}); update mlx-lm, or {_REMEDY}"
        ) from error
    return cast("Callable[..., str]", module.apply_chat_template)


@cache
def _template_reader() -> type[PreTrainedTokenizer]:
    """A transformers tokenizer that reads templates and special tokens, but no vocabulary. Cost:
    some milliseconds per folder, where Llama 3's tokenizer takes 2 s with its vocabulary."""
    from transformers import PreTrainedTokenizer

    class TemplateReader(PreTrainedTokenizer):  # type: ignore[misc]
        vocab_files_names: Mapping[str, str] = {}
        vocab_size = 0

        def get_vocab(self) -> dict[str, int]:
            return {}

    return cast("type[PreTrainedTokenizer]", TemplateReader)


def as_messages(text: str, *, system: str | None = None) -> list[Message]:
    """A user's message, after a system message, if one is given."""
    messages: list[Message] = [{"role": "user", "content": text}]
    if system is not None:
        messages.insert(0, {"role": "system", "content": system})
    return messages


def encode_chat(
    tokenizer: Tokenizer[Id],
    template: ChatTemplate,
    messages: Sequence[Message],
    variables: Mapping[str, object] | None = None,
    render: Render = ChatTemplate.render_with,
) -> list[Id]:
    """The ids of a conversation. variables: as in `ChatTemplate.render`. Raises: UsageError.

    Spellings of special tokens become those tokens, as in mlx-lm; the template writes BOS itself.
    """
    text = render(template, messages, with_thinking(tokenizer, variables or {}))
    return tokenizer.encode(text, specials=True)


THOUGHTS = (
    *((f"<{name}>", f"</{name}>") for name in ("think", "longcat_think")),
    ("<|think:start|>", "<|think:end|>"),  # Solar
    ("<|channel>", "<channel|>"),  # Gemma 4
)
"""The marks around thoughts that a template may open."""

_PARTS = ("<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>")
"""The marks of answers in parts, of which a thought is one."""


def with_thinking(tokenizer: Tokenizer[Id], variables: Mapping[str, object]) -> dict[str, object]:
    """Variables of a template and whether to think: mlx-lm lets a model that marks its thoughts
    think unless it is told not to."""
    specials = tokenizer.vocabulary.special_ids.keys()
    thinks = any(specials >= {*marks} for marks in (*THOUGHTS, _PARTS))
    return {"enable_thinking": thinks, **variables}


def plain_text(messages: Sequence[Message]) -> str:
    """A conversation for a model that has no chat template: the messages' texts, line by line."""
    return "\n".join(str(message.get("content") or "") for message in messages)


def encode_prompt(tokenizer: Tokenizer[Id], text: str) -> list[Id]:
    """The ids of a text as it is, with what mlx-lm puts before and after it (BOS, EOS). Spellings
    of special tokens become those tokens; nothing is put around a text that begins with BOS."""
    spec, ids = tokenizer.spec, tokenizer.encode(text, specials=True)
    bos = spec.specials.get(cast("int", spec.roles.bos), "")
    if bos and text.startswith(bos):
        return ids
    return cast("list[Id]", [*spec.opening, *ids, *spec.closing])


def with_bos(tokenizer: Tokenizer[Id], ids: list[Id]) -> list[Id]:
    """`ids` after what the tokenizer puts before a text, unless they begin with it already."""
    opening = cast("tuple[Id, ...]", tokenizer.spec.opening)
    return ids if tuple(ids[: len(opening)]) == opening else [*opening, *ids]
