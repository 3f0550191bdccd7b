"""The canonical encoding of bytes: pre-tokenizer, symbols, merges.

A *piece* is what the pre-tokenizer hands to BPE (`pretokenizer.py`). Bytes that are not valid UTF-8
are encoded like all others, because a draft may have to go on from half a character. Which tokens
may stand side by side is asked of `BytePairEncoding.validity` (`validity.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Generic, cast

from tokalign.bpe.ids import Id
from tokalign.bpe.merges import Merged, Merges
from tokalign.bpe.pretokenizer import NoSplitter, Splitter, as_bytes, as_text
from tokalign.bpe.sorted_vocabulary import TokenOrder
from tokalign.bpe.validity import PairValidity


class BytePairEncoding(Generic[Id]):
    """The canonical encoder of one tokenizer, over bytes.

    tokens: id -> bytes, `b""` for special tokens.
    symbols: the characters that merging starts from (`by_characters`, SentencePiece), bytes -> id;
        a character that is not among them falls back to its bytes.
    byte_ids: the id of each single byte, [256].
    whole: the tokens that a piece of the same bytes becomes at once, without merging
        (`ignore_merges`, Llama 3).
    """

    encode_piece: Callable[[bytes], tuple[Id, ...]]
    """The canonical encoding of one piece. Results are remembered, unless texts are not cut."""

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
    ) -> None:
        self.tokens = tokens
        self.merges = merges
        self.splitter = splitter
        self.symbols = symbols
        self.fallback = frozenset(byte_ids) if by_characters else frozenset()
        self.validity = PairValidity(
            tokens=tokens, merges=merges, merge=self.merge, fallback=self.fallback
        )
        self._byte_ids = byte_ids
        self._by_characters = by_characters
        self._whole = whole
        self._characters = {as_text(character): symbol for character, symbol in symbols.items()}
        remember = lru_cache(maxsize=0 if isinstance(splitter, NoSplitter) else 1 << 16)
        self.encode_piece = remember(self._encode_piece)

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

    def _encode_piece(self, piece: bytes) -> tuple[Id, ...]:
        token = self._whole.get(piece)
        if token is not None:
            return (token,)
        return tuple(self.merge(piece).ids)

    def merge(self, piece: bytes) -> Merged[Id]:
        """What the merges make of the symbols of `piece`, whether or not it is a whole token."""
        return self.merges.apply(self.base_symbols(piece))

    def base_symbols(self, piece: bytes) -> list[Id]:
        """The ids that merging starts from."""
        if not self._by_characters:
            return [self._byte_ids[byte] for byte in piece]
        ids: list[Id] = []
        for character in as_text(piece):
            symbol = self._characters.get(character)
            if symbol is None:
                ids += [self._byte_ids[byte] for byte in as_bytes(character)]
            else:
                ids.append(symbol)
        return ids
