"""Trees in which every draft token is one target token: no text is translated, only ids.

`shared_ids.py` and `intersection.py` grow their trees with it. The first pass lists what may follow
the text; `growth.py` does the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from tokalign.runtime.context import Context
from tokalign.runtime.interfaces import DraftSampler, DraftSession, Pending, Shortlist
from tokalign.runtime.translation.base import PendingDraft, Translated
from tokalign.runtime.translation.growth import (
    TEXT,
    Branches,
    Extend,
    Extension,
    Growth,
    Node,
    can_rank,
    expectation,
    join,
)
from tokalign.tables.alignment import Intersection
from tokalign.tokenizer.vocabulary import DraftId, TargetId

_ROOTS = 8
"""How many first ids are listed; some more than are gone on after, as they cost no pass."""


@dataclass(frozen=True, slots=True)
class PendingTree:
    """A pass under way for the first ids of a tree, and what grows the tree from them."""

    first: Pending[list[Shortlist]]
    grow: Callable[[Sequence[Node]], Growth]
    extend: Extend

    def finish(self) -> Translated:
        """See `PendingDraft`."""
        [found] = self.first.read()
        listed = zip(found.logprobs, found.ids, strict=True)
        roots = [
            Node(logprob, -1, 0, token, *self.extend(TEXT, token))
            for logprob, token in sorted(listed, reverse=True)
        ]
        # A target that takes its likeliest id agrees with the draft's more often than the draft's
        # probability says, so that the chain is worth its rows wherever it leads.
        return Translated((), tree=join(self.grow(roots).finish(), 1.0), keeps_chain=True)


def start_tree(
    context: Context,
    session: DraftSession,
    ids: Sequence[DraftId],
    steps: int,
    *,
    alternatives: int,
    target_of: Callable[[DraftId], TargetId | None],
    shared: Intersection | None = None,
    sampler: DraftSampler | None = None,
) -> PendingDraft | None:
    """Start a tree of at most `steps` (1 or more) passes after the draft's `ids` of the context.

    alternatives: as for `Translation.begin`. target_of: the target id that a draft id stands for;
    after one that stands for none the tree ends. shared: as for `DraftSession.branch`.
    Returns: None where only a chain is possible.
    """
    if not alternatives or not session.can_branch or not can_rank(sampler):
        return None
    expect = expectation(sampler, len(context.ids))

    def extend(node: Node, token: DraftId) -> Extension:
        target = target_of(token)
        found = None if target is None or node.ids is None else (*node.ids, target)
        return Extension(b"", found, goes_on=found is not None)

    def grow(roots: Sequence[Node]) -> Growth:
        return Growth(session, ids, roots, steps - 1, extend=extend, shared=shared, expect=expect)

    of_first = None if expect is None else partial(expect, [0])
    first = Branches(session, ids, 0).look(_ROOTS, shared, of_first)
    return PendingTree(first, grow, extend)
