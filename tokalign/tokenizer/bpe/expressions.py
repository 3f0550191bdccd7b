"""Cutting text by expressions, as `regex` reads them: pieces, and how far from the end cuts move.

`KNOWN_PATTERNS` are those that `regex` reads as the `tokenizers` library does. Of other expressions
only their `Reach` is asked here; the library itself cuts by them (`tokenizer/library.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import regex

from tokalign.tokenizer.bpe.pretokenizer import (
    Splitter,
    as_bytes,
    as_text,
    count_pieces,
    incomplete_tail,
)


class Reads(NamedTuple):
    """The expression by which a step cuts; isolates: whether its matches are pieces."""

    pattern: str
    isolates: bool = True


NEIGHBOURS = Reads("(?s:.)(?=(?s:.))", isolates=False)
"""What a step reads that decides about a cut by the characters before and after it."""


class Reach:
    """How far from the end of a text its cuts may still move.

    A step of a pre-tokenizer goes through the text from left to right. A cut is final if nothing
    that was decided before it has read the end of the text. `regex` tells: a partial match is an
    attempt that has come to the end. What an attempt has matched is atomic, for nothing else would
    be tried in its place.

    The first step attempts a match where the one before has ended, or one character on. So an
    expression that goes on like that, and can never match as a whole, matches partially where the
    first attempt comes to the end. The later steps begin anew in every piece: for them, attempts at
    all places count, in time that is quadratic in a long word after other text.

    Example (Llama 3): after " ma kota" the attempt at " kota" has read the end, for a letter more
    would belong to it. The cut before it is final.

    steps: in their order. Where an earlier one may still cut otherwise, the text ends for a later
        one. is_first: whether none cuts before these. as_read: see `library.py`. Raises:
        regex.error for an expression that `regex` does not know.
    """

    def __init__(
        self, steps: Sequence[Reads], as_read: Callable[[str], str], *, is_first: bool = True
    ) -> None:
        self._as_read = as_read
        read = [_OUTSIDE_SETS.sub(_reading, step.pattern) for step in steps]
        self._open = [regex.compile(f"(?mV1)(?>{one})(?!)") for one in read]
        self._walk = regex.compile(f"(?mV1)(?:(?>{read[0]}|(?s:.))())*+(?!)") if is_first else None
        self._match = [regex.compile(f"(?mV1){step.pattern}") for step in steps if step.isolates]

    def end(self, text: str) -> int:
        """Where the text begins in which cuts may still move, as an index into `text`. A step may
        name a character that is of no kind yet, so that it counts as it is, too."""
        ends = []
        for read in {text, self._as_read(text)}:
            end, steps = len(text), self._open
            if self._walk and (found := self._walk.match(read, partial=True)):
                end = max(found.start(self._walk.groups), 0)  # that of the last complete attempt
                steps = steps[1:]
            for step in steps:
                # One attempt where the text begins is cheap; a search is quadratic in a long word.
                found = step.match(read, endpos=end, partial=True) or step.search(
                    read, endpos=end, partial=True
                )
                end = found.start() if found is not None else end
            ends.append(end)
        return min(ends)

    def count_settled(self, text: bytes, pieces: Sequence[bytes]) -> int:
        """`Splitter.count_settled` of the pieces that these steps cut. The last piece is settled
        only if a step matches exactly that piece, and none that comes before it goes on after it:
        from there it would match other text."""
        spelled = as_text(text[: len(text) - incomplete_tail(text)])
        count, at = count_pieces(pieces, len(as_bytes(spelled[: self.end(spelled)])))
        read, is_last = self._as_read(spelled), True
        while count:
            end, at = at, at - len(pieces[count - 1])
            start = len(as_text(text[:at]))
            size = len(as_text(text[at:end]))
            found = (m for step in self._match if (m := step.match(read, start)) is not None)
            matched = next((m.end() - start for m in found), 0)
            if matched == size or (matched < size and not is_last):
                break
            count, is_last = count - 1, False
        return count


_OUTSIDE_SETS = regex.compile(
    r"(?P<set>\[\^?\]?(?:\\.|[^\]\\])*\])|(?P<end>\\[bBZz]|\$)|\(\?<[=!]|\\[AGK]|\^|\\."
)
"""A set, what asks whether the text ends here, and what looks back; or an escaped character."""


def _reading(found: regex.Match[str]) -> str:
    """An expression's part, which reads the next character where it asks whether there is one."""
    return f"(?=(?s:..)|){found[0]}" if found["end"] else found[0]


