"""What only the `tokenizers` library knows: its pre-tokenizers, and the models that are not BPE.

`LibrarySplitter` cuts texts with the library's own pre-tokenizer. What is known here about the
steps is only how far they read (`Reach`), which tells the cuts that no later text can move. After a
step of which that is not known no cut is final: a growing text is cut again as a whole.

An expression that looks back makes the cuts after a place depend on the text before it: on at most
as many characters as it is spelled with, because Oniguruma asks for a known distance. So a text is
cut again from a place only if that gives the same cuts over that distance.

`LibraryEncoder` has a model of the library encode the pieces; `unigram.py` goes on from there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import accumulate, takewhile
from typing import TYPE_CHECKING, Any, cast
from unicodedata import ucd_3_2_0

import regex

from tokalign.errors import VocabularyError, in_one_line, is_complaint
from tokalign.tokenizer.bpe.encoder import PieceEncoder
from tokalign.tokenizer.bpe.expressions import GPT2_PATTERN, NEIGHBOURS, Reach, Reads, looks_back
from tokalign.tokenizer.bpe.pretokenizer import (
    Splitter,
    as_bytes,
    as_text,
    count_pieces,
    incomplete_tail,
)
from tokalign.tokenizer.spec import Step, cuts
from tokalign.tokenizer.spelling import SPACE_MARK, byte_alphabet, write_byte_level
from tokalign.tokenizer.vocabulary import Id, Vocabulary

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Library

_BY_NEIGHBOURS = frozenset(("CharDelimiterSplit", "Digits", "Metaspace", "Punctuation"))
"""Steps that decide about a cut by the characters before and after it."""

_TRIES = 8
"""At how many places it is tried whether a text can be cut again from there."""

_LAST = 256
"""Bytes at the end of a text in which a cut is looked for first."""

_WITHIN = bytes(range(0x80, 0xC0))
"""The bytes of a character but for its first."""

_STRAY = {0xDC00 + byte: chr(0x10FE00 + byte) for byte in range(0x80, 0x100)}
"""What the library reads for a stray byte: a character for private use, no letter, digit or space.
They are spelled in four bytes."""


_KINDS = {
    rf"\p{{{name}}}": character
    for name, character in zip(
        ("Lu", "Ll", "Lt", "Lm", "Lo", "M", "Nd", "N", "P", "S"), "Āāǅʰª\u0301٠²‽∀", strict=True
    )
}
"""What expressions ask about characters, each with a character of that kind. The others are of no
kind, such as U+FFFF."""

_NO_KIND = "\uffff"


class _AsTheLibrary(dict[int, str]):
    """Characters that `regex` and the library's Oniguruma find to be of different kinds, because
    each knows another version of Unicode; each with one that is for both what it is for the
    library. Others stay. Cost: 30 µs for a new character that Unicode 3.2 did not have."""

    def __missing__(self, code: int) -> str:
        character = read = chr(code)
        if ucd_3_2_0.category(character) == "Cn":
            kinds = [kind for kind, remove in self._removers.items() if not remove(character)]
            if kinds != [kind for kind in _KINDS if regex.match(kind, character)]:
                read = _KINDS[kinds[0]] if kinds else _NO_KIND
        self[code] = read
        return read

    @cached_property
    def _removers(self) -> dict[str, Callable[[str], object]]:
        from tokenizers import Regex
        from tokenizers.pre_tokenizers import Split

        return {kind: Split(Regex(kind), "removed").pre_tokenize_str for kind in _KINDS}


_as_the_library = _AsTheLibrary()


def as_read(text: str) -> str:
    """The text, as long, with every character of the kind that it is for the library."""
    return text if text.isascii() else text.translate(_as_the_library)


@contextmanager
def giving_up() -> Iterator[None]:
    """Turn what a tokenizer raises about a text, even a panic in Rust, into a VocabularyError."""
    try:
        yield
    except BaseException as error:
        if not is_complaint(error):
            raise
        raise VocabularyError(
            f"the model's tokenizer gives up on a text ({in_one_line(error)}); choose another model"
        ) from error


class LibrarySplitter(Splitter):
    """Steps of a tokenizer.json's pre-tokenizer, without the space that one may put in front."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self._steps = [_without_prefix(step) for step in steps]
        self._in_bytes = any(step["type"] == "ByteLevel" for step in steps)
        self._first = [*takewhile(lambda step: step["type"] in _BY_NEIGHBOURS, self._steps)]

    @cached_property
    def pre_tokenizer(self) -> Any:
        """The library's object. Raises: VocabularyError for steps that it does not read."""
        pretokenizer = {"type": "Sequence", "pretokenizers": self._steps}
        try:
            return library_of(pre_tokenizer=pretokenizer).pre_tokenizer
        except Exception as error:
            raise VocabularyError(
                f"pre-tokenizes with what the tokenizers library does not read ({error}); download "
                "the file again"
            ) from error

    @cached_property
    def _reaches(self) -> list[Reach] | None:
        """That of the steps up to ByteLevel, and of those after it; None if one is unknown."""
        rest = self._steps[len(self._first) :]
        types = [step["type"] for step in rest]
        middle = 1 + types.index("ByteLevel") if self._in_bytes else len(types)
        parts = (rest[:middle], rest[middle:])
        try:
            reads = [[_reads(step) for step in part if cuts(step)] for part in parts]
            # A text that is cut again from within what such a step left whole may be cut otherwise.
            if any(not one.isolates and one != NEIGHBOURS for one in [*reads[0], *reads[1]][:-1]):
                return None
            return [
                Reach(steps, as_read, is_first=not i) for i, steps in enumerate(filter(None, reads))
            ]
        except (ValueError, regex.error):
            return None

    def split(self, text: bytes) -> list[bytes]:
        """Cost: 8 µs for two words. Raises: VocabularyError if the library drops a part."""
        spelled = as_text(text)
        read = spelled if text.isascii() else spelled.translate(_STRAY)
        cut = self.pre_tokenizer.pre_tokenize_str
        with giving_up():
            found: Sequence[tuple[str, tuple[int, int]]] = cut(read)
        if self._in_bytes:
            ends = list(accumulate(len(piece) for piece, _ in found))
            whole = len(as_bytes(read))
            origin = None if read == spelled else _origins(spelled)
        else:
            ends = [end for _, (_, end) in found]
            starts = [start for _, (start, _) in found]
            whole = len(read) if starts == [0, *ends[:-1]] else -1
            sizes = () if text.isascii() else (len(as_bytes(character)) for character in spelled)
            origin = None if text.isascii() else [0, *accumulate(sizes)]
        if text and (not ends or ends[-1] != whole):
            raise VocabularyError(
                "pre-tokenizes so that a part of a text is lost; choose another model"
            )
        if origin is not None:
            ends = sorted({origin[end] for end in ends} - {0})
        return [text[start:end] for start, end in zip([0, *ends], ends, strict=False)]

    @cached_property
    def _looks_back(self) -> int:
        """How many characters before a place may decide about the cuts after it."""
        splits = [step["pattern"] for step in self._steps if step["type"] == "Split"]
        patterns = [str(pattern.get("Regex", "")) for pattern in splits]
        return max((len(pattern) for pattern in patterns if looks_back(pattern)), default=0)

    def count_settled(self, text: bytes, pieces: Sequence[bytes]) -> int:
        if self._reaches is None:
            return 0
        count, at = self._count_by_neighbours(text, pieces) if self._first else (0, 0)
        if not self._reaches:
            return count
        return count + self._count_after(self._reaches, text[at:], pieces[count:])

    def _count_by_neighbours(self, text: bytes, pieces: Sequence[bytes]) -> tuple[int, int]:
        """How many pieces end at the last cut of the first steps, which cut between two characters
        whatever the others are, so that the later steps begin anew there; and where that is."""
        text = text[: len(text) - incomplete_tail(text)]
        for size in (_LAST, len(text)):
            last = self._first_splitter.split(text[-size:].lstrip(_WITHIN))
            if len(last) > 1:
                return count_pieces(pieces, len(text) - len(last[-1]))
        return 0, 0

    @cached_property
    def _first_splitter(self) -> LibrarySplitter:
        return LibrarySplitter(self._first)

    def _count_after(self, reaches: list[Reach], text: bytes, pieces: Sequence[bytes]) -> int:
        """`count_settled` by the steps after the first ones."""
        count = self._count_final(reaches, text, pieces)
        if not self._looks_back:
            return count
        start, tries = count, _TRIES
        at = end = sum(map(len, pieces[:count]))
        while start and tries:
            start -= 1
            at -= len(pieces[start])
            if len(as_text(text[at:end])) >= self._looks_back:
                if self.split(text[at:]) == list(pieces[start:]):
                    return start
                tries -= 1
        return 0

    def _count_final(self, reaches: list[Reach], text: bytes, pieces: Sequence[bytes]) -> int:
        before, *after = reaches
        if not after:
            return before.count_settled(text, pieces)
        spelled = as_text(text[: len(text) - incomplete_tail(text)])
        alphabet = byte_alphabet()
        in_bytes = "".join([alphabet[b] for b in as_bytes(spelled[: before.end(spelled)])])
        # The steps after ByteLevel cut bytes. A cut at the very end is left open: it may be no cut.
        count, at = count_pieces(pieces, after[0].end(in_bytes) - 1)
        while count and text[at] & 0xC0 == 0x80:  # nothing is cut again from within a character
            count -= 1
            at -= len(pieces[count])
        return count


