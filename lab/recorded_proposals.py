"""A trace: what drafters proposed at every position of texts, and how much of it was right.

A trace holds no text, and tells what any draft length would have brought under any costs. Every
drafter was asked at every position for the longest draft of interest. `project.py` replays a trace
with the planner, and `traces.py` keeps it in a file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

from tokalign.runtime.rounds import Context, Drafter, Round
from tokalign.tables.token_tree import TokenTree
from tokalign.tokenizer.vocabulary import TargetId

ENOUGH = 64
"""More ids than a drafter ever proposes."""

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


def record(
    reference: Sequence[TargetId],
    drafters: Mapping[str, Drafter],
    *,
    prompt_tokens: int,
    limit: int = ENOUGH,
) -> TracedText:
    """Ask every drafter at every position of a text after its first `prompt_tokens` ids.

    limit: the most ids to ask for. A trace of long drafts also tells about shorter ones.
    """
    text = TracedText(given=min(prompt_tokens, len(reference)), length=len(reference))
    context = Context(reference[:prompt_tokens])
    for position in range(prompt_tokens, len(reference)):
        room = min(limit, len(reference) - position - 1)  # the target adds one id of its own
        for name, drafter in drafters.items():
            if room:
                found = _ask(drafter, context, room, reference[position:])
                text.proposals.setdefault(name, {})[position] = found
        context.extend(reference[position : position + 1])
    return text


def _ask(
    drafter: Drafter, context: Context, limit: int, following: Sequence[TargetId]
) -> RecordedProposal:
    proposal = drafter.propose(context, limit)
    path = proposal.tree.path_of(following[: len(proposal.tree)])
    emitted = tuple(following[: len(path) + 1])
    drafter.observe(Round(limit=limit, tree=proposal.tree, path=tuple(path), emitted=emitted))
    return RecordedProposal.of(proposal.tree, path, passes=proposal.draft_passes)
