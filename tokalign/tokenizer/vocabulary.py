"""Vocabularies as bytes: the only currency that two tokenizers share.

A vocabulary maps an id to the **bytes** it stands for. Special tokens stand for no bytes; they have
*roles*. How a tokenizer's file spells these bytes (`spelling.py`) is inverted where it is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Generic, NewType, cast

from tokalign.tokenizer.bpe import Id as Id

DraftId = NewType("DraftId", int)
"""An id of the draft model's tokenizer."""

TargetId = NewType("TargetId", int)
"""An id of the target model's tokenizer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Roles(Generic[Id]):
    """What the special tokens of a vocabulary are for, by which two vocabularies are matched, never
    by spelling: Bielik's `<|im_end|>` and Llama's `<|eot_id|>` end turns. eos: all that end a text.
    """

    bos: Id | None = None
    eos: frozenset[Id] = frozenset()
    turn_start: Id | None = None
    turn_end: Id | None = None


@dataclass(frozen=True, kw_only=True)
class Vocabulary(Generic[Id]):
    """id -> bytes, and the roles of special tokens, which alone are `b""`. fallback: ids that spell
    a single byte because no literal piece does (SentencePiece's `<0xNN>`)."""

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
        return {spelling: token for token, spelling in self.specials.items()}

    def bytes_of(self, ids: Iterable[Id]) -> bytes:
        """The bytes that `ids` stand for. Special tokens contribute nothing, nor do ids beyond the
        vocabulary, which padded models have."""
        tokens, count = self.tokens, len(self.tokens)
        return b"".join([tokens[i] for i in ids if i < count])


def token_bytes(tokens: Sequence[bytes], token: int) -> bytes:
    """A token's bytes; b"" for ids beyond the vocabulary, which padded models have."""
    return tokens[token] if token < len(tokens) else b""