class MetaspaceSplitter(LibrarySplitter):
    """A Metaspace that cuts before every space; only marks in a text are left to the library."""

    def split(self, text: bytes) -> list[bytes]:
        return super().split(text) if _MARK in text else _FROM_SPACES.findall(text)


_MARK = SPACE_MARK.encode()

_FROM_SPACES = re.compile(b" [^ ]*|[^ ]+")


def library_of(*, pre_tokenizer: Step | None = None, normalizer: Step | None = None) -> Library:
    """An empty BPE tokenizer of the library with these parts of a tokenizer.json."""
    from tokenizers import Tokenizer as Library

    model = {"type": "BPE", "vocab": {}, "merges": []}
    parts = {"model": model, "pre_tokenizer": pre_tokenizer, "normalizer": normalizer}
    rest = {"post_processor": None, "decoder": None, "truncation": None, "padding": None}
    return Library.from_str(json.dumps({"version": "1.0", "added_tokens": [], **parts, **rest}))


def _without_prefix(step: Step) -> Step:
    """The same step, without a space in front: the bytes that are cut have theirs already."""
    if step["type"] == "Metaspace":
        kept = {key: value for key, value in step.items() if key != "add_prefix_space"}
        return {**kept, "prepend_scheme": "never"}
    return {**step, "add_prefix_space": False} if step["type"] == "ByteLevel" else step


