"""A trace: what drafters proposed at every position of texts, and how much of it was right.

A trace holds no text, and tells what any draft length would have brought under any costs. Every
drafter was asked at every position for the longest draft of interest. `lab/project.py` replays a
trace with the planner, and `lab/traces.py` keeps it in a file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

from tokalign.runtime.draft_length.learned_costs import Costs
from tokalign.tables.token_tree import EMPTY_TREE, TokenTree
from tokalign.tokenizer.vocabulary import TargetId

WRONG = TargetId(-1)
"""Stands for every id that the text does not go on with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedProposal:
    """A proposal and how much of it was right.

    tree: in the place of each id that is right its distance from the position of the proposal (0
    for the next id of the text), in the place of every other one `WRONG`.
    passes: of a draft model.
    """

    tree: TokenTree[TargetId]
    passes: int = 0

    @classmethod
    def of(cls, tree: TokenTree[TargetId], path: Sequence[int], *, passes: int = 0) -> Self:
        """Record a proposal of which the text goes on with the ids at the indices `path`.

        Raises: ValueError if that is no path of the tree.
        """
        ids = [WRONG] * len(tree)
        for depth, index in enumerate(path):
            ids[index] = TargetId(depth)
        found = cls(tree=replace(tree, ids=tuple(ids)), passes=passes)
        if found.path != list(path):
            raise ValueError(f"{list(path)} is no path through {len(tree)} ids")
        return found

    @property
    def path(self) -> list[int]:
        """Indices of the ids that the text goes on with, whether they were verified or not."""
        return self.tree.path_of([TargetId(depth) for depth in range(len(self.tree))])

    @property
    def accepted(self) -> int:
        """How many ids the text goes on with."""
        return len(self.path)

    @property
    def length(self) -> int:
        """The draft length: passes of a draft model, else ids."""
        return self.passes or len(self.tree)

    def at_most(self, length: int) -> RecordedProposal:
        """The proposal that a shorter draft length would have made.

        How many ids a pass of a draft model brings depends on both tokenizers and is not recorded.
        They are spread evenly over the passes, which is right on average only. Ids beside the first
        chain are kept where they follow the text or an id of the chain that is kept.
        """
        if length >= self.length:
            return self
        if not self.passes:
            return replace(self, tree=self.tree.head(length))
        tree, chain = self.tree, self.tree.chain_length
        count = max(1, round(chain * length / self.passes)) if chain else 0
        others = (i for i in range(chain, len(tree)) if tree.parents[i] < count)
        return replace(self, tree=tree.select([*range(count), *others]), passes=length)


@dataclass(slots=True, kw_only=True)
class TracedText:
    """One text of `length` ids, the first `given` of them its prompt.

    proposals: by drafter and by position, the number of ids before the proposal.
    """

    given: int
    length: int
    proposals: dict[str, dict[int, RecordedProposal]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposalTrace:
    """The proposals of drafters at the positions of some texts."""

    texts: tuple[TracedText, ...]

    @property
    def tokens(self) -> int:
        """How many ids the texts have after their prompts."""
        return sum(text.length - text.given for text in self.texts)

    @property
    def proposals(self) -> Iterator[RecordedProposal]:
        """Every proposal of every drafter."""
        for text in self.texts:
            for recorded in text.proposals.values():
                yield from recorded.values()

    @property
    def longest(self) -> int:
        """The longest draft length."""
        return max((one.length for one in self.proposals), default=0)


def speedup_at(trace: ProposalTrace, costs: Costs, length: int) -> float:
    """How much faster than plain decoding the texts would come at a fixed draft length.

    length: as in `RecordedProposal.length`. trace: of one drafter. costs: of the passes; nothing
    else takes time.
    """
    seconds = 0.0
    for text in trace.texts:
        ((_, proposals),) = text.proposals.items() or [("", {})]
        at = text.given
        while at < text.length:
            found = proposals.get(at, RecordedProposal(tree=EMPTY_TREE)).at_most(length)
            grown = found.tree.chain_length < len(found.tree)
            seconds += costs.drafting(found.passes, tree=grown)
            seconds += costs.verify(1 + len(found.tree)) + costs.host
            at += found.accepted + 1
    return trace.tokens * costs.verify(1) / seconds
