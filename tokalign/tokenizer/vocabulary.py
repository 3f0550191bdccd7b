"""Vocabularies as bytes: the only currency that two tokenizers share.

A vocabulary maps an id to the **bytes** it stands for. Special tokens stand for no bytes; they have
*roles*. How a tokenizer's file spells these bytes (the byte-level alphabet with its `Ġ`,
SentencePiece's `▁`, `<0x0A>`) is inverted where the file is read, and written again for the
`tokenizers` library.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Generic, NewType, cast

import numpy as np
import regex

from tokalign.tokenizer.bpe import Id as Id

DraftId = NewType("DraftId", int)
"""An id of the draft model's tokenizer."""

TargetId = NewType("TargetId", int)
"""An id of the target model's tokenizer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Roles(Generic[Id]):
    """What the special tokens of a vocabulary are for: their ids, or None where there is none.

    eos: every token that ends a text or a turn.
    Two vocabularies are matched by roles, never by spelling: Bielik's `<|im_end|>` and Llama's
    `<|eot_id|>` are both `turn_end`.
    """

    bos: Id | None = None
    eos: frozenset[Id] = frozenset()
    turn_start: Id | None = None
    turn_end: Id | None = None


@dataclass(frozen=True, kw_only=True)
class Vocabulary(Generic[Id]):
    """One tokenizer's vocabulary: id -> bytes, and the roles of its special tokens.

    `tokens[i]` is `b""` exactly when `i` is special. `fallback` holds the ids that spell a single
    byte because no literal piece does (SentencePiece's `<0xNN>`).

    Example (Bielik): the id of `▁Al` has the bytes `b" Al"`, that of `<0x0A>` has `b"\\n"`.
    """

    tokens: tuple[bytes, ...]
    fallback: frozenset[Id]
    specials: Mapping[Id, str]
    roles: Roles[Id]

    def __len__(self) -> int:
        return len(self.tokens)

    @cached_property
    def id_of(self) -> Mapping[bytes, Id]:
        """bytes -> id. A literal piece wins over byte fallback, then the lower id wins."""
        ids = cast("Iterable[Id]", range(len(self.tokens) - 1, -1, -1))
        found = dict(zip(reversed(self.tokens), ids, strict=True))
        found.pop(b"", None)
        if self.fallback:
            bytewise = [(i, token) for i, token in enumerate(self.tokens) if len(token) == 1]
            literal = [(i, token) for i, token in bytewise if i not in self.fallback]
            found |= {token: cast("Id", i) for i, token in reversed(literal)}
        return found

    @cached_property
    def special_ids(self) -> Mapping[str, Id]:
        """spelling -> id, for templates that write special tokens as text."""
        return {spelling: token for token, spelling in self.specials.items()}

    def bytes_of(self, ids: Iterable[Id]) -> bytes:
        """The bytes that `ids` stand for; special tokens contribute nothing."""
        tokens = self.tokens
        return b"".join([tokens[i] for i in ids])


def token_bytes(tokens: Sequence[bytes], token: int) -> bytes:
    """A token's bytes; b"" for ids beyond the vocabulary, which padded models have."""
    return tokens[token] if token < len(tokens) else b""


# -- how files spell bytes -------------------------------------------------------------------------

SPACE_MARK = "▁"
"""SentencePiece's spelling of a space."""

_BYTE = re.compile("<0x[0-9A-F]{2}>")


def byte_alphabet() -> tuple[str, ...]:
    """GPT-2's printable stand-in for each byte (openai/gpt-2, `encoder.py`, bytes_to_unicode).

    Printable Latin-1 characters stand for themselves; the 68 others take U+0100 and up, in order.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    stand_ins = iter(range(0x100, 0x200))
    return tuple(chr(b) if b in printable else chr(next(stand_ins)) for b in range(256))


def read_byte_level(spellings: Sequence[str]) -> tuple[bytes | None, ...]:
    """Byte-level spellings as bytes: every character is one byte of GPT-2's alphabet.

    None for a spelling with another character.
    """
    bytes_by_character = np.full(0x144, 256, dtype=np.uint16)
    bytes_by_character[[*map(ord, byte_alphabet())]] = np.arange(256)
    characters = np.frombuffer("".join(spellings).encode("utf-32-le", "surrogatepass"), np.uint32)
    spelled = bytes_by_character[np.minimum(characters, 0x143)]
    spelled[characters > 0x143] = 256
    data = spelled.astype(np.uint8).tobytes()
    ends = [0, *accumulate(map(len, spellings))]
    tokens: list[bytes | None] = [data[start:end] for start, end in pairwise(ends)]
    stray = np.searchsorted(ends, np.flatnonzero(spelled == 256), side="right") - 1
    for place in set(stray.tolist()):
        tokens[place] = None
    return tuple(tokens)


def write_byte_level(tokens: Iterable[bytes]) -> list[str]:
    """The inverse of `read_byte_level`."""
    alphabet = byte_alphabet()
    return [token.decode("latin-1").translate(alphabet) for token in tokens]


def read_pieces(
    spellings: Sequence[str], *, fallback: bool = True
) -> tuple[tuple[bytes, ...], frozenset[int]]:
    """SentencePiece spellings as bytes: `▁` is a space and, with byte fallback, `<0xNN>` a byte.

    Returns: the bytes of each token, and the indices of the `<0xNN>`.
    """
    tokens, spelled = [], set()
    for index, piece in enumerate(spellings):
        if fallback and len(piece) == 6 and _BYTE.fullmatch(piece):
            tokens.append(bytes([int(piece[3:5], 16)]))
            spelled.add(index)
        else:
            tokens.append(piece.replace(SPACE_MARK, " ").encode())
    return tuple(tokens), frozenset(spelled)


def write_pieces(tokens: Sequence[bytes], fallback: frozenset[int]) -> list[str]:
    """The inverse of `read_pieces`."""
    return [
        f"<0x{token[0]:02X}>" if i in fallback else token.decode().replace(" ", SPACE_MARK)
        for i, token in enumerate(tokens)
    ]


def spelled_as(spellings: Iterable[str]) -> regex.Pattern[str]:
    """Finds these spellings in a text, the longest first. Cost: 0.3 s for 6,000 of them."""
    known = set(spellings)
    return regex.compile(r"(\L<known>)", known=known) if known else regex.compile("((?!))")
