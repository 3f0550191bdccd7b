"""Cutting text into the pieces that BPE works on, and telling which cuts can still move.

Pieces are bytes. Where characters matter, bytes are decoded with `surrogateescape`: a byte that is
not part of valid UTF-8 becomes a lone surrogate, which no pre-tokenizer takes for a letter, a digit
or a space.
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
    """How many bytes at the end of `data` (0 to 3) are an incomplete character.

    Example: `b"za\\xc5"` -> 1, because 0xC5 begins a two-byte character (`ż` is 0xC5 0xBC).
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
    """Cuts text into the pieces that BPE works on."""

    def split(self, text: bytes) -> list[bytes]:
        """Cut `text` into pieces. None is empty, and joined they are the text."""
        ...

    def settled(self, pieces: list[bytes], count: int) -> int:
        """How many of the first `count` pieces of a text stay what they are, whatever follows."""
        ...

    def only_grows(self, piece: bytes) -> bool:
        """Whether `piece`, the last of a text, will be the beginning of a piece whatever follows.

        A splitter may answer no where that is not worth knowing.
        """
        ...


@dataclass(frozen=True)
class RegexSplitter:
    """The pre-tokenizer of a byte-level tokenizer: the matches of one regular expression.

    A match depends on its own characters and one more, except that `\\s+(?!\\S)` and
    `\\s*[\\r\\n]+` look to the end of a run of white space. So the last piece may still change, and
    with it the pieces of white space directly before it.
    """

    pattern: str

    @cached_property
    def _find(self) -> regex.Pattern[str]:
        # A character that no alternative matches is a piece of its own, as with the `tokenizers`
        # library's "isolated" splitting.
        return regex.compile(f"{self.pattern}|.", regex.DOTALL)

    @cached_property
    def _takes_words(self) -> bool:
        """Whether the first alternatives put letters together with the space before them."""
        return self.pattern.startswith(_WORDS_FIRST)

    def split(self, text: bytes) -> list[bytes]:
        """See `Splitter.split`."""
        spelled = text.decode("utf-8", "surrogateescape")
        if self._takes_words and _LETTERS_AND_SPACE.issuperset(spelled):
            # Most text that is drafted and decoded. The expression takes four times as long.
            first, *words = text.split(b" ")
            if all(words):
                pieces = [b" " + word for word in words]
                return [first, *pieces] if first else pieces
        return [as_bytes(match.group()) for match in self._find.finditer(spelled)]

    def settled(self, pieces: list[bytes], count: int) -> int:
        """See `Splitter.settled`."""
        count -= 1
        while count > 0 and _is_space(pieces[count]) and _last_is_space(pieces[count - 1]):
            count -= 1
        return max(count, 0)

    def only_grows(self, piece: bytes) -> bool:
        """See `Splitter.only_grows`: yes after a letter, no after white space.

        A run of white space loses its last character to a word that follows.
        """
        return as_text(piece)[-1:].isalpha()


@dataclass(frozen=True)
class WordSplitter:
    """SentencePiece vocabularies without inner spaces: a run of spaces with the word after it.

    SentencePiece itself does not split, but the result is the same: no token holds a space after
    another character (`has_inner_space`), so no merge crosses the cut.
    """

    def split(self, text: bytes) -> list[bytes]:
        """See `Splitter.split`."""
        if text.rfind(b" ") < 1:  # one word: nearly every call when a corpus is encoded
            return [text] if text else []
        # A regular expression could do this, but right after a pass of the model it took 350 µs
        # instead of 9.
        first, *words = text.split(b" ")
        pieces, spaces = [first] if first else [], b""
        for word in words:
            spaces += b" "
            if word:
                pieces.append(spaces + word)
                spaces = b""
        return [*pieces, spaces] if spaces else pieces

    def settled(self, pieces: list[bytes], count: int) -> int:
        """See `Splitter.settled`."""
        return max(count - 1, 0)

    def only_grows(self, piece: bytes) -> bool:
        """See `Splitter.only_grows`."""
        return True


@dataclass(frozen=True)
class NoSplitter:
    """The whole text is one piece."""

    def split(self, text: bytes) -> list[bytes]:
        """See `Splitter.split`."""
        return [text] if text else []

    def settled(self, pieces: list[bytes], count: int) -> int:
        """See `Splitter.settled`."""
        return 0

    def only_grows(self, piece: bytes) -> bool:
        """No, although it does: examining a whole text at every push would take too long."""
        return False


_WORDS_FIRST = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|",
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+|",
)
"""The beginnings of two expressions: that of Llama 3 and Qwen2.5, and that of GPT-2."""

_LETTERS_AND_SPACE = frozenset(c for c in map(chr, range(0x250)) if c.isalpha() or c == " ")
"""Latin letters only, because all versions of Unicode agree on which of these are letters."""


def _is_space(piece: bytes) -> bool:
    word = piece.lstrip(b" ")
    if word and 0x20 < word[0] < 0x7F:  # nearly always so, and cheaper than decoding
        return False
    return as_text(piece).isspace()


def _last_is_space(piece: bytes) -> bool:
    return as_text(piece)[-1:].isspace()


def has_inner_space(token: bytes) -> bool:
    """Whether a space follows another character inside `token`."""
    return b" " in token.lstrip(b" ")
