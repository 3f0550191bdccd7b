"""The look-up drafts of mlx-dspark 0.20.3, rebuilt from how they behave, kept as a baseline."""

from __future__ import annotations

from collections.abc import Sequence

from tokalign.runtime.rounds import Context, Drafter, Proposal, Round
from tokalign.tables.token_tree import TokenTree
from tokalign.tokenizer.vocabulary import TargetId

LOOKUP = "look-up"

_SIZES = 4, 3
"""Ids of the n-grams that are looked up, the longer ones first."""

_SHORT, _LONG, _DEEP = 6, 32, 8
"""Ids drafted; at most so many after a match of `_DEEP` ids or more, twice the match."""

_FAILURES, _PAUSE = 2, 8
"""After two long drafts less than half right, drafts are short, with a long one every 8th time."""


class TrigramLookupDrafter(Drafter):
    """Proposes what followed the latest earlier occurrence of the last four or three ids.

    Source: the package mlx-dspark 0.20.3, `lookup_generate` with its default arguments.
    """

    def __init__(self) -> None:
        self._ends: dict[tuple[TargetId, ...], int] = {}
        self._indexed = 0
        self._failures = self._short_drafts = 0

    def propose(self, context: Context, limit: int) -> Proposal:
        ids = context.ids
        # The n-grams that end with the text are left out, so the latest end is an earlier one.
        for end in range(self._indexed, len(ids)):
            for size in _SIZES:
                if size <= end:
                    self._ends[tuple(ids[end - size : end])] = end
        self._indexed = len(ids)
        for size in _SIZES:
            found = self._ends.get(tuple(ids[-size:]))
            if found is not None:
                most = min(limit, self._length(ids, found, size))
                return Proposal(tree=TokenTree.chain(ids[found : found + most], LOOKUP))
        return Proposal()

    def _length(self, ids: Sequence[TargetId], end: int, size: int) -> int:
        if self._failures >= _FAILURES and self._short_drafts < _PAUSE:
            return _SHORT
        length = size
        while length < _LONG and end > length and ids[-length - 1] == ids[end - length - 1]:
            length += 1
        return min(_LONG, 2 * length) if length >= _DEEP else _SHORT

    def observe(self, one: Round) -> None:
        """See `rounds.Drafter`."""
        if len(one.tree) > _SHORT:
            failed = 2 * one.accepted < len(one.tree)
            self._failures = self._failures + 1 if failed else 0
            self._short_drafts = 0
        elif one.tree:
            self._short_drafts += 1
