"""Vocabularies as bytes: the only currency two tokenizers share.

A vocabulary maps an id to the **bytes** it stands for. How a tokenizer spells those bytes (the
byte-level alphabet with its `Ġ`, SentencePiece's `▁`, `<0x0A>`) is settled once, when the file is
read, and never seen again. Special tokens stand for no bytes; they have *roles*.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Generic, NewType, TypeVar

DraftId = NewType("DraftId", int)
"""An id of the draft model's tokenizer."""

TargetId = NewType("TargetId", int)
"""An id of the target model's tokenizer."""

Id = TypeVar("Id", bound=int)


@dataclass(frozen=True, slots=True, kw_only=True)
class Roles:
    """What a vocabulary's special tokens are for; ids, `None` where there is no such token.

    Two vocabularies are matched role by role, never by spelling: Bielik's `<|im_end|>` and
    Llama's `<|eot_id|>` are both `turn_end`.
    """

    bos: int | None = None
    eos: frozenset[int] = frozenset()
    turn_start: int | None = None
    turn_end: int | None = None
    pad: int | None = None
    unk: int | None = None
    control: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Vocabulary(Generic[Id]):
    """One tokenizer's vocabulary: id -> bytes, plus the roles of its special tokens.

    `tokens[i]` is `b""` exactly when `i` is special. `fallback` holds the ids that spell a single
    byte because no literal piece does (SentencePiece's `<0xNN>`).

    Example: Mistral's id of `▁Ala` has the bytes `b" Ala"`; its id of `<0x0A>` has `b"\\n"`.
    """

    tokens: tuple[bytes, ...]
    fallback: frozenset[int] = frozenset()
    specials: Mapping[int, str] = field(default_factory=dict)
    roles: Roles = Roles()

    def __len__(self) -> int:
        return len(self.tokens)

    @cached_property
    def id_of(self) -> Mapping[bytes, Id]:
        """bytes -> id; a literal piece wins over byte fallback, then the lower id."""
        literal: dict[bytes, Id] = {}
        spelled: dict[bytes, Id] = {}
        for index, token in enumerate(self.tokens):
            if token:
                chosen = spelled if index in self.fallback else literal
                chosen.setdefault(token, index)  # type: ignore[arg-type]
        return spelled | literal

    @cached_property
    def special_ids(self) -> Mapping[str, Id]:
        """spelling -> id, for templates that write special tokens as text."""
        return {spelling: index for index, spelling in self.specials.items()}  # type: ignore[misc]

    @cached_property
    def longest(self) -> int:
        """Length in bytes of the longest token."""
        return max(map(len, self.tokens), default=0)

    def is_special(self, token_id: Id) -> bool:
        return not self.tokens[token_id]

    def bytes_of(self, ids: Iterable[Id]) -> bytes:
        """The bytes that `ids` stand for; special tokens contribute nothing."""
        tokens = self.tokens
        return b"".join([tokens[i] for i in ids])
