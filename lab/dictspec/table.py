"""The dictionary as DictSpec publishes it: context -> one whole continuation, in a marisa trie.

The paper names the trie and not its layout. Here an entry is one key: how many ids its context has,
the context, the continuation; so the beginnings that contexts share are stored once, and with them
most of what continues them. A look-up asks for the keys that begin with a context, the longest one
first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from math import log
from typing import NamedTuple

import marisa_trie
import numpy as np
from numpy.typing import NDArray

from tokalign.tables.dictionary import MAX_CONTEXT, SOURCE, Ids
from tokalign.tables.token_tree import EMPTY_TREE, TokenTree
from tokalign.tokenizer.vocabulary import TargetId

MAX_CONTINUATION = 8
"""The longest continuation that is stored, in ids."""


class Continuation(NamedTuple):
    """What the table expects next.

    ids: the expected ids, 1 to 8. probability: that the first of them follows. matched: the length
    of the stored context, 1 to 8 ids.
    """

    ids: Ids
    probability: float
    matched: int


class DictSpecTable:
    """Text -> the best continuation, by the longest stored suffix.

    entries: context -> continuation, each of 1 to 8 ids, and the probability of its first id.
    """

    def __init__(self, entries: Mapping[Ids, tuple[Ids, float]]) -> None:
        most = max((token for ids, (rest, _) in entries.items() for token in ids + rest), default=0)
        self._type = np.dtype(">u2" if most < 1 << 16 else ">u4")
        keys = {
            bytes([len(context)]) + self._pack(context + rest): probability
            for context, (rest, probability) in entries.items()
        }
        self._trie = marisa_trie.BinaryTrie(keys, num_tries=8)
        self._probabilities = np.empty(len(keys), dtype=np.float32)
        self._least = np.float32(0)
        for key, probability in keys.items():
            self._probabilities[self._trie.key_id(key)] = probability

    def __len__(self) -> int:
        """The number of stored contexts."""
        return len(self._trie)

    @property
    def size(self) -> int:
        """In bytes: what the trie takes on disk. Probabilities, which the paper
        does not store, are left out."""
        return len(self._trie.tobytes())

    def at_least(self, p_min: float) -> DictSpecTable:
        """The same table, in which contexts are not found whose continuation is less probable."""
        stricter = copy(self)
        stricter._least = np.float32(p_min)
        return stricter

    def entries(self) -> Iterator[tuple[Ids, Ids, float]]:
        """Every context with its continuation and the probability of its first id."""
        for key in self._trie.iterkeys():
            start = 1 + key[0] * self._type.itemsize
            probability = float(self._probabilities[self._trie.key_id(key)])
            yield self._unpack(key[1:start]), self._unpack(key[start:]), probability

    @property
    def known_ids(self) -> NDArray[np.uint32]:
        """See `Dictionary`."""
        return np.array(sorted({i for _, rest, _ in self.entries() for i in rest}), np.uint32)

    def longest_match(self, suffix: Sequence[TargetId]) -> Continuation | None:
        """The continuation of the longest stored suffix of `suffix`; None if none is stored."""
        packed, width = self._pack(suffix[-MAX_CONTEXT:]), self._type.itemsize
        for length in range(len(packed) // width, 0, -1):
            beginning = bytes([length]) + packed[-length * width :]
            for key in self._trie.keys(beginning):
                probability = self._probabilities[self._trie.key_id(key)]
                if probability >= self._least:
                    rest = self._unpack(key[len(beginning) :])
                    return Continuation(rest, float(probability), length)
        return None

    def match_length(self, suffix: Sequence[TargetId]) -> int:
        found = self.longest_match(suffix)
        return 0 if found is None else found.matched

    def expected(self, suffix: Sequence[TargetId]) -> Sequence[tuple[TargetId, float]]:
        """See `dictionary.Dictionary`. Where no context matches, a longer continuation goes on."""
        tail = list(suffix)
        for taken in range(min(len(tail), MAX_CONTINUATION)):
            found = self.longest_match(tail[: len(tail) - taken])
            if found is None or list(found.ids[:taken]) != tail[len(tail) - taken :]:
                continue
            if len(found.ids) > taken:
                p = min(max(found.probability, 0.002), 0.998)
                return ((found.ids[taken], log(p / (1.0 - p))),)
        return ()

    def follow(self, suffix: Sequence[TargetId], limit: int) -> TokenTree[TargetId]:
        """The continuation of the longest stored suffix. Only the first id's probability is stored,
        so every id gets it."""
        found = self.longest_match(suffix)
        if found is None:
            return EMPTY_TREE
        ids = found.ids[:limit]
        return TokenTree.chain(ids, SOURCE, (found.probability,) * len(ids))

    def _pack(self, ids: Sequence[TargetId]) -> bytes:
        return np.array(ids, dtype=self._type).tobytes()

    def _unpack(self, packed: bytes) -> Ids:
        return tuple(np.frombuffer(packed, dtype=self._type).tolist())
