"""How far from the end of a text the cuts of regular expressions may still move."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import regex

from tokalign.tokenizer.bpe.utf8 import as_bytes, as_text, incomplete_tail


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


def count_pieces(pieces: Sequence[bytes], end: int) -> tuple[int, int]:
    """How many leading pieces end at byte `end` or before it, and where the last of them ends."""
    count = at = 0
    for piece in pieces:
        if at + len(piece) > end:
            break
        at += len(piece)
        count += 1
    return count, at
