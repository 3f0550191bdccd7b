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

from tokalign.errors import VocabularyError


def as_text(data: bytes | bytearray) -> str:
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

    What is between matches is a piece too, as with the `tokenizers` library's "isolated" splitting.

    A match of most published expressions depends on its own characters and one more, except that
    `\\s+(?!\\S)` and `\\s*[\\r\\n]+` look to the end of a run of white space. So the last piece may
    still change, and with it the pieces of white space directly before it. Some look further: with
    GPT-2's, an `e` after `'r` makes one piece of two; with Mistral NeMo's and GPT-4o's, `中AAA` is
    two pieces and `中AAAa` is one, because 中 may stand for a capital or a small letter. How far
    others look is not known; with them no piece is settled, which is slower, but never wrong.
    """

    pattern: str

    @cached_property
    def _find(self) -> regex.Pattern[str]:
        if self.is_known:  # a character that no alternative matches is a piece of its own
            return regex.compile(f"{self.pattern}|(?s:.)")
        return regex.compile(self.pattern)

    @cached_property
    def is_known(self) -> bool:
        """Whether the expression is one whose time and whose reach are known."""
        return self.pattern in _KNOWN

    @cached_property
    def _reach(self) -> int:
        """How many characters after a piece decide where it ends."""
        return _KNOWN[self.pattern]

    @cached_property
    def _takes_words(self) -> bool:
        """Whether the first alternatives put letters together with the space before them."""
        return self.pattern.startswith(_WORDS_FIRST)

    @cached_property
    def _cuts_by_case(self) -> bool:
        """Whether a word ends where a capital follows a small letter."""
        return self.pattern.startswith(_WORDS_BY_CASE[0])

    def split(self, text: bytes) -> list[bytes]:
        """See `Splitter.split`.

        Raises: VocabularyError if an expression that is not known takes 100 times too long.
        """
        spelled = text.decode("utf-8", "surrogateescape")
        if self._takes_words and _LETTERS_AND_SPACE.issuperset(spelled):
            # Most text that is drafted and decoded. The expression takes four times as long.
            first, *words = text.split(b" ")
            if all(words):
                pieces = [b" " + word for word in words]
                return [first, *pieces] if first else pieces
        if self.is_known:
            return [as_bytes(match.group()) for match in self._find.finditer(spelled)]
        return [as_bytes(piece) for piece in self._isolate(spelled)]

    def _isolate(self, text: str) -> list[str]:
        """The matches and what is between them. A limit of time costs half as much again."""
        pieces, end = [], 0
        limit = _SECONDS + len(text) * _SECONDS_PER_CHARACTER
        try:
            for match in self._find.finditer(text, timeout=limit):
                pieces += [text[end : match.start()], match.group()]
                end = match.end()
        except TimeoutError as error:
            raise VocabularyError(
                f"pre-tokenizes with a regular expression that takes more than {limit:.1f} s for "
                f"{len(text):,} characters ({self.pattern[:60]!r}); choose another model"
            ) from error
        return [piece for piece in (*pieces, text[end:]) if piece]

    def settled(self, pieces: list[bytes], count: int) -> int:
        """See `Splitter.settled`."""
        if not self.is_known:
            return 0
        last, count = count, count - 1
        while count > 0 and _count_characters(pieces[count:last], self._reach) < self._reach:
            count -= 1
        while count > 0 and _is_space(pieces[count]) and _last_is_space(pieces[count - 1]):
            count -= 1
        while self._cuts_by_case and count > 0 and _may_join(pieces[count - 1], pieces[count]):
            count -= 1
        return max(count, 0)

    def only_grows(self, piece: bytes) -> bool:
        """See `Splitter.only_grows`: yes after a letter, no after white space.

        A run of white space loses its last character to a word that follows.
        """
        return self.is_known and as_text(piece)[-1:].isalpha()


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


_CONTRACTIONS = "'s|'t|'re|'ve|'m|'ll|'d"
_ENDINGS = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"

_WORDS_FIRST = (
    rf"(?i:{_CONTRACTIONS})|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|",
    rf"{_CONTRACTIONS}| ?\p{{L}}+|",
    rf"(?i:{_CONTRACTIONS})|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|",
)
"""How the expressions of Llama 3 and Qwen2.5, of GPT-2, and of Qwen3.5 begin."""

_BIG, _SMALL = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CAPITALS, _OF_NO_CASE = regex.compile(_BIG), regex.compile(r"[\p{Lm}\p{Lo}\p{M}]")

_WORDS_BY_CASE = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_BIG}*{_SMALL}+",
    rf"[^\r\n\p{{L}}\p{{N}}]?{_BIG}+{_SMALL}*",
)
_ENDINGS_WITH_SLASH = _ENDINGS.replace(r"+[\r\n]*|", r"+[\r\n/]*|")
_ENDINGS_WITH_MARKS = _ENDINGS.replace(r"\p{N}]+", r"\p{M}\p{N}]+")

_KNOWN = {
    _WORDS_FIRST[0] + r"\p{N}{1,3}" + _ENDINGS: 1,  # Llama 3
    _WORDS_FIRST[0] + r"\p{N}" + _ENDINGS: 1,  # Qwen2.5
    _WORDS_FIRST[2] + r"\p{N}" + _ENDINGS_WITH_MARKS: 1,  # Qwen3.5
    "|".join(_WORDS_BY_CASE) + r"|\p{N}" + _ENDINGS_WITH_SLASH: 1,  # Mistral NeMo
    "|".join(f"{word}(?i:{_CONTRACTIONS})?" for word in _WORDS_BY_CASE)
    + r"|\p{N}{1,3}"
    + _ENDINGS_WITH_SLASH: 3,  # GPT-4o
    _WORDS_FIRST[1] + r" ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+": 2,  # GPT-2
}
"""Expressions that take linear time, and how many characters after a piece decide its end."""

_SECONDS, _SECONDS_PER_CHARACTER = 2.0, 2e-5
"""The time that any other expression may take: 100 times what the known ones need."""

_LETTERS_AND_SPACE = frozenset(c for c in map(chr, range(0x250)) if c.isalpha() or c == " ")
"""Latin letters only, because all versions of Unicode agree on which of these are letters."""


def _is_space(piece: bytes) -> bool:
    word = piece.lstrip(b" ")
    if word and 0x20 < word[0] < 0x7F:  # nearly always so, and cheaper than decoding
        return False
    return as_text(piece).isspace()


def _last_is_space(piece: bytes) -> bool:
    return as_text(piece)[-1:].isspace()


def _may_join(before: bytes, after: bytes) -> bool:
    """Whether a small letter after the capitals of `after` could make one word of both pieces."""
    letter = _OF_NO_CASE.match(as_text(before)[-1:])
    return letter is not None and _CAPITALS.match(as_text(after)) is not None


def _count_characters(pieces: list[bytes], enough: int) -> int:
    """How many characters the pieces have, counted up to `enough` or more."""
    if enough <= 1:
        return len(pieces)
    count = 0
    for piece in pieces:
        count += len(as_text(piece))
        if count >= enough:
            break
    return count


def has_inner_space(token: bytes) -> bool:
    """Whether a space follows another character inside `token`."""
    return b" " in token.lstrip(b" ")
