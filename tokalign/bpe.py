"""Byte-pair encoding as theory: what is canonical, and what may follow what.

Three facts carry this module (rust-gems `crates/bpe/README.md`, corollaries I-III;
`docs/lossless.md` states them with the name of the test of each):

1. A prefix (by tokens) of a canonical encoding is the canonical encoding of its own bytes.
2. Within one piece, a sequence is canonical iff every adjacent pair is: validity is local.
3. Whether a pair is canonical follows from the merges alone, by undoing those of both tokens.

A *piece* is what the pre-tokenizer hands to BPE (see `pieces.py`). Bytes that are not valid UTF-8
are encoded like everything else, because half a character has to be drafted from.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from heapq import heapify, heappop, heappush
from itertools import pairwise
from typing import NamedTuple

from tokalign.pieces import Splitter, as_bytes, as_text

NEVER = 1 << 60
"""A rank later than that of any merge."""

Spine = tuple[tuple[int, int, int], ...]
"""(id, rank of the merge that made it, rank of the merge that used it up), whole token first."""


@dataclass(frozen=True, slots=True)
class Merges:
    """Merge rules: packed pair `left << 32 | right` -> (rank, result); a lower rank goes first."""

    ranks: Mapping[int, tuple[int, int]]

    @classmethod
    def from_triples(cls, triples: Iterable[tuple[int, int, int]]) -> Merges:
        """Rank `(left, right, result)` triples in the order given; the first of equals counts."""
        ranks: dict[int, tuple[int, int]] = {}
        for rank, (left, right, result) in enumerate(triples):
            ranks.setdefault(left << 32 | right, (rank, result))
        return cls(ranks)


class Merged(NamedTuple):
    """What merging arrived at; the rank of the last merge (-1: none) and the pair it joined."""

    ids: list[int]
    rank: int
    pair: tuple[int, int] | None


class BytePairEncoding:
    """The canonical encoder of one tokenizer, over bytes.

    tokens: id -> bytes, `b""` for special tokens.
    symbols: characters that merging starts from (`by_characters`, SentencePiece), bytes -> id; a
        character that is none falls back to its bytes.
    byte_ids: the id of each single byte, [256].
    whole: tokens that a piece becomes at once, whatever the merges say (`ignore_merges`, Llama 3).
    """

    def __init__(
        self,
        *,
        tokens: Sequence[bytes],
        merges: Merges,
        symbols: Mapping[bytes, int],
        byte_ids: Sequence[int],
        splitter: Splitter,
        by_characters: bool,
        whole: Mapping[bytes, int],
    ) -> None:
        self.tokens = tokens
        self.merges = merges
        self.splitter = splitter
        self._symbols = symbols
        self._byte_ids = byte_ids
        self._by_characters = by_characters
        self._whole = whole
        self._bytewise = frozenset(byte_ids) if by_characters else frozenset()
        self.encode_piece = lru_cache(maxsize=1 << 16)(self._encode_piece)
        self.right_spine = lru_cache(maxsize=1 << 16)(self._right_spine)
        self.left_spine = lru_cache(maxsize=1 << 16)(self._left_spine)

    # -- encoding ------------------------------------------------------------------------------

    def encode(self, data: bytes) -> list[int]:
        """The canonical encoding of `data`: no dummy prefix, no special token is added or parsed.

        Example: Mistral, `b" Ala ma"` -> the ids of `▁A`, `la`, `▁ma`.
        Cost: about 1 µs per byte for words seen before, 3 µs for new ones.
        """
        ids: list[int] = []
        for piece in self.splitter.split(as_text(data)):
            ids += self.encode_piece(as_bytes(piece))
        return ids

    def _encode_piece(self, piece: bytes) -> tuple[int, ...]:
        token = self._whole.get(piece)
        if token is not None:
            return (token,)
        return tuple(self.merge(self.base_symbols(piece)).ids)

    def base_symbols(self, piece: bytes) -> list[int]:
        """The ids merging starts from."""
        if not self._by_characters:
            return [self._byte_ids[byte] for byte in piece]
        ids: list[int] = []
        for character in as_text(piece):
            spelled = as_bytes(character)
            symbol = self._symbols.get(spelled)
            ids += [symbol] if symbol is not None else [self._byte_ids[b] for b in spelled]
        return ids

    def merge(self, ids: list[int]) -> Merged:
        """Merge to the end, all of `ids` as one piece.

        The lowest rank goes first and the leftmost of equals. Cost: O(n log n).
        """
        ranks, size = self.merges.ranks, len(ids)
        token, after, before = list(ids), list(range(1, size + 1)), list(range(-1, size - 1))
        queue = [
            (found[0], i, left << 32 | right)
            for i, (left, right) in enumerate(pairwise(ids))
            if (found := ranks.get(left << 32 | right)) is not None
        ]
        heapify(queue)
        last_rank = -1
        last_pair: tuple[int, int] | None = None
        while queue:
            rank, i, pair = heappop(queue)
            j = after[i]
            if j >= size or token[i] << 32 | token[j] != pair:
                continue  # one side was merged away since this entry was queued
            last_rank, last_pair = rank, (token[i], token[j])
            token[i], token[j] = ranks[pair][1], -1
            k = after[i] = after[j]
            if k < size:
                before[k] = i
                pair = token[i] << 32 | token[k]
                if (found := ranks.get(pair)) is not None:
                    heappush(queue, (found[0], i, pair))
            h = before[i]
            if h >= 0:
                pair = token[h] << 32 | token[i]
                if (found := ranks.get(pair)) is not None:
                    heappush(queue, (found[0], h, pair))
        return Merged([t for t in token if t >= 0], last_rank, last_pair)

    # -- validity ------------------------------------------------------------------------------

    def derivation(self, token: int) -> tuple[int, tuple[int, int] | None]:
        """Rank and pair of the last merge that makes `token` out of its own bytes.

        (-1, None) for a base symbol, and for a token that the merges never make (it can only stand
        as a whole piece, and nothing inside it is ever merged across its edge).
        """
        merged = self.merge(self.base_symbols(self.tokens[token]))
        return (merged.rank, merged.pair) if merged.ids == [token] else (-1, None)

    def _right_spine(self, token: int) -> Spine:
        return self._spine(token, 1)

    def _left_spine(self, token: int) -> Spine:
        return self._spine(token, 0)

    def _spine(self, token: int, side: int) -> Spine:
        spine, used = [], NEVER
        while True:
            made, pair = self.derivation(token)
            spine.append((token, made, used))
            if pair is None:
                return tuple(spine)
            token, used = pair[side], made

    def may_follow(self, left: int, right: int) -> bool:
        """Whether `right` can stand after `left` within a piece: no merge crosses between them.

        Undoes the merges of both tokens: at the boundary stand, over time, the tokens of `left`'s
        right spine and of `right`'s left spine. The pair is canonical iff no two that stand there
        together are merged before one of them is used up by its own token.
        Special tokens stand apart: everything may follow them, and they may follow everything.
        Cost: about 2 µs once both spines are known. Source: rust-gems bpe README, corollary IIIa.
        """
        if not self.tokens[left] or not self.tokens[right]:
            return True
        ranks = self.merges.ranks
        for a, a_made, a_used in self.right_spine(left):
            for b, b_made, b_used in self.left_spine(right):
                found = ranks.get(a << 32 | b)
                if found is not None:
                    # A merge waits until both sides exist. Of two merges of equal rank the left
                    # one goes first: that is the one inside `left`, or else the crossing one.
                    moment = max(found[0], a_made, b_made)
                    if moment < a_used and moment <= b_used:
                        return False
        return True

    def is_canonical_piece(self, ids: Sequence[int]) -> bool:
        """Whether `ids` is the canonical encoding of its own bytes, taken as one piece.

        Every pair has to be valid, bytes that spell a character must not spell one that is a
        symbol, and with `ignore_merges` the whole must not be a token. Cost: 2 µs per pair.
        """
        if not all(self.reachable(i) for i in ids):
            return len(ids) == 1 and self._whole.get(self.tokens[ids[0]]) == ids[0]
        data = b"".join([self.tokens[i] for i in ids])
        if len(ids) > 1 and data in self._whole:
            return False
        if self._bytewise and not self._spells_no_symbol(ids):
            return False
        return all(self.may_follow(left, right) for left, right in pairwise(ids))

    def reachable(self, token: int) -> bool:
        """Whether the merges make `token` from its own bytes (base symbols included)."""
        made, _ = self.derivation(token)
        return (
            made >= 0 or self.base_symbols(self.tokens[token]) == [token] or token in self._bytewise
        )

    def _spells_no_symbol(self, ids: Sequence[int]) -> bool:
        """Whether each run of byte-fallback ids stands exactly where characters are no symbols."""
        start = 0
        while start < len(ids):
            if ids[start] not in self._bytewise:
                start += 1
                continue
            end = start
            while end < len(ids) and ids[end] in self._bytewise:
                end += 1
            run = list(ids[start:end])
            if self.base_symbols(b"".join([self.tokens[i] for i in run])) != run:
                return False
            start = end
        return True