def looks_back(pattern: str) -> bool:
    """Whether what an expression matches depends on the characters before."""
    looking = ("(?<=", "(?<!", r"\b", r"\B", r"\A", r"\G", r"\K", "^")
    return any(found[0] in looking for found in _OUTSIDE_SETS.finditer(pattern))


class RegexSplitter(Splitter):
    """The pre-tokenizer of a byte-level tokenizer whose one expression is among `KNOWN_PATTERNS`.
    Its matches are the pieces; a character that no alternative matches is a piece of its own.
    as_read: see `library.py`."""

    def __init__(self, pattern: str, as_read: Callable[[str], str]) -> None:
        self._as_read = as_read
        self._find = regex.compile(f"{pattern}|(?s:.)")
        self._reach = Reach([Reads(f"{pattern}|(?s:.)")], as_read)
        # Whether the first alternatives put letters together with the space before them.
        self._takes_words = pattern.startswith(_WORDS_FIRST)

    def split(self, text: bytes) -> list[bytes]:
        spelled = text.decode("utf-8", "surrogateescape")
        if self._takes_words and _LETTERS_AND_SPACE.issuperset(spelled):
            # Most text that is drafted and decoded. The expression takes four times as long.
            first, *words = text.split(b" ")
            if all(words):
                pieces = [b" " + word for word in words]
                return [first, *pieces] if first else pieces
        read = self._as_read(spelled)
        spans = (match.span() for match in self._find.finditer(read))
        return [as_bytes(spelled[start:end]) for start, end in spans]

    def word_around(self, text: bytes, at: int) -> tuple[int, int] | None:
        """Begin and end of the word that holds the byte before `at`, if `text` is plain words.
        Whatever follows `text`, it begins and ends there; at the end of the text, it may go on."""
        spelled = text.decode("utf-8", "surrogateescape")
        if not self._takes_words or not _LETTERS_AND_SPACE.issuperset(spelled):
            return None
        if b"  " in text or text[-1:] == b" ":
            return None
        end = text.find(b" ", at)
        return max(0, text.rfind(b" ", 0, at)), len(text) if end < 0 else end

    def count_settled(self, text: bytes, pieces: Sequence[bytes]) -> int:
        return self._reach.count_settled(text, pieces)


_CONTRACTIONS = "'s|'t|'re|'ve|'m|'ll|'d"
_ENDINGS = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"

_WORDS_FIRST = (
    rf"(?i:{_CONTRACTIONS})|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|",
    rf"{_CONTRACTIONS}| ?\p{{L}}+|",
    rf"(?i:{_CONTRACTIONS})|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|",
)
"""How the expressions of Llama 3 and Qwen2.5, of GPT-2, and of Qwen3.5 begin."""

_BIG, _SMALL = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_WORDS_BY_CASE = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_BIG}*{_SMALL}+",
    rf"[^\r\n\p{{L}}\p{{N}}]?{_BIG}+{_SMALL}*",
)
_ENDINGS_WITH_SLASH = _ENDINGS.replace(r"+[\r\n]*|", r"+[\r\n/]*|")
_ENDINGS_WITH_MARKS = _ENDINGS.replace(r"\p{N}]+", r"\p{M}\p{N}]+")

GPT2_PATTERN = _WORDS_FIRST[1] + r" ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""What `ByteLevel(use_regex=True)` means (tokenizers, `pre_tokenizers/byte_level.rs`)."""

KNOWN_PATTERNS = frozenset(
    (
        _WORDS_FIRST[0] + r"\p{N}{1,3}" + _ENDINGS,  # Llama 3
        _WORDS_FIRST[0] + r"\p{N}" + _ENDINGS,  # Qwen2.5
        _WORDS_FIRST[2] + r"\p{N}" + _ENDINGS_WITH_MARKS,  # Qwen3.5
        "|".join(_WORDS_BY_CASE) + r"|\p{N}" + _ENDINGS_WITH_SLASH,  # Mistral NeMo
        "|".join(f"{word}(?i:{_CONTRACTIONS})?" for word in _WORDS_BY_CASE)
        + r"|\p{N}{1,3}"
        + _ENDINGS_WITH_SLASH,  # GPT-4o
        GPT2_PATTERN,
    )
)
"""Expressions that `regex` reads as the library does (of `as_read`), in a quarter of the time for
short texts."""

_LETTERS_AND_SPACE = frozenset(c for c in map(chr, range(0x250)) if c.isalpha() or c == " ")
"""Latin letters only, because all versions of Unicode agree on which of these are letters."""
