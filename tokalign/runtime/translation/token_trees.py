"""Trees in which every draft token is one target token: no text is translated, only ids.

`shared_ids.py` and `intersection.py` grow their trees with it. The first pass lists what may follow
the text, and `growth.py` does the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tokalign.runtime.context import Context
from tokalign.runtime.interfaces import DraftSampler, DraftSession, Pending, Shortlist
from tokalign.runtime.translation.base import Translated
from tokalign.runtime.translation.growth import (
    TEXT,
    Extend,
    Extension,
    Growth,
    Node,
    expectation,
    join,
)
from tokalign.tables.alignment import Intersection
from tokalign.tables.token_tree import EMPTY_TREE
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
        return Translated((), tree=join(self.grow(roots).finish(), 1.0))


def start_tree(
    context: Context,
    session: DraftSession,
    ids: Sequence[DraftId],
    steps: int,
    *,
    target_of: Callable[[DraftId], TargetId | None],
    shared: Intersection | None = None,
    sampler: DraftSampler | None = None,
) -> PendingTree:
    """Start a tree of at most `steps` (1 or more) passes after the draft's `ids` of the context.

    target_of: the target id that a draft id stands for; after one that stands for none the tree
    ends. shared: as for `DraftSession.branch`. sampler: one that `can_rank`.
    """
    expect = expectation(sampler, len(context.ids))

    def extend(node: Node, token: DraftId) -> Extension:
        target = target_of(token)
        found = None if target is None or node.ids is None else (*node.ids, target)
        return Extension(b"", found, goes_on=found is not None)

    def grow(roots: Sequence[Node]) -> Growth:
        return Growth(session, ids, roots, steps - 1, extend=extend, shared=shared, expect=expect)

    of_first = None if expect is None else lambda logits: expect([0], logits)
    first = session.branch(ids, EMPTY_TREE, None, _ROOTS, shared, of_first)
    return PendingTree(first, grow, extend)
