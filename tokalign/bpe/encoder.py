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
from functools import cached_property, lru_cache
from heapq import heapify, heappop, heappush
from itertools import pairwise
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tokalign.bpe.pretokenizer import Splitter, as_bytes, as_text
from tokalign.bpe.sorted_vocabulary import TokenOrder
from tokalign.bpe.spines import NEVER, Spine, Stay, crosses

Ints: TypeAlias = NDArray[np.int64]

_LOW = (1 << 32) - 1

_NONE = 1 << 63
"""Stands for no merge: later than every other."""

_FEW = 32
"""Symbols up to which looking through all pairs is quicker than keeping them in a queue."""


@dataclass(frozen=True, slots=True)
class Merges:
    """Merge rules: packed pair `left << 32 | right` -> `rank << 32 | result`; lower goes first.

    Packed, because behind a model's pass each object is a cache miss of its own.
    """

    made: Mapping[int, int]

    @classmethod
    def from_triples(cls, triples: Iterable[tuple[int, int, int]]) -> Merges:
        """Rank `(left, right, result)` triples in the order given; the first of equals counts."""
        made: dict[int, int] = {}
        for rank, (left, right, result) in enumerate(triples):
            made.setdefault(left << 32 | right, rank << 32 | result)
        return cls(made)

    def to_arrays(self) -> tuple[Ints, Ints, Ints]:
        """Packed pairs, their ranks and results, i64[merges] each, in order of rank."""
        pairs = np.fromiter(self.made, dtype=np.int64, count=len(self.made))
        made = np.fromiter(self.made.values(), dtype=np.int64, count=len(self.made))
        return pairs, made >> 32, made & _LOW


