"""The dictionary as DictSpec publishes it: context -> one whole continuation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log
from typing import NamedTuple

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
        self.entries = entries

    def __len__(self) -> int:
        """The number of stored contexts."""
        return len(self.entries)

    def longest_match(self, suffix: Sequence[TargetId]) -> Continuation | None:
        """The continuation of the longest stored suffix of `suffix`; None if none is stored."""
        for length in range(min(MAX_CONTEXT, len(suffix)), 0, -1):
            found = self.entries.get(tuple(suffix[len(suffix) - length :]))
            if found is not None:
                return Continuation(*found, length)
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

    def follow(
        self, suffix: Sequence[TargetId], limit: int, *, p_min: float | None = None
    ) -> TokenTree[TargetId]:
        """The continuation of the longest stored suffix, if its first id is as probable as `p_min`.

        Only the first id's probability is stored, so every id gets it.
        """
        found = self.longest_match(suffix)
        if found is None or (p_min is not None and found.probability < p_min):
            return EMPTY_TREE
        ids = found.ids[:limit]
        return TokenTree.chain(ids, SOURCE, (found.probability,) * len(ids))
