"""The boundary where the committed text ends, and what may follow it in canonical encoding.

Committed ids are never changed. So bytes that follow them either have a canonical encoding that
leaves those ids as they are, or they are *absorbed*: the target has decided against them when it
ended its last token there. `bpe/absorption.py` has the theory; this module follows a growing text.
"""

from __future__ import annotations

from collections.abc import Sequence

from tokalign.bpe.absorption import Absorption, shared_absorption
from tokalign.bpe.encoder import BytePairEncoding, IncrementalEncoder
from tokalign.bpe.pretokenizer import incomplete_tail
from tokalign.bpe.validity import PairValidity, Spine
from tokalign.tables.alignment import MergeSites
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import TargetId

_SPACE = 0x20


class Boundary:
    """Encodes what follows the committed ids.

    Example (Bielik), after ` Mam| kom` ("Mam" is "I have"):

        encode(b"puter")  is `put|er`: " Mam komputer" is ` Mam| kom|put|er`.
        encode(b"et")     is None: " Mam komet" is ` Mam| k|omet`, which has no ` kom`.
        absorbs(b"et")    is False: " Mam kometa" is ` Mam| kom|eta`.
        absorbs(b"etr")   is True: nothing that begins with " Mam kometr" keeps ` kom`.

    Only the ids since the last settled piece matter (see `bpe.incremental`): a few tokens.
    """

    def __init__(self, target: Tokenizer[TargetId], merge_sites: MergeSites | None = None) -> None:
        self._encoder = encoder = target.encoder
        self._encode_piece = encoder.encode_piece
        self._segment = IncrementalEncoder(encoder)
        self._by_words = encoder.splitter.cuts_at_spaces
        self._validity: PairValidity[TargetId] | None = None
        self._absorption: Absorption[TargetId] | None = None
        if isinstance(encoder, BytePairEncoding):
            if merge_sites is not None:
                self._absorption = shared_absorption(encoder, merge_sites.absorbs)
            # A pre-tokenizer and `ignore_merges` look at both sides of the boundary together.
            if encoder.splitter.merges_decide and not target.spec.ignore_merges:
                self._validity = encoder.validity
        self._seen = 0
        self._left: bytes = b""
        self._left_ids: list[TargetId] = []
        self._is_cut = False  # whether the committed text ends within a character
        self._edge: Spine[TargetId] = ()  # of the last committed token

    def follow(self, ids: Sequence[TargetId]) -> None:
        """Move the boundary to the end of `ids`, which extend those of the last call.

        ids: the whole prompt and output. Cost: 10 µs plus encoding the new bytes.
        """
        tokens = self._encoder.tokens
        new = [tokens[token] if token < len(tokens) else b"" for token in ids[self._seen :]]
        if b"" in new:  # a segment begins after a special token
            del new[: len(new) - new[::-1].index(b"")]
            self._segment = IncrementalEncoder(self._encoder)
        self._segment.push(b"".join(new))
        self._seen = len(ids)
        canonical = self._segment.ids[self._segment.settled :]
        committed = list(ids[len(ids) - len(canonical) :])
        if canonical != committed:
            # The target's ids are not canonical here, so only its last token is taken to count.
            committed = list(ids[-1:]) if canonical else []
        self._left_ids = committed
        self._left = b"".join([tokens[i] for i in committed])
        self._is_cut = incomplete_tail(self._left) > 0
        self._edge = ()
        if committed and self._validity is not None:
            self._edge = self._validity.right_spine(committed[-1])

    def absorbs(self, data: bytes) -> bool:
        """Whether no canonical encoding continues with `data`, whatever comes after `data`.

        This says more than that `encode` gives None: then text after `data` may keep the boundary.
        Without a table of merge sites the answer is that of `encode`.
        Cost: 2 µs for data seen before, 20 µs with a pre-tokenizer; up to 100 µs for new data.
        """
        if self._absorption is None:
            return self.encode(data) is None
        if not self._left_ids:
            return False
        data = self._encoder.spelled(data)
        return self._absorption.absorbs(self._left, self._left_ids[-1], data)

    def encode(self, data: bytes) -> tuple[TargetId, ...] | None:
        """The ids of `data` after the committed ones; None if a text that ends there changes those.

        Text that the target cannot spell, and what comes after it, is left out.

        Cost: 3 µs for a word seen before, 10 µs for a new one.
        """
        data = self._encoder.spelled(data)
        if self._validity is None:
            return self._new_ids(self._encoder.encode(self._left + data))
        if not data:
            return ()
        rest: tuple[TargetId, ...] = ()
        if self._by_words and data.rfind(b" ") >= 1:
            data, *words = self._encoder.splitter.split(data)
            for word in words:
                rest += self._encode_piece(word)
        left = self._left
        if not left or (self._by_words and data[0] == _SPACE and left[-1] != _SPACE):
            return self._encode_piece(data) + rest
        if self._is_cut or data[0] & 0xC0 == 0x80:  # the boundary cuts a character
            new = self._new_ids(self._encode_piece(left + data))
            return None if new is None else new + rest
        # Every part of a canonical encoding is canonical. So `data` is encoded by itself, which is
        # mostly cached, and only the pair of tokens at the boundary is checked.
        ids = self._encode_piece(data)
        if self._validity.stays_apart(self._edge, self._validity.left_spine(ids[0])):
            return ids + rest
        return None

    def _new_ids(self, whole: Sequence[TargetId]) -> tuple[TargetId, ...] | None:
        """What comes after the committed ids in `whole`; None if it does not begin with them."""
        kept = len(self._left_ids)
        if list(whole[:kept]) != self._left_ids:
            return None
        return tuple(whole[kept:])
