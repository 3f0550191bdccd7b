"""Where the committed text ends: what may follow it, in the target's canonical encoding.

Committed ids are never changed. So bytes that follow them either have a canonical encoding that
leaves those ids as they are, or they would be *absorbed*: the target has already decided against
them when it ended its last token where it did.
"""

from __future__ import annotations

from collections.abc import Sequence

from tokalign.alignment_tables import MergeSites
from tokalign.incremental import IncrementalEncoder
from tokalign.pieces import WordSplitter
from tokalign.tokenizers import Tokenizer
from tokalign.vocab import TargetId


class Boundary:
    """Encodes what follows the committed ids.

    Example (Mistral): behind `▁kom`, `b"puter"` is absorbed if ` komputer` is a token; behind
    `▁k`, `b"om "` is not, if ` kom` is none.
    Only the ids since the last settled piece matter (`incremental.py`): a few tokens.
    """

    def __init__(self, target: Tokenizer[TargetId], merge_sites: MergeSites | None = None) -> None:
        self._merge_sites = merge_sites
        self._tokens = target.vocabulary.tokens
        self._bpe = target.bpe
        self._segment = IncrementalEncoder(target.bpe)
        self._by_words = isinstance(target.splitter, WordSplitter)
        self._seen = 0
        self._left: bytes = b""
        self._left_ids: list[TargetId] = []

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
        canonical = [TargetId(i) for i in self._segment.ids[self._segment.stable :]]
        committed = list(ids[len(ids) - len(canonical) :])
        if canonical != committed:
            # The target spelled its text in a way of its own: all that counts is its last token.
            committed = list(ids[-1:]) if canonical else []
        self._left_ids = committed
        self._left = b"".join([self._tokens[i] for i in committed])

    def absorbs(self, data: bytes) -> bool:
        """Whether nothing canonical can go on with `data`, whatever comes behind it.

        A stronger statement than that `encode` gives None: there, text behind `data` may still keep
        the boundary. Without a table of merge sites the weaker one has to do. Cost: 1 µs.
        """
        if self._merge_sites is None:
            return self.encode(data) is None
        return bool(self._left_ids) and self._merge_sites.absorbs(self._left_ids[-1], data)

    def encode(self, data: bytes) -> list[TargetId] | None:
        """The ids of `data` behind the committed ones; None if those would not stay with it alone.

        Cost: 1 µs for words seen before, 10 µs for new ones.
        """
        if self._by_words and b" " not in data[1:]:
            whole = self._encode_word(data)
        else:
            whole = self._bpe.encode(self._left + data)
        kept = len(self._left_ids)
        if whole[:kept] != self._left_ids:
            return None
        return [TargetId(i) for i in whole[kept:]]

    def _encode_word(self, data: bytes) -> list[int]:
        """The committed ids and `data`, which is a word or goes on with one: one piece at most.

        What splitting would find out again for every guess of a round.
        """
        left = self._left
        if data[:1] == b" " and left and left[-1:] != b" ":
            return [*self._left_ids, *self._bpe.encode_piece(data)]
        return list(self._bpe.encode_piece(left + data)) if left or data else []
