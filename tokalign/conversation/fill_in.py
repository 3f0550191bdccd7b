"""Filling in a text between two others: how models are asked for it, and what ends it."""

from __future__ import annotations

import re
from typing import Any, cast

from tokalign.errors import UsageError
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import TargetId

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


def fill_in_prompt(tokenizer: Any, prompt: str, suffix: str) -> str:
    """The text that asks for what stands between `prompt` and `suffix`.

    tokenizer: mlx-lm's. Raises: UsageError if the model was not made for it.
    """
    tokens = tokenizer.get_added_vocab()
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
