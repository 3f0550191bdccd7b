"""A vocabulary sorted by bytes: the tokens that begin with a prefix are one range of it."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Generic

from tokalign.bpe.ids import Id


class TokenOrder(Generic[Id]):
    """Tokens sorted by their bytes, tokens of equal bytes by id.

    ids: the sorted ids; spelled: their bytes, in the same order. Ranges are of indices into both.
    """

    def __init__(self, tokens: Sequence[bytes], ids: list[Id]) -> None:
        self.ids = ids
        self.spelled = [tokens[i] for i in ids]

    @classmethod
    def of(cls, tokens: Sequence[bytes], chosen: Iterable[Id]) -> TokenOrder[Id]:
        """Sort the chosen tokens. Cost: 0.1 s for 128,000."""
        return cls(tokens, sorted(chosen, key=lambda i: (tokens[i], i)))

    @cached_property
    def extended(self) -> frozenset[Id]:
        """The tokens that a longer token begins with. Cost: 10 ms for 128,000 tokens, once."""
        found: set[Id] = set()
        longer = b""  # the next token in order that differs
        for at in range(len(self.ids) - 1, -1, -1):
            token = self.spelled[at]
            if at + 1 < len(self.ids) and self.spelled[at + 1] != token:
                longer = self.spelled[at + 1]
            if longer.startswith(token):
                found.add(self.ids[at])
        return frozenset(found)

    def find(self, token: bytes) -> int | None:
        """The index of the token with these bytes; of several, the one with the lowest id."""
        at = bisect_left(self.spelled, token)
        return at if at < len(self.spelled) and self.spelled[at] == token else None

    def starting_with(self, prefix: bytes) -> tuple[int, int]:
        """The range of tokens that begin with `prefix`: start, end (exclusive). Cost: 1 µs."""
        start = bisect_left(self.spelled, prefix)
        after = _successor(prefix)
        return start, bisect_left(self.spelled, after, start) if after else len(self.spelled)

    def extending(self, prefix: bytes) -> tuple[int, int]:
        """The range of tokens that begin with `prefix` and are longer: start, end (exclusive)."""
        start, end = self.starting_with(prefix)
        return bisect_right(self.spelled, prefix, start, end), end


def _successor(prefix: bytes) -> bytes:
    """The least byte string after all that begin with `prefix`; empty if there is none."""
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1]) if kept else b""
