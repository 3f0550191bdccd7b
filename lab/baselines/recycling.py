"""Token Recycling and SAM-Decoding as published, kept as baselines.

Token Recycling drafts a tree of fixed shape: every place in it is a path of ranks, and the id at a
place is the one that the adjacency matrix has at that rank after the id above it. Probabilities are
not looked at. SAM-Decoding copies from the context where a long part of it occurred before, and
drafts like Token Recycling elsewhere.

Sources: Luo et al., "Turning Trash into Treasure" (2024), with the tree "2.2.2" of the repository
Luowaterbi/TokenRecycling; Hu et al., "SAM Decoding" (2024), with the repository
hyx1999/SAM-Decoding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from lab.baselines.adjacency import Adjacency, most_probable_chain
from tokalign.runtime.draft.suffix_automaton import SuffixAutomaton
from tokalign.runtime.rounds import Context, Drafter, Proposal
from tokalign.tables.token_tree import TokenTree
from tokalign.tokenizer.vocabulary import TargetId

RECYCLING = "recycling"
SAM = "sam"

RECYCLED_WIDTH = 8
"""Successors kept of each id."""

Shape: TypeAlias = Sequence[Sequence[int]]
"""A tree of ranks, level by level: how many children each place of the level above has.

They are the children of the lowest ranks; places that are left out at the end of a level have none.
"""

PUBLISHED_SHAPE: Shape = (
    (8,),
    (8, 4, 3, 2, 1, 1, 1, 1),
    (8, 3, 2, 1, 1, 1, 1, 1, 2, 1, 0, 0, 1, 0, 0, 1, 0, 1, 1),
    (5, 2, 1, 1, 1, 0, 0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 1, 1),
    (3, 1, 1, 0, 0, 1, 0, 0, 0, 0, 1, 0, 1),
    (2, 0, 0, 1),
)
"""80 places in levels of 8, 21, 25, 15, 8 and 3."""

SAM_THRESHOLD = 5
"""The shortest match that is copied from; shorter ones are left to the tree."""

SAM_COPIED = 40
"""Ids copied in a round."""


class TokenRecyclingDrafter(Drafter):
    """Drafts the published tree of the target's top-k logits after each id.

    adjacency: the verifier's store of rows. max_tokens: the first ids of the tree, level by level,
    that are proposed; None for all 80.
    branches: whether the target can verify a tree; the first ranks are proposed as a chain if not.
    """

    def __init__(
        self, adjacency: Adjacency, *, max_tokens: int | None = None, branches: bool = True
    ) -> None:
        self._adjacency = adjacency
        self._max_tokens = max_tokens
        self._branches = branches

    def propose(self, context: Context, limit: int) -> Proposal:
        if self._max_tokens is not None:
            limit = min(limit, self._max_tokens)
        last = context.ids[-1]
        if not self._branches:
            depth = min(limit, len(PUBLISHED_SHAPE))
            return Proposal(tree=most_probable_chain(self._adjacency, last, depth, RECYCLING))
        return Proposal(tree=recycled_tree(self._adjacency, last, PUBLISHED_SHAPE).head(limit))


class SamDrafter(Drafter):
    """Copies what followed a long match in the context, and drafts a recycled tree elsewhere.

    The longest suffix of the context that occurred before is the match, and its first occurrence is
    copied from. The published static automaton, which holds a corpus, is not part of it.
    recycling: drafts where the match is too short. max_tokens: ids copied at most.
    """

    def __init__(self, recycling: TokenRecyclingDrafter, *, max_tokens: int = SAM_COPIED) -> None:
        self._recycling = recycling
        self._max_tokens = max_tokens
        self._automaton = SuffixAutomaton()

    def propose(self, context: Context, limit: int) -> Proposal:
        automaton = self._automaton
        automaton.extend(context.ids[len(automaton) :])
        match = automaton.occurrence(automaton.longest_repeat())
        if match is None or match.length < SAM_THRESHOLD:
            return self._recycling.propose(context, limit)
        most = min(limit, self._max_tokens)
        return Proposal(tree=TokenTree.chain(context.ids[match.first : match.first + most], SAM))


def recycled_tree(adjacency: Adjacency, last: TargetId, shape: Shape) -> TokenTree[TargetId]:
    """The ids at the places of a shape after the id `last`, level by level.

    Places below an id that was never verified stay empty.
    Example: with the shape ((2,), (1,)) and rows 5: 7 8, 7: 9 4, what may follow 5 is 7 and 8, and
    9 after 7.
    """
    ids: list[TargetId] = []
    parents: list[int] = []
    level: list[int | None] = [-1]  # indices of the places above; None for an empty one
    for counts in shape:
        below: list[int | None] = []
        for above, count in zip(level, counts, strict=False):
            found = None
            if above is not None:
                found = adjacency.after(ids[above] if above >= 0 else last)
            for rank in range(count):
                if above is None or found is None or rank >= len(found.ids):
                    below.append(None)
                    continue
                below.append(len(ids))
                ids.append(found.ids[rank])
                parents.append(above)
        level = below
    return TokenTree(tuple(ids), tuple(parents), (RECYCLING,) * len(ids))
