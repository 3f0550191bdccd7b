"""How finely a tokenizer cuts a language, and whether that goes with what a dictionary saves.

Fertility is tokens per word, a word being what white space separates; parity is the tokens of a
text over those of its translation (Petrov et al., "Language model tokenizers introduce unfairness
between languages", 2023). Parity compares languages that cut text into words differently.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import sqrt

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
        return self.tokens / self.words

    @property
    def bytes_per_token(self) -> float:
        return self.bytes / self.tokens


def measure_fertility(tokenizer: Tokenizer[TargetId], texts: Iterable[str]) -> Fertility:
    """Of all texts together. Raises: ValueError where they hold no word."""
    texts = list(texts)
    words = sum(len(text.split()) for text in texts)
    if not words:
        raise ValueError("there is no word in the texts")
    return Fertility(
        tokens=sum(map(len, tokenizer.encode_batch(texts))),
        words=words,
        bytes=sum(len(text.encode()) for text in texts),
    )


def pearson(xs: Sequence[float], ys: Sequence[float]) -> float:
    """Pearson's r of two series of one length (2 or more); nan where one does not vary."""
    if len(xs) != len(ys) or len(xs) < 2:
        raise ValueError(f"{len(xs)} and {len(ys)} values; give as many of both, at least 2")
    mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
    both = sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True))
    spread = sum((x - mean_x) ** 2 for x in xs) * sum((y - mean_y) ** 2 for y in ys)
    return both / sqrt(spread) if spread else float("nan")
