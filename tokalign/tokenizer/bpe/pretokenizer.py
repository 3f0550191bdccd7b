"""Cutting text into the pieces that a tokenizer's model works on, and telling which cuts are final.

Pieces are bytes. Where characters matter, bytes are decoded with `surrogateescape`: a byte that is
not part of valid UTF-8 becomes a lone surrogate, which no pre-tokenizer takes for a letter, a digit
or a space. `expressions.py` has the splitter of one expression, and `tokenizer/library.py` the one
that asks the `tokenizers` library.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import regex


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


class Splitter(ABC):
    """Cuts text into the pieces that a tokenizer's model works on.

    merges_decide: whether no merge crosses a cut anyway, so that cutting only saves time.
    cuts_at_spaces: whether, besides, the cuts are those before each run of spaces.
    """

    merges_decide = False
    cuts_at_spaces = False

    @abstractmethod
    def split(self, text: bytes) -> list[bytes]:
        """Cut `text` into pieces. None is empty, and joined they are the text."""

    @abstractmethod
    def count_settled(self, text: bytes, pieces: Sequence[bytes]) -> int:
        """How many of the first `pieces` of `text` stay what they are, whatever follows. text:
        begins with the text or at a final cut. The answer may be too small, never too large."""

    def completion(self, text: bytes) -> bytes:
        """What makes an added token of the end of `text`; b"" where there is none."""
        return b""


def count_pieces(pieces: Sequence[bytes], end: int) -> tuple[int, int]:
    """How many leading pieces end at byte `end` or before it, and where the last of them ends."""
    count = at = 0
    for piece in pieces:
        if at + len(piece) > end:
            break
        at += len(piece)
        count += 1
    return count, at


class WholeSplitter(Splitter):
    """Where texts are not cut, and more than merges decides about a piece."""

    def split(self, text: bytes) -> list[bytes]:
        return [text] if text else []

    def count_settled(self, text: bytes, pieces: Sequence[bytes]) -> int:
        return 0


class WordSplitter(Splitter):
    """Where texts are not cut: a run of spaces with the word after it is a piece nevertheless.

    No merge crosses such a cut, because no token holds a space after another character. The few
    tokens that do (Gemma's `>▁</`) are `spanning`: they join the words around them.
    """

    merges_decide = True

    def __init__(self, spanning: Sequence[bytes] = ()) -> None:
        self.cuts_at_spaces = not spanning
        self._spanning = _AnyOf(spanning) if spanning else None

    def split(self, text: bytes) -> list[bytes]:
        if text.rfind(b" ") < 1:  # one word: nearly every call when a corpus is encoded
            return [text] if text else []
        # Right after a pass of the model, a regular expression took 350 µs for this instead of 9.
        first, *words = text.split(b" ")
        pieces, spaces = [first] if first else [], 0
        for word in words:
            spaces += 1
            if word:
                pieces.append(b" " * spaces + word)
                spaces = 0
        pieces = [*pieces, b" " * spaces] if spaces else pieces
        if self._spanning is None:
            return pieces
        spans = [m.span() for m in self._spanning.find.finditer(text, overlapped=True)]
        return _joined(pieces, spans) if spans else pieces

    def count_settled(self, text: bytes, pieces: Sequence[bytes]) -> int:
        before_last = max(len(pieces) - 1, 0)
        if self._spanning is None:
            return before_last
        return min(count_pieces(pieces, self._spanning.end(text))[0], before_last)


def _joined(pieces: list[bytes], spans: Sequence[tuple[int, int]]) -> list[bytes]:
    """The pieces, those joined between which a span of bytes lies across the cut. spans: in the
    order in which they begin."""
    joined, at = [pieces[0]], len(pieces[0])
    begun = reach = 0  # how many spans begin before the cut, and how far they reach
    for piece in pieces[1:]:
        while begun < len(spans) and spans[begun][0] < at:
            reach = max(reach, spans[begun][1])
            begun += 1
        if reach > at:
            joined[-1] += piece
        else:
            joined.append(piece)
        at += len(piece)
    return joined


class _AnyOf:
    """Some tokens as an expression: `find` finds them, the longest first."""

    def __init__(self, tokens: Sequence[bytes]) -> None:
        either = b"|".join(map(regex.escape, sorted(tokens, key=len, reverse=True)))
        self.find = regex.compile(either)
        self._longest = max(map(len, tokens))
        self._never = regex.compile(b"(?:" + either + b")(?!)")

    def end(self, text: bytes) -> int:
        """Where the end of `text` begins that may become a token; its length if there is none."""
        found = self._never.search(text, max(0, len(text) - self._longest), partial=True)
        return found.start() if found is not None else len(text)


class AddedTokenSplitter(Splitter):
    """Cuts out the `added` tokens that are found in ordinary text, before the `rest` cuts.

    They are found from left to right, the longest first, as the `tokenizers` library finds them.
    Gemma 3 has runs of line ends and tabs, and HTML tags; GPT-NeoX runs of spaces.
    """

    def __init__(self, added: Sequence[bytes], rest: Splitter) -> None:
        self._added, self._rest, self._any = frozenset(added), rest, _AnyOf(added)

    def split(self, text: bytes) -> list[bytes]:
        pieces: list[bytes] = []
        end = 0
        for match in self._any.find.finditer(text):
            if match.start() > end:
                pieces += self._rest.split(text[end : match.start()])
            pieces.append(match.group())
            end = match.end()
        return [*pieces, *self._rest.split(text[end:])] if end < len(text) else pieces

    def count_settled(self, text: bytes, pieces: Sequence[bytes]) -> int:
        # An added token at the end may become longer, and any end of the text may become one.
        end = self._any.end(text)
        count, _ = count_pieces(pieces, end)
        settled = max((i for i in range(count) if pieces[i] in self._added), default=-1) + 1
        start = sum(map(len, pieces[:settled]))
        # With the piece that begins before `end` or there: to the rest it is the one that is open.
        stretch = pieces[settled : count + 1]
        return settled + (self._rest.count_settled(text[start:end], stretch) if stretch else 0)

    def completion(self, text: bytes) -> bytes:
        if not (begun := text[self._any.end(text) :]):
            return b""
        longer = [token for token in self._added if token.startswith(begun) and token != begun]
        return min(longer, default=begun)[len(begun) :]


def has_inner_space(token: bytes) -> bool:
    """Whether a space follows another character inside `token`."""
    return b" " in token.lstrip(b" ")
