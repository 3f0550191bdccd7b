"""How finely a tokenizer cuts a language: fertility.

Fertility is tokens per word, where white space separates words. Languages that cut text into words
differently are compared by parity, the tokens of a text over those of its translation (Petrov et
al., "Language model tokenizers introduce unfairness between languages", 2023).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import TargetId


@dataclass(frozen=True, slots=True)
class Fertility:
    """What a tokenizer makes of some texts."""

    tokens: int
    words: int
    bytes: int

    @property
    def tokens_per_word(self) -> float:
        """The fertility itself."""
        return self.tokens / self.words

    @property
    def bytes_per_token(self) -> float:
        """Mean length of a token in bytes."""
        return self.bytes / self.tokens


def measure_fertility(tokenizer: Tokenizer[TargetId], texts: Iterable[str]) -> Fertility:
    """Measure all texts together. Raises: ValueError if there is no word in them."""
    texts = list(texts)
    words = sum(len(text.split()) for text in texts)
    if not words:
        raise ValueError("there is no word in the texts")
    return Fertility(
        tokens=sum(map(len, tokenizer.encode_batch(texts))),
        words=words,
        bytes=sum(len(text.encode()) for text in texts),
    )