def _reads(step: Step) -> Reads:
    """What a step reads. Raises: ValueError where that is not known."""
    match step:
        case {"type": "ByteLevel"}:
            return Reads(GPT2_PATTERN)
        case {"type": "Split", "pattern": {"String": str(spelled)}}:
            return Reads(str(regex.escape(spelled)), _isolates(step))
        case {"type": "Split", "pattern": {"Regex": str(pattern)}}:
            return Reads(pattern, _isolates(step))
        case {"type": str(kind)} if kind in _BY_NEIGHBOURS:
            return NEIGHBOURS
    raise ValueError(step["type"])


def _isolates(split: Step) -> bool:
    behavior, inverted = split["behavior"], bool(split["invert"])
    return behavior == "Isolated" or (behavior == "Removed" and inverted)


def _origins(text: str) -> list[int]:
    """For each byte that the library reads for `text`, where it comes from; and the end."""
    origin: list[int] = []
    at = 0
    for character in text:
        size = len(as_bytes(character))
        origin += [at] * 4 if ord(character) in _STRAY else range(at, at + size)
        at += size
    return [*origin, at]


class LibraryEncoder(PieceEncoder[Id]):
    """A canonical encoder whose pieces a `model` of the library encodes.

    by_characters: whether it reads characters, or the byte alphabet. cut: divides a text so that no
    part of it is a special token, which a model may have as well. A byte that is not part of valid
    UTF-8 is spelled by byte fallback, or lost.
    """

    def __init__(
        self,
        model: Any,
        vocabulary: Vocabulary[Id],
        splitter: Splitter,
        *,
        by_characters: bool,
        added: Mapping[bytes, Id],
        cut: Callable[[str], Sequence[str]],
    ) -> None:
        spelled = {token[0] for token in vocabulary.id_of if len(token) == 1}
        super().__init__(
            tokens=vocabulary.tokens,
            fallback=vocabulary.fallback,
            splitter=splitter,
            added=added,
            missing=frozenset(range(256)) - spelled if not by_characters else frozenset(),
        )
        self._model, self._by_characters, self._cut = model, by_characters, cut
        self._bytes = {vocabulary.tokens[i]: i for i in vocabulary.fallback}

    def _encode_piece(self, piece: bytes) -> tuple[Id, ...]:
        if piece in self.added:
            return (self.added[piece],)
        if not self._by_characters:
            return tuple(self._ids(write_byte_level([piece])[0]))
        ids: list[Id] = []
        text = ""
        for character in as_text(piece):
            if 0xDC80 <= ord(character) <= 0xDCFF:
                ids += self._ids(text)
                byte = bytes([ord(character) - 0xDC00])
                ids += [self._bytes[byte]] if byte in self._bytes else []
                text = ""
            else:
                text += character
        return (*ids, *self._ids(text))

    def _ids(self, text: str) -> Sequence[Id]:
        parts = self._cut(text.replace(" ", SPACE_MARK)) if text else ()
        return [cast("Id", token.id) for part in parts for token in self._model.tokenize(part)]
