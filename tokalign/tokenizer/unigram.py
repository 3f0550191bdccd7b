"""Unigram models: a piece that grows is encoded at its end alone.

A text may be one piece as a whole, and one of Japanese has pieces of thousands of characters. So
the best encoding up to each place of a piece is kept: what it scores, and where its last token
begins. More text adds places and changes none. Scores are added in the library's order: of
encodings that are equally probable it takes one by how their sums are rounded.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Sequence
from typing import Any, cast

from tokalign.tokenizer.bpe.pretokenizer import incomplete_tail
from tokalign.tokenizer.library import LibraryEncoder
from tokalign.tokenizer.spelling import SPACE_MARK, write_byte_level
from tokalign.tokenizer.vocabulary import Id

_PENALTY = 10.0
"""How much less than the least probable token an unknown character scores (SentencePiece)."""


class _Path(list[Id]):
    """The ids of a piece. scores, starts: of the best encoding up to each place. ends, counts: the
    places where the tokens of the path end, and how many ids there are up to each."""

    def __init__(self) -> None:
        self.scores, self.starts = [0.0], [0]
        self.ends, self.counts = [0], [0]


class UnigramEncoder(LibraryEncoder[Id]):
    """The canonical encoder of a Unigram model. Short pieces are encoded by the library."""

    def __init__(self, model: Any, *args: Any, **options: Any) -> None:
        super().__init__(model, *args, **options)
        state = json.loads(model.__getstate__())
        listed = enumerate(state["vocab"])
        self._scored = {piece: (score, cast("Id", i)) for i, (piece, score) in listed}
        self._longest = max(map(len, self._scored))
        self._penalized = min(score for _, score in state["vocab"]) - _PENALTY
        self._unknown = cast("Id | None", state["unk_id"])
        self._is_total = len(self._bytes) == 256 or (self._unknown is not None and not self._bytes)

    def encode_grown(self, piece: bytes, known: Sequence[Id], size: int) -> Sequence[Id]:
        """See `PieceEncoder`. Cost: 3 µs a new character, and a copy of the ids."""
        cut = len(piece) - incomplete_tail(piece)
        try:
            text = piece[:cut].decode().replace(" ", SPACE_MARK)
        except UnicodeDecodeError:
            text = ""
        if not self._by_characters:
            cut, [text] = len(piece), write_byte_level([piece])
        is_whole = piece in self.added or not (text and self._is_total)
        if is_whole or len(self._cut(text)) > 1:
            return self._encode_piece(piece)
        path: _Path[Id] = known if isinstance(known, _Path) else _Path()
        self._find_starts(path, text)
        self._follow_starts(path, text)
        path += [self._bytes[piece[at : at + 1]] for at in range(cut, len(piece)) if self._bytes]
        return path

    def _find_starts(self, path: _Path[Id], text: str) -> None:
        """Extend the places of a beginning of `text`, or of a text that begins with it."""
        scores, starts, scored = path.scores, path.starts, self._scored
        del scores[len(text) + 1 :], starts[len(text) + 1 :]
        for end in range(len(scores), len(text) + 1):
            best, begin = 0.0, -1
            for start in range(max(0, end - self._longest), end):
                found = scored.get(text[start:end])
                if found is not None and (begin < 0 or found[0] + scores[start] > best):
                    best, begin = found[0] + scores[start], start
            unknown = self._penalized + scores[-1]
            if text[end - 1] not in scored and (begin < 0 or unknown > best):
                best, begin = unknown, end - 1
            scores.append(best)
            starts.append(begin)

    def _follow_starts(self, path: _Path[Id], text: str) -> None:
        """Put the ids of the best encoding into a path, which has those up to a place of it."""
        ends, place, new = path.ends, len(text), list[int]()
        while ends[(at := min(bisect_left(ends, place), len(ends) - 1))] != place:
            new.append(place)
            place = path.starts[place]
        del ends[at + 1 :], path[path.counts[at] :], path.counts[at + 1 :]
        for end in reversed(new):
            token = text[path.starts[end] : end]
            if (found := self._scored.get(token)) is not None:
                path.append(found[1])
            elif self._bytes:
                path += [self._bytes[bytes([byte])] for byte in token.encode()]
            elif path[-1:] != [self._unknown]:  # several in a row are one
                path.append(cast("Id", self._unknown))
            ends.append(end)
            path.counts.append(len(path))
