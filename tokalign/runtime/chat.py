"""Prompts: rendered by the model's own chat template, and encoded."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from tokalign.errors import UsageError
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import Id

Message = Mapping[str, str]
"""{"role": "user", "content": "..."}"""

_TOKEN_NAMES = ("bos_token", "eos_token", "unk_token", "pad_token")


@dataclass(frozen=True)
class ChatTemplate:
    """A Jinja template and the special tokens it names, as in tokenizer_config.json."""

    source: str
    tokens: Mapping[str, str]

    @classmethod
    def from_folder(cls, folder: Path) -> ChatTemplate | None:
        """The template of a model's folder, None if it has none."""
        config = _read_json(folder / "tokenizer_config.json")
        separate = folder / "chat_template.jinja"
        source = separate.read_text("utf-8") if separate.is_file() else config.get("chat_template")
        if isinstance(source, list):  # several, by name
            named = {entry["name"]: entry["template"] for entry in source}
            source = named.get("default")
        if source is None:
            return None
        tokens = {name: _spelling(config.get(name)) for name in _TOKEN_NAMES}
        return cls(source, tokens)

    def render(self, messages: Sequence[Message]) -> str:
        """The text of a conversation, up to where the assistant's answer begins.

        Compiled as transformers compiles it: sandboxed, whitespace trimmed around blocks.
        Raises: UsageError with the template's own complaint, if it has one.
        """
        from jinja2 import TemplateError
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
        try:
            template = environment.from_string(self.source)
            return template.render(
                messages=[dict(m) for m in messages], add_generation_prompt=True, **self.tokens
            )
        except TemplateError as error:
            raise UsageError(
                f"the model's chat template cannot render this conversation ({error}); "
                "give --ignore-chat-template to use the prompt as it is"
            ) from error


def encode_prompt(
    tokenizer: Tokenizer[Id],
    template: ChatTemplate | None,
    text: str,
    *,
    system: str | None = None,
) -> list[Id]:
    """The ids of a prompt: through the template if there is one, else as it is, behind BOS.

    Spellings of special tokens become those tokens, as in mlx-lm. BOS is put in front where the
    tokenizer says so and the text does not begin with it already; a template writes its own.
    """
    if template is not None:
        asked: list[Message] = [{"role": "user", "content": text}]
        if system is not None:
            asked.insert(0, {"role": "system", "content": system})
        return tokenizer.encode(template.render(asked), specials=True)
    if system is not None:
        text = f"{system}\n{text}"
    return with_bos(tokenizer, tokenizer.encode(text, specials=True))


def with_bos(tokenizer: Tokenizer[Id], ids: list[Id]) -> list[Id]:
    """`ids` behind BOS, if the tokenizer puts one there."""
    bos = tokenizer.vocabulary.roles.bos
    if not tokenizer.spec.adds_bos or bos is None or ids[:1] == [bos]:
        return ids
    return [bos, *ids]


def _read_json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_bytes()) if path.is_file() else {}


def _spelling(token: Any) -> str:
    """A token is written as a string or as an object with its content."""
    return str(token["content"]) if isinstance(token, dict) else token or ""


def _to_json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise_exception(message: str) -> NoReturn:
    from jinja2 import TemplateError

    raise TemplateError(message)
