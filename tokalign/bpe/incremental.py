"""Encoding a text that grows, without encoding all of it again.

After any pushes `ids` equals the encoding of the whole text, and the first `stable`
ids stay what they are, whatever bytes are pushed next.

Example (Bielik): push `b" War"`, then `b"szawa"`. The ids are those of `▁War`, and then those of
`▁Wars`, `z`, `awa`: what `▁Warszawa` is as a whole, not `▁War` with `sz`, `awa` after it.
"""

from __future__ import annotations

from typing import Generic

from tokalign.bpe.encoder import BytePairEncoding, PieceEncoder
from tokalign.bpe.ids import Id
from tokalign.bpe.pretokenizer import incomplete_tail
from tokalign.bpe.stable_prefix import count_stable


class IncrementalEncoder(Generic[Id]):
    """The canonical encoding of the bytes pushed so far, kept up to date."""

    def __init__(self, encoder: PieceEncoder[Id]) -> None:
        self._encoder = encoder
        self._text = bytearray()
        self._ids: list[Id] = []
        self._open = 0, 0  # byte offset and id index from which on later bytes may change pieces

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

    @property
    def stable(self) -> int:
        """How many leading ids can no longer change, whatever is pushed.

        These are the ids of settled pieces and, where the merges are known, those of the last piece
        that stay whatever it grows to (`stable_prefix.py`). Cost: 1 µs for a piece seen before,
        else 50 µs.
        """
        piece, encoder = self._growing_piece(), self._encoder
        if not piece or not isinstance(encoder, BytePairEncoding):
            return self.settled
        return self.settled + count_stable(encoder, piece)

    def ends_with(self, data: bytes) -> bool:
        """Whether the text ends with these bytes."""
        return self._text.endswith(data)

    def _growing_piece(self) -> bytes:
        """The last piece without its incomplete character; empty if it may change otherwise than by
        becoming longer.
        """
        complete = len(self._text) - incomplete_tail(self._text)
        piece = bytes(self._text[self._open[0] : complete])
        splitter = self._encoder.splitter
        return piece if splitter.only_grows(piece) and len(splitter.split(piece)) == 1 else b""

    def push(self, data: bytes) -> None:
        """Append bytes. Cost: splitting and encoding them and the pieces that are not settled."""
        self._text += data
        ids, encoder = self._ids, self._encoder
        offset, index = self._open
        del ids[index:]
        text = bytes(self._text[offset:])
        pieces = encoder.splitter.split(text)
        settled = encoder.splitter.count_settled(text, pieces)
        for piece in pieces[:settled]:
            ids += encoder.encode_piece(piece)
            offset += len(piece)
        self._open = offset, len(ids)
        for piece in pieces[settled:]:
            ids += encoder.encode_piece(piece)
