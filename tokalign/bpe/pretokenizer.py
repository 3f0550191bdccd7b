"""Cutting text into the pieces that BPE works on, and knowing which cuts can still move.

Pieces are bytes. Where characters matter, bytes are decoded with `surrogateescape`: one that is not
part of valid UTF-8 becomes a lone surrogate, neither letter, digit nor space to any pre-tokenizer.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import regex


def as_text(data: bytes) -> str:
    """Bytes as text, losslessly; stray bytes become lone surrogates."""
    return data.decode("utf-8", "surrogateescape")


def as_bytes(text: str) -> bytes:
    """The inverse of `as_text`."""
    return text.encode("utf-8", "surrogateescape")


def incomplete_tail(data: bytes | bytearray) -> int:
    """How many bytes at the end of `data` (0-3) may still become a character.

    Example: `b"za\\xc5"` -> 1, because 0xC5 opens a two-byte character (`ż` is 0xC5 0xBC).
    """
    for back in range(1, min(3, len(data)) + 1):
        byte = data[-back]
        if byte >= 0xC0:
            needed = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return back if needed > back and byte < 0xF8 else 0
        if byte < 0x80:
            return 0
    return 0


class Splitter(Protocol):
    """Cuts text into pieces. Every piece is non-empty and the pieces concatenate to the text."""

    def split(self, text: bytes) -> list[bytes]: ...

    def settled(self, pieces: list[bytes], count: int) -> int:
        """How many leading pieces of a text, its first `count` pieces, stay whatever follows."""
        ...

    def only_grows(self, piece: bytes) -> bool:
        """Whether `piece`, at the end of a text, stays the beginning of a piece in any case."""
        ...

    @property
    def name(self) -> str:
        """What the fingerprint records of this splitter."""
        ...


@dataclass(frozen=True)
class RegexSplitter:
    """The pre-tokenizer of a byte-level tokenizer: the matches of one regular expression.

    A match is decided by its own characters and one more, except that `\\s+(?!\\S)` and
    `\\s*[\\r\\n]+` look to the end of a run of white space. So the last piece may still change, and
    with it the pieces of white space directly before it.
    """

    pattern: str

    @cached_property
    def _find(self) -> regex.Pattern[str]:
        # A character no alternative matches is a piece of its own, as "Isolated" splitting has it.
        return regex.compile(f"{self.pattern}|.", regex.DOTALL)

    @property
    def name(self) -> str:
        return f"regex:{self.pattern}"

    @cached_property
    def _takes_words(self) -> bool:
        """Whether letters go together with the space before them, in front of all other rules."""
        return self.pattern.startswith(_WORDS_FIRST)

    def split(self, text: bytes) -> list[bytes]:
        spelled = text.decode("utf-8", "surrogateescape")
        if self._takes_words and _LETTERS_AND_SPACE.issuperset(spelled):
            # Most of what is drafted and decoded; the expression takes four times as long.
            first, *words = text.split(b" ")
            if all(words):
                pieces = [b" " + word for word in words]
                return [first, *pieces] if first else pieces
        return [as_bytes(match.group()) for match in self._find.finditer(spelled)]

    def settled(self, pieces: list[bytes], count: int) -> int:
        count -= 1
        while count > 0 and _is_space(pieces[count]) and _last_is_space(pieces[count - 1]):
            count -= 1
        return max(count, 0)

    def only_grows(self, piece: bytes) -> bool:
        # Behind a letter a piece ends or goes on; runs of white space give back their last one.
        return as_text(piece)[-1:].isalpha()


@dataclass(frozen=True)
class WordSplitter:
    """SentencePiece without a space inside any piece: a run of spaces with the word behind it.

    Exact, not a heuristic: no token holds a space after another character, so no merge can cross
    the cut. `has_inner_space` says whether a vocabulary allows it.
    """

    name: str = "words"

    def split(self, text: bytes) -> list[bytes]:
        if text.rfind(b" ") < 1:  # a single word, which is what encoding a corpus mostly asks about
            return [text] if text else []
        # A regular expression does it too, but behind a model's pass that took 350 µs instead of 9.
        first, *words = text.split(b" ")
        pieces, spaces = [first] if first else [], b""
        for word in words:
            spaces += b" "
            if word:
                pieces.append(spaces + word)
                spaces = b""
        return [*pieces, spaces] if spaces else pieces

    def settled(self, pieces: list[bytes], count: int) -> int:
        return max(count - 1, 0)

    def only_grows(self, piece: bytes) -> bool:
        return True


@dataclass(frozen=True)
class NoSplitter:
    """The whole text as one piece."""

    name: str = "none"

    def split(self, text: bytes) -> list[bytes]:
        return [text] if text else []

    def settled(self, pieces: list[bytes], count: int) -> int:
        return 0

    def only_grows(self, piece: bytes) -> bool:
        return False  # it does, but to look into a whole text at every push takes too long


_WORDS_FIRST = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|",
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+|",
)
"""How the expressions of Llama 3 and Qwen2.5, and of GPT-2, begin."""

_LETTERS_AND_SPACE = frozenset(c for c in map(chr, range(0x250)) if c.isalpha() or c == " ")
"""Latin ones: what is a letter there has been one in every version of Unicode."""


def _is_space(piece: bytes) -> bool:
    word = piece.lstrip(b" ")
    if word and 0x20 < word[0] < 0x7F:  # nearly always, and cheaper than to decode it
        return False
    return as_text(piece).isspace()


def _last_is_space(piece: bytes) -> bool:
    return as_text(piece)[-1:].isspace()


def has_inner_space(token: bytes) -> bool:
    """Whether a space follows another character inside `token`."""
    return b" " in token.lstrip(b" ")
