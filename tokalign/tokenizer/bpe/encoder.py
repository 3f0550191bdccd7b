"""The canonical encoding of bytes: pre-tokenizer, symbols, merges.

`PieceEncoder` is what every encoder has; `BytePairEncoding` knows the merges, too.
`IncrementalEncoder` encodes a text that grows, and `TokenOrder` finds tokens by their beginnings.
Bytes that are not valid UTF-8 are encoded like all others, because a draft may have to go on from
half a character.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from functools import cached_property, lru_cache
from typing import Generic, cast

from tokalign.tokenizer.bpe import Id
from tokalign.tokenizer.bpe.pretokenizer import Splitter, as_bytes, as_text
from tokalign.tokenizer.bpe.validity import Merged, Merges, PairValidity

_LONG = 64
"""Bytes of a piece that is not remembered: one that grows would be kept after every token of it."""

_REDONE = 4
"""Tokens at the end of a long piece that are encoded again after more bytes; twice as many where
these change more than that."""


class TokenOrder(Generic[Id]):
    """Tokens sorted by their bytes, of equal bytes by id: those that begin alike are one range.

    ids: the sorted ids; spelled: their bytes, in the same order. Ranges are of indices into both.
    """

    def __init__(self, tokens: Sequence[bytes], ids: list[Id]) -> None:
        self.ids = ids
        self.spelled = [tokens[i] for i in ids]

    @classmethod
    def of(cls, tokens: Sequence[bytes], chosen: Iterable[Id]) -> TokenOrder[Id]:
        """Sort the chosen tokens. Cost: 0.1 s for 128,000."""
        return cls(tokens, sorted(chosen, key=lambda i: (tokens[i], i)))

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


class PieceEncoder(ABC, Generic[Id]):
    """A canonical encoder over bytes: a pre-tokenizer, and what encodes each of its pieces.

    tokens: id -> bytes, `b""` for special tokens.
    fallback: the ids of byte fallback. added: the added tokens that are found in text.
    missing: where encoding starts from bytes, those that no token spells. An encoding loses them.
    """

    encode_piece: Callable[[bytes], tuple[Id, ...]]
    """The canonical encoding of one piece: `_encode_piece`, remembered."""

    def __init__(
        self,
        *,
        tokens: Sequence[bytes],
        fallback: Set[Id],
        splitter: Splitter,
        added: Mapping[bytes, Id],
        missing: Set[int],
    ) -> None:
        self.tokens, self.fallback, self.splitter = tokens, fallback, splitter
        self.added, self.missing = added, missing
        self.encode_piece = lru_cache(maxsize=1 << 16)(self._encode_piece)

    @abstractmethod
    def _encode_piece(self, piece: bytes) -> tuple[Id, ...]: ...

    @cached_property
    def order(self) -> TokenOrder[Id]:
        """The ordinary tokens without byte fallback, sorted. Cost: 0.1 s, once."""
        ordinary = (i for i, token in enumerate(self.tokens) if token and i not in self.fallback)
        return TokenOrder.of(self.tokens, cast("Iterator[Id]", ordinary))

    def encode(self, data: bytes) -> list[Id]:
        """The canonical encoding of `data`. Adds no dummy prefix; adds and parses no special token.

        Example (Bielik): `b" Ala ma kota"` -> the ids of `▁Al`, `a`, `▁ma`, `▁k`, `ota`.
        Cost: about 1 µs per byte of words seen before, 3 µs of new ones.
        """
        ids: list[Id] = []
        for piece in self.splitter.split(data):
            ids += self.encode_piece(piece)
        return ids

    def encode_grown(self, piece: bytes, known: Sequence[Id], size: int) -> Sequence[Id]:
        """As `encode_piece`, for a long piece. known: the encoding of its first `size` bytes, or of
        the whole piece and what came after it; nothing where neither is known."""
        return self._encode_piece(piece)

    def spelled(self, data: bytes) -> bytes:
        """The beginning of `data` up to the first byte that no token spells."""
        if not self.missing or self.missing.isdisjoint(data):
            return data
        return data[: next(at for at, byte in enumerate(data) if byte in self.missing)]


class BytePairEncoding(PieceEncoder[Id]):
    """The canonical encoder of a BPE tokenizer whose merges are known.

    symbols: the characters that merging starts from (`by_characters`, SentencePiece), bytes -> id;
        a character that is not among them falls back to its bytes, or else to `unknown`.
    byte_ids: the id of each single byte, [256]; -1 for one that no token spells.
    whole: the tokens that a piece of the same bytes becomes at once, without merging
        (`ignore_merges`, Llama 3); added tokens, too.
    spells_all: whether every text has an encoding without unknown or lost characters.
    fuses_unknown: whether several unknown characters in a row become one id.
    """

    def __init__(
        self,
        *,
        tokens: Sequence[bytes],
        merges: Merges,
        symbols: Mapping[bytes, Id],
        byte_ids: Sequence[Id],
        splitter: Splitter,
        by_characters: bool,
        whole: Mapping[bytes, Id],
        added: Mapping[bytes, Id],
        unknown: Id | None,
        fuses_unknown: bool,
    ) -> None:
        super().__init__(
            tokens=tokens,
            fallback=frozenset(byte_ids) - {-1} if by_characters else frozenset(),
            splitter=splitter,
            added=added,
            missing=frozenset(b for b in range(256) if byte_ids[b] < 0 and not by_characters),
        )
        self.merges, self.symbols = merges, symbols
        self.validity = PairValidity(
            tokens=tokens, merges=merges, merge=self.merge, fallback=self.fallback
        )
        self._byte_ids = byte_ids
        self._by_characters = by_characters
        self.whole = {**whole, **added}
        self.spells_all = min(byte_ids) >= 0
        self._unknown, self._fuses_unknown = unknown, fuses_unknown
        self._spelled = bytes({*range(256)} - self.missing)
        self._characters = {as_text(character): symbol for character, symbol in symbols.items()}

    def _encode_piece(self, piece: bytes) -> tuple[Id, ...]:
        token = self.whole.get(piece)
        return (token,) if token is not None else tuple(self.merge(piece).ids)

    def encode_grown(self, piece: bytes, known: Sequence[Id], size: int) -> Sequence[Id]:
        """See `PieceEncoder`. Cost: that of the end of the piece, and a copy of the ids. All but
        its last tokens stay if they may stand before what the rest becomes (corollary II in
        `validity.py`)."""
        redone, tokens = _REDONE, self.tokens
        missing = piece.translate(None, self._spelled) if self.missing else not self.spells_all
        while redone < len(known) and not missing and piece not in self.whole:
            end = len(known) - redone
            while end and tokens[known[end]][0] & 0xC0 == 0x80:  # it does not begin a character
                end -= 1
            begin = size - sum([len(tokens[token]) for token in known[end:]])
            if 0 < begin < len(piece):
                ids = self.merge(piece[begin:]).ids
                if self.validity.may_follow(known[end - 1], ids[0]):
                    return [*known[:end], *ids]
            redone *= 2
        return self._encode_piece(piece)

    def merge(self, piece: bytes) -> Merged[Id]:
        """What the merges make of the symbols of `piece`, whether or not it is a whole token."""
        return self.merges.apply(self.base_symbols(piece))

    def base_symbols(self, piece: bytes) -> list[Id]:
        """The ids that merging starts from."""
        if not self._by_characters:
            ids = [self._byte_ids[byte] for byte in piece]
            return [token for token in ids if token >= 0] if self.missing else ids
        ids = []
        for character in as_text(piece):
            symbol = self._characters.get(character)
            ids += [symbol] if symbol is not None else self._fall_back(character, ids)
        return ids

    def _fall_back(self, character: str, before: Sequence[Id]) -> list[Id]:
        """The ids of a character that is no symbol, after those `before` it in its piece."""
        spelled = [self._byte_ids[byte] for byte in as_bytes(character)]
        if min(spelled) >= 0:
            return spelled
        if self._unknown is None or (self._fuses_unknown and before[-1:] == [self._unknown]):
            return []
        return [self._unknown]


class IncrementalEncoder(Generic[Id]):
    """The canonical encoding of the bytes pushed so far, without encoding all of them again.

    After any pushes `ids` equals the encoding of the whole text, and the first `settled` ids stay
    what they are, whatever bytes are pushed next.

    Example (Bielik): push `b" War"`, then `b"szawa"`. The ids are those of `▁War`, and then those
    of `▁Wars`, `z`, `awa`: what `▁Warszawa` is as a whole, not `▁War` with `sz`, `awa` after it.
    """

    def __init__(self, encoder: PieceEncoder[Id]) -> None:
        self._encoder = encoder
        self._text = bytearray()
        self._ids: list[Id] = []
        self._open = 0, 0  # byte offset and id index from which on later bytes may change pieces
        # Where the last long piece began and ended, and its ids.
        self._long: tuple[int, int, Sequence[Id]] = 0, 0, ()

    @property
    def text(self) -> bytes:
        """All bytes that were pushed."""
        return bytes(self._text)

    @property
    def ids(self) -> list[Id]:
        """The canonical encoding of `text`. Read-only; valid until the next push."""
        return self._ids

    @property
    def settled(self) -> int:
        """How many leading ids belong to pieces that no later byte can change."""
        return self._open[1]

    def ends_with(self, data: bytes) -> bool:
        """Whether the text ends with these bytes."""
        return self._text.endswith(data)

    def push(self, data: bytes) -> None:
        """Append bytes, and encode the pieces that are not settled again."""
        self._text += data
        ids, encoder = self._ids, self._encoder
        offset, index = self._open
        del ids[index:]
        text = bytes(self._text[offset:])
        pieces = encoder.splitter.split(text)
        # To find out that a long piece, or one with half a character after it, is open takes long.
        is_open = len(text) >= _LONG and len(text) - len(pieces[0]) < 4
        settled = 0 if is_open else encoder.splitter.count_settled(text, pieces)
        begin, end, known = self._long
        for number, piece in enumerate(pieces):
            if number == settled:
                self._open = offset, len(ids)
            if len(piece) < _LONG:
                encoded: Sequence[Id] = encoder.encode_piece(piece)
            else:
                grown = known if offset == begin else ()
                encoded = encoder.encode_grown(piece, grown, end - begin)
                self._long = offset, offset + len(piece), encoded
            ids += encoded
            offset += len(piece)
        if settled == len(pieces):
            self._open = offset, len(ids)