class Merged(NamedTuple):
    """What merging arrived at; rank and pair of the last merge; the highest rank of all (or -1)."""

    ids: list[int]
    rank: int
    pair: tuple[int, int] | None
    moment: int


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
        self.symbols = symbols
        self._byte_ids = byte_ids
        self._by_characters = by_characters
        self._whole = whole
        self.fallback = frozenset(byte_ids) if by_characters else frozenset()
        self._characters = {as_text(character): symbol for character, symbol in symbols.items()}
        self.encode_piece = lru_cache(maxsize=1 << 16)(self._encode_piece)
        self.derivation = lru_cache(maxsize=1 << 16)(self._derivation)
        self.right_spine = lru_cache(maxsize=1 << 16)(self._right_spine)
        self.left_spine = lru_cache(maxsize=1 << 16)(self._left_spine)

    @cached_property
    def order(self) -> TokenOrder:
        """Tokens that stand for bytes, byte fallback left out, sorted. Cost: 0.1 s, once."""
        chosen = (i for i, token in enumerate(self.tokens) if token and i not in self.fallback)
        return TokenOrder.of(self.tokens, chosen)

    # -- encoding ------------------------------------------------------------------------------

    def encode(self, data: bytes) -> list[int]:
        """The canonical encoding of `data`: no dummy prefix, no special token is added or parsed.

        Example: Mistral, `b" Ala ma"` -> the ids of `▁A`, `la`, `▁ma`.
        Cost: about 1 µs per byte for words seen before, 3 µs for new ones.
        """
        ids: list[int] = []
        for piece in self.splitter.split(data):
            ids += self.encode_piece(piece)
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
            symbol = self._characters.get(character)
            if symbol is None:
                ids += [self._byte_ids[byte] for byte in as_bytes(character)]
            else:
                ids.append(symbol)
        return ids

    def merge(self, ids: list[int]) -> Merged:
        """Merge to the end, all of `ids` as one piece.

        The lowest rank goes first and the leftmost of equals. Cost: O(n log n), 5 µs for 8 symbols.
        """
        return self._merge_few(ids) if len(ids) <= _FEW else self._merge_many(ids)

    def _merge_few(self, ids: list[int]) -> Merged:
        """Look through all pairs each time: 5 µs for 8 symbols, where a queue takes 7."""
        get, token = self.merges.made.get, list(ids)
        found = [get(left << 32 | right, _NONE) for left, right in pairwise(ids)]
        rank = moment = -1
        pair: tuple[int, int] | None = None
        while found:
            first = min(found)
            if first == _NONE:
                break
            i = found.index(first)
            rank = first >> 32
            if rank > moment:
                moment = rank
            del found[i]
            pair = token[i], token.pop(i + 1)
            result = token[i] = first & _LOW
            if i < len(found):
                found[i] = get(result << 32 | token[i + 1], _NONE)
            if i:
                found[i - 1] = get(token[i - 1] << 32 | result, _NONE)
        return Merged(token, rank, pair, moment)

    def _merge_many(self, ids: list[int]) -> Merged:
        """Keep the pairs in a queue, which pays for long pieces."""
        made, size = self.merges.made, len(ids)
        token, after, before = list(ids), list(range(1, size + 1)), list(range(-1, size - 1))
        queue = [
            (found, i, left << 32 | right)
            for i, (left, right) in enumerate(pairwise(ids))
            if (found := made.get(left << 32 | right)) is not None
        ]
        heapify(queue)
        last_rank = moment = -1
        last_pair: tuple[int, int] | None = None
        while queue:
            found, i, pair = heappop(queue)
            j = after[i]
            if j >= size or token[i] << 32 | token[j] != pair:
                continue  # one side was merged away since this entry was queued
            last_rank, last_pair = found >> 32, (token[i], token[j])
            moment = max(moment, last_rank)
            token[i], token[j] = found & _LOW, -1
            k = after[i] = after[j]
            if k < size:
                before[k] = i
                pair = token[i] << 32 | token[k]
                if (found := made.get(pair)) is not None:
                    heappush(queue, (found, i, pair))
            h = before[i]
            if h >= 0:
                pair = token[h] << 32 | token[i]
                if (found := made.get(pair)) is not None:
                    heappush(queue, (found, h, pair))
        return Merged([t for t in token if t >= 0], last_rank, last_pair, moment)

    # -- validity ------------------------------------------------------------------------------

    def _derivation(self, token: int) -> Merged:
        """How the merges make `token` out of its own bytes.

        The pair is None for a base symbol, and for a token that the merges never make (it can only
        stand as a whole piece, and nothing inside it is ever merged across its edge).
        """
        merged = self.merge(self.base_symbols(self.tokens[token]))
        return merged if merged.ids == [token] else Merged([token], -1, None, -1)

    def _right_spine(self, token: int) -> Spine:
        return self._spine(token, 1)

    def _left_spine(self, token: int) -> Spine:
        return self._spine(token, 0)

    def _spine(self, token: int, side: int) -> Spine:
        derived = self.derivation(token)
        spine = [Stay(token, derived.moment, NEVER, NEVER)]
        while derived.pair is not None:
            inner, sibling = self.derivation(derived.pair[side]), derived.pair[1 - side]
            waited = self.derivation(sibling).moment
            # Of two moments that are equal the left half's comes first.
            waits = waited > inner.moment if side else waited >= inner.moment
            hold = max(derived.rank, waited) if waits else derived.rank
            spine.append(Stay(derived.pair[side], inner.moment, derived.moment, hold))
            derived = inner
        return tuple(spine)

    def may_follow(self, left: int, right: int) -> bool:
        """Whether `right` can stand after `left` within a piece: no merge crosses between them.

        Undoes the merges of both tokens: at the boundary stand, over time, the tokens of `left`'s
        right spine and of `right`'s left spine. The pair is canonical iff no two that stand there
        together are merged before one of them is used up by its own token.
        Special tokens stand apart: everything may follow them, and they may follow everything.
        Cost: about 2 µs once both spines are known. Source: rust-gems bpe README, corollary IIIa,
        for merges in any order (`docs/lossless.md`); there a token's rank is its id.
        """
        if not self.tokens[left] or not self.tokens[right]:
            return True
        return self.stays_apart(self.right_spine(left), self.left_spine(right))

    def stays_apart(self, right_spine: Spine, left_spine: Spine) -> bool:
        """`may_follow` of two ordinary tokens, by the spines that meet."""
        made = self.merges.made
        for a in right_spine:
            begun = a.id << 32
            for b in left_spine:
                found = made.get(begun | b.id)
                if found is not None and crosses(found >> 32, a, b):
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
        if self.fallback and not self._spells_no_symbol(ids):
            return False
        return all(self.may_follow(left, right) for left, right in pairwise(ids))

    def reachable(self, token: int) -> bool:
        """Whether the merges make `token` from its own bytes (base symbols included)."""
        return (
            self.derivation(token).pair is not None
            or self.base_symbols(self.tokens[token]) == [token]
            or token in self.fallback
        )

    def _spells_no_symbol(self, ids: Sequence[int]) -> bool:
        """Whether each run of byte-fallback ids stands exactly where characters are no symbols."""
        start = 0
        while start < len(ids):
            if ids[start] not in self.fallback:
                start += 1
                continue
            end = start
            while end < len(ids) and ids[end] in self.fallback:
                end += 1
            run = list(ids[start:end])
            if self.base_symbols(b"".join([self.tokens[i] for i in run])) != run:
                return False
            start = end
        return True
