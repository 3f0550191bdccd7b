"""Drafting with a recurrent drafter: the best ids of a beam search become a tree of guesses.

A search keeps `width` beams. In every step each beam is continued by its top `count` ids, and
the best of these continuations are the next step's beams. All of them are the children of a beam,
so together they are a tree in which every shared prefix exists once: nothing has to be merged
afterwards, as the published implementation does by comparing candidates (`dedup_prefix`).
The search looks at more continuations than are worth verifying, because listing them costs nothing
on top of a step. The expected gain decides which of them become rows, as for every source. A beam
of fixed shape, as published, is there for experiments.
Where the target samples, the search predicts its choices, because the drafter shares its noise.
With logits processors, which need the history of every row, a chain is drawn instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import exp, isfinite
from typing import TYPE_CHECKING, NamedTuple

from tokalign.runtime.draft.neural import ModelDrafter
from tokalign.runtime.methods import DEFAULT_ALTERNATIVES
from tokalign.runtime.rounds import Context
from tokalign.runtime.translation.base import Translated, chain_with_leaves
from tokalign.tables.token_tree import TokenTree
from tokalign.tokenizer.vocabulary import TargetId

if TYPE_CHECKING:
    from tokalign.runtime.mlx.drafter_session import DrafterSession
    from tokalign.runtime.mlx.sampling import Sampling


class BeamShape(NamedTuple):
    """How wide and how long a search is: beams, and ids of each beam."""

    width: int
    length: int


class Beams(NamedTuple):
    """The continuations that a search looked at.

    ids, logprobs: [length][width][count], the most probable ids after every beam and their
    conditional log-probabilities; in the first step there is one beam only. chosen:
    [length][width], which continuations are the next beams, most probable first:
    beam * count + place.
    """

    ids: Sequence[Sequence[Sequence[TargetId]]]
    logprobs: Sequence[Sequence[Sequence[float]]]
    chosen: Sequence[Sequence[int]]

    def tree(self, source: str) -> TokenTree[TargetId]:
        """All continuations, the chain of the most probable beam first."""
        return self._as_tree(self._nodes(), source)

    def beam_tree(self, source: str) -> TokenTree[TargetId]:
        """The last step's beams alone: a beam of fixed shape, its shared prefixes merged.

        Example: the beams 7 8 9, 7 8 4 and 7 2 3 are six rows instead of nine.
        """
        nodes = list(self._nodes())
        kept: set[tuple[int, int]] = set()
        for place in self.chosen[-1]:
            step: int | None = len(self.chosen) - 1
            while step is not None and step >= 0:
                kept.add((step, place))
                place = self._parent(step, place)
                step -= 1
        return self._as_tree((node for node in nodes if node in kept), source)

    @property
    def _count(self) -> int:
        return len(self.ids[0][0])

    def _parent(self, step: int, place: int) -> int:
        """The place in the step before that a continuation follows; -1 in the first one."""
        return self.chosen[step - 1][place // self._count] if step else -1

    def _nodes(self) -> Iterator[tuple[int, int]]:
        """Step and place of every continuation: those of the most probable beam, then all
        others."""
        best, place = [], self.chosen[-1][0]
        for step in reversed(range(len(self.chosen))):
            best.append((step, place))
            place = self._parent(step, place)
        yield from reversed(best)
        first = set(best)
        for step, of_beams in enumerate(self.logprobs):
            for beam, values in enumerate(of_beams if step else of_beams[:1]):
                for rank, value in enumerate(values):
                    node = step, beam * self._count + rank
                    if isfinite(value) and node not in first:
                        yield node

    def _as_tree(self, nodes: Iterator[tuple[int, int]], source: str) -> TokenTree[TargetId]:
        """These continuations, of which none comes before the one that it follows."""
        index: dict[tuple[int, int], int] = {}
        ids: list[TargetId] = []
        parents: list[int] = []
        probabilities: list[float] = []
        for step, place in nodes:
            beam, rank = divmod(place, self._count)
            parent = index.get((step - 1, self._parent(step, place))) if step else -1
            if parent is None:  # its beam is impossible
                continue
            index[step, place] = len(ids)
            ids.append(self.ids[step][beam][rank])
            parents.append(parent)
            probabilities.append(exp(self.logprobs[step][beam][rank]))
        count = len(ids)
        return TokenTree(tuple(ids), tuple(parents), (source,) * count, tuple(probabilities))


SOURCE = "drafter"

DEFAULT_SHAPE = BeamShape(width=4, length=4)
"""Beams that are searched where the rows are chosen by their gain."""

_LISTED = 8
"""Ids listed after every beam."""

_LEAST_REACHED = 0.003
"""Ids that are less likely to be reached are not looked at."""


class BeamDrafter(ModelDrafter):
    """A recurrent drafter as a drafter of one request, alone or as the model of a hybrid.

    session: of the drafter. sampler: how the target's choices are predicted or drawn; None if it
    decodes greedily. length: steps of a search where the caller does not choose their number.
    width: beams of a search, unless `beam` says.
    beam: propose this beam whole, however unlikely.
    rows: propose so many ids, whatever they cost. branches: whether a proposal may be a tree.
    """

    def __init__(
        self,
        session: DrafterSession,
        *,
        sampler: Sampling | None = None,
        length: int = DEFAULT_SHAPE.length,
        width: int = DEFAULT_SHAPE.width,
        beam: BeamShape | None = None,
        rows: int | None = None,
        branches: bool = True,
    ) -> None:
        steps = length if beam is None else beam.length
        super().__init__(session, steps, DEFAULT_ALTERNATIVES if branches else 0)
        self._session, self._sampler = session, sampler
        self._beam, self._rows = beam, rows
        self._width = 1 if not branches else width if beam is None else beam.width
        self._listed = self._width if beam is not None or not branches else _LISTED

    def choose(self, tree: TokenTree[TargetId], limit: int) -> TokenTree[TargetId]:
        if self._beam is not None:
            return tree
        if self._rows is not None:
            return tree.most_probable(self._rows, least=0.0, depth=limit)
        return super().choose(tree, limit)

    def find(self, context: Context, steps: int) -> Translated:
        """See `ModelDrafter`. Nothing is found before the target's first pass."""
        if self._sampler is not None and self._sampler.needs_history:
            drawn = self._session.draw(context.ids, steps, sampler=self._sampler).read()
            learned = self._acceptance.probabilities
            return Translated(chain_with_leaves(drawn or (), learned, source=SOURCE))
        shape = BeamShape(self._width, steps)
        beams = self._session.search(
            context.ids, shape, count=self._listed, sampler=self._sampler
        ).read()
        if beams is None:
            return Translated()
        if self._beam is not None:
            return Translated(beams.beam_tree(SOURCE))
        tree = beams.tree(SOURCE)
        return Translated(tree.most_probable(len(tree), least=_LEAST_REACHED, depth=steps))
