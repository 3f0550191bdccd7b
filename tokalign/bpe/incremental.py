"""Encoding a text that grows, without encoding all of it again.

After any pushes `ids` equals the encoding of the whole text, and the first `settled` ids stay what
they are, whatever bytes are pushed next.

Example (Bielik): push `b" War"`, then `b"szawa"`. The ids are those of `▁War`, and then those of
`▁Wars`, `z`, `awa`: what `▁Warszawa` is as a whole, not `▁War` with `sz`, `awa` after it.
"""

from __future__ import annotations

from typing import Generic

from tokalign.bpe.encoder import PieceEncoder
from tokalign.bpe.ids import Id


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

    def ends_with(self, data: bytes) -> bool:
        """Whether the text ends with these bytes."""
        return self._text.endswith(data)

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
