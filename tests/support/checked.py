"""A tokenizer against its reference, in all that is checked when one is read."""

from __future__ import annotations

from typing import Any

from tokalign.tokenizer.files import TokenizerFile
from tokalign.tokenizer.self_check import check_prompts, check_texts
from tokalign.tokenizer.tokenizer import Tokenizer


def check(tokenizer: Tokenizer[Any], file: TokenizerFile) -> None:
    """Compare a tokenizer with its reference. Raises: as `check_texts` and `check_prompts`."""
    check_texts(tokenizer, file)
    if file.owner is not None:
        check_prompts(tokenizer, file.owner)
