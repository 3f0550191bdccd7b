"""Encoding a text that grows and shrinks, without encoding all of it again.

After any pushes and truncations `ids` equals the encoding of the whole text, and the first `stable`
ids stay what they are, whatever bytes are pushed next.

Example (Bielik): push `b" War"`, then `b"szawa"`. The ids are those of `▁War`, and then those of
`▁Wars`, `z`, `awa`: what `▁Warszawa` is as a whole, not `▁War` with `sz`, `awa` after it.
"""

from __future__ import annotations

from typing import Generic

from tokalign.bpe.encoder import BytePairEncoding
from tokalign.bpe.ids import Id
from tokalign.bpe.pretokenizer import as_text, incomplete_tail
from tokalign.bpe.stable_prefix import count_stable


class IncrementalEncoder(Generic[Id]):
    """The canonical encoding of the bytes pushed so far, kept up to date."""

    def __init__(self, bpe: BytePairEncoding[Id]) -> None:
        self._bpe = bpe
        self._text = bytearray()
        self._ids: list[Id] = []
        self._pieces: list[bytes] = []
        self._starts: list[tuple[int, int]] = []  # (byte offset, id index) of each piece
        self._settled = 0  # how many leading pieces no later byte can change

    @property
    def text(self) -> bytes:
        """All bytes that were pushed and not truncated."""
        return bytes(self._text)

    @property
    def ids(self) -> list[Id]:
        """The canonical encoding of `text`. Read-only; valid until the next push or truncation."""
        return self._ids

    @property
    def settled(self) -> int:
        """How many leading ids belong to pieces that no later byte can change."""
        return self._starts[self._settled][1] if self._starts else 0

    @property
    def stable(self) -> int:
        """How many leading ids can no longer change, whatever is pushed.

        These are the ids of settled pieces, and those of the last piece that stay whatever it grows
        to (`stable_prefix.py`). Cost: 1 µs for a piece seen before, else 50 µs.
        """
        piece = self._growing_piece()
        return self.settled + (count_stable(self._bpe, piece) if piece else 0)

    def _growing_piece(self) -> bytes:
        """The last piece without its incomplete character; empty if it may change otherwise than by
        becoming longer.
        """
        if self._settled >= len(self._starts):
            return b""
        complete = len(self._text) - incomplete_tail(self._text)
        piece = bytes(self._text[self._starts[self._settled][0] : complete])
        splitter = self._bpe.splitter
        return piece if splitter.only_grows(piece) and len(splitter.split(piece)) == 1 else b""

    def push(self, data: bytes) -> None:
        """Append bytes. Cost: splitting and encoding them and the piece that they continue."""
        self._text += data
        self._reencode()

    def truncate(self, length: int) -> None:
        """Keep the first `length` bytes. Cost: encoding the piece that was cut."""
        del self._text[length:]
        while self._starts and self._starts[-1][0] >= length:
            self._starts.pop()
            self._pieces.pop()
        count = len(self._pieces)
        if self._starts:
            rest = bytes(self._text[self._starts[-1][0] :])
            if rest != self._pieces[-1]:  # it says nothing any more about the pieces before it
                self._pieces[-1], count = rest, count - 1
        # A piece may have been settled only because of bytes that are now gone.
        self._settled = min(self._settled, self._bpe.splitter.settled(self._pieces, count))
        self._reencode()

    def _reencode(self) -> None:
        """Split and encode again from the first piece that is not settled."""
        starts, pieces, ids, encode = self._starts, self._pieces, self._ids, self._bpe.encode_piece
        offset, index = starts[self._settled] if starts else (0, 0)
        del starts[self._settled :], pieces[self._settled :], ids[index:]
        for piece in self._bpe.splitter.split(bytes(self._text[offset:])):
            pieces.append(piece)
            starts.append((offset, len(ids)))
            ids += encode(piece)
            offset += len(piece)
        count = len(pieces)
        if count and self._text[-1] >= 0x80:
            # Of an incomplete character, alone or after spaces, nobody knows whether it is a space.
            complete = len(self._text) - incomplete_tail(self._text)
            while count and not as_text(self._text[starts[count - 1][0] : complete]).strip():
                count -= 1
        self._settled = self._bpe.splitter.settled(pieces, count)
