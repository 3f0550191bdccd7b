"""Where the committed text ends: what may follow it, in the target's canonical encoding.

Committed ids are never changed. So bytes that follow them either have a canonical encoding that
leaves those ids as they are, or they would be *absorbed*: the target has already decided against
them when it ended its last token where it did.
"""

from __future__ import annotations

from collections.abc import Sequence

from tokalign.bpe.incremental import IncrementalEncoder
from tokalign.bpe.pretokenizer import WordSplitter, incomplete_tail
from tokalign.bpe.spines import Spine
from tokalign.tables.absorption import share
from tokalign.tables.alignment import MergeSites
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import TargetId

_SPACE = 0x20


class Boundary:
    """Encodes what follows the committed ids.

    Example (Mistral): behind `▁kom`, `b"puter"` is absorbed if ` komputer` is a token; behind
    `▁k`, `b"om "` is not, if ` kom` is none.
    Only the ids since the last settled piece matter (`incremental.py`): a few tokens.
    """

    def __init__(self, target: Tokenizer[TargetId], merge_sites: MergeSites | None = None) -> None:
        self._absorption = share(target.bpe, merge_sites) if merge_sites is not None else None
        self._tokens = target.vocabulary.tokens
        self._bpe = target.bpe
        self._encode_piece = target.bpe.encode_piece
        self._validity = target.bpe.validity
        self._segment = IncrementalEncoder(target.bpe)
        self._by_words = isinstance(target.splitter, WordSplitter)
        self._seen = 0
        self._left: bytes = b""
        self._left_ids: list[TargetId] = []
        self._is_cut = False  # whether the committed text ends within a character
        self._edge: Spine[TargetId] = ()  # of the last committed token

    def follow(self, ids: Sequence[TargetId]) -> None:
        """Take in what `ids` (prompt and output, whole) has more than at the last call.

        Cost: 10 µs plus encoding the new bytes.
        """
        for token in ids[self._seen :]:
            data = self._tokens[token] if token < len(self._tokens) else b""
            if data:
                self._segment.push(data)
            else:
                self._segment = IncrementalEncoder(self._bpe)
        self._seen = len(ids)
        canonical = self._segment.ids[self._segment.settled :]
        committed = list(ids[len(ids) - len(canonical) :])
        if canonical != committed:
            # The target spelled its text in a way of its own: all that counts is its last token.
            committed = list(ids[-1:]) if canonical else []
        self._left_ids = committed
        self._left = b"".join([self._tokens[i] for i in committed])
        self._is_cut = incomplete_tail(self._left) > 0
        self._edge = self._validity.right_spine(committed[-1]) if committed else ()

    def absorbs(self, data: bytes) -> bool:
        """Whether nothing canonical can go on with `data`, whatever comes behind it.

        A stronger statement than that `encode` gives None: there, text behind `data` may still keep
        the boundary. Without a table of merge sites the weaker one has to do.
        Cost: 2 µs, 20 µs with a pre-tokenizer, up to 100 µs for what was not asked before.
        """
        if self._absorption is None:
            return self.encode(data) is None
        if not self._left_ids:
            return False
        return self._absorption.absorbs(self._left, self._left_ids[-1], data)

    def encode(self, data: bytes) -> tuple[TargetId, ...] | None:
        """The ids of `data` behind the committed ones; None if those would not stay with it alone.

        Cost: 3 µs for a word seen before, 10 µs for a new one.
        """
        if not self._by_words:
            return self._behind(self._bpe.encode(self._left + data))
        if not data:
            return ()
        behind: tuple[TargetId, ...] = ()
        if data.rfind(b" ") >= 1:
            data, *words = self._bpe.splitter.split(data)
            for word in words:
                behind += self._encode_piece(word)
        left = self._left
        if not left or (data[0] == _SPACE and left[-1] != _SPACE):
            return self._encode_piece(data) + behind
        if self._is_cut or data[0] & 0xC0 == 0x80:  # the boundary cuts a character
            whole = self._behind(self._encode_piece(left + data))
            return None if whole is None else whole + behind
        # What is canonical together is canonical by itself, so `data` is encoded by itself, which
        # was mostly done before, and the pair at the boundary is looked at.
        ids = self._encode_piece(data)
        if self._validity.stays_apart(self._edge, self._validity.left_spine(ids[0])):
            return ids + behind
        return None

    def _behind(self, whole: Sequence[TargetId]) -> tuple[TargetId, ...] | None:
        """What stands behind the committed ids, if `whole` begins with them."""
        kept = len(self._left_ids)
        if list(whole[:kept]) != self._left_ids:
            return None
        return tuple(whole[kept:])
