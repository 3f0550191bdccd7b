"""Pieces encoded by the `tokenizers` library, where only it knows how (Unigram)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from tokalign.bpe.encoder import PieceEncoder
from tokalign.bpe.pretokenizer import Splitter, as_text
from tokalign.tokenizer.spelling import SPACE_MARK, write_byte_level
from tokalign.tokenizer.vocabulary import Id, Vocabulary


class LibraryEncoder(PieceEncoder[Id]):
    """A canonical encoder whose pieces a model of the library encodes.

    model: the library's. by_characters: whether it reads characters, or the byte alphabet.
    A byte that is not part of valid UTF-8 is spelled by byte fallback, or lost.
    """

    def __init__(
        self,
        model: Any,
        vocabulary: Vocabulary[Id],
        splitter: Splitter,
        *,
        by_characters: bool,
        added: Mapping[bytes, Id],
    ) -> None:
        spelled = {token[0] for token in vocabulary.id_of if len(token) == 1}
        super().__init__(
            tokens=vocabulary.tokens,
            fallback=vocabulary.fallback,
            splitter=splitter,
            added=added,
            missing=frozenset(range(256)) - spelled if not by_characters else frozenset(),
            encode_piece=self._encode_piece,
        )
        self._model, self._by_characters = model, by_characters
        self._bytes = {vocabulary.tokens[i]: i for i in vocabulary.fallback}

    def _encode_piece(self, piece: bytes) -> tuple[Id, ...]:
        if piece in self.added:
            return (self.added[piece],)
        if not self._by_characters:
            return tuple(self._ids(write_byte_level([piece])[0]))
        ids: list[Id] = []
        text = ""
        for character in as_text(piece):
            if 0xDC80 <= ord(character) <= 0xDCFF:
                ids += self._ids(text)
                byte = bytes([ord(character) - 0xDC00])
                ids += [self._bytes[byte]] if byte in self._bytes else []
                text = ""
            else:
                text += character
        return (*ids, *self._ids(text))

    def _ids(self, text: str) -> Sequence[Id]:
        found = self._model.tokenize(text.replace(" ", SPACE_MARK)) if text else ()
        return [cast("Id", token.id) for token in found]
