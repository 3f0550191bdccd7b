"""What a beam search found, as a tree.

A search keeps `width` beams. In every step each beam is continued by its top `count` ids, and
the best of these continuations are the next step's beams. All of them are the children of a beam,
so together they are a tree in which every shared prefix exists once: nothing has to be merged
afterwards, as the published implementation does by comparing candidates (`dedup_prefix`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import exp, isfinite
from typing import NamedTuple

from tokalign.tables.token_tree import TokenTree
from tokalign.tokenizer.vocabulary import TargetId


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
