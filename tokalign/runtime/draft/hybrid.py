"""The hybrid: every source says what it expects, and the best tree of it all is proposed.

The tree grows one id at a time, always by the id that is most probably reached. At each node the
sources are asked what may follow, and `mixing.py` makes one probability of what they say. Growth
ends where no further row can bring more than it costs; the part of the tree with the best expected
rate is proposed. Where one source ends, another goes on, because all are asked at every node.
The answer of a draft model joins them as one more source (`Hybrid.join`); `cost_aware.py` decides
when it is worth its price.
Source: best-first growth after OPT-Tree (Wang et al., 2024) and SuffixDecoding (Oliaro et al.,
2024).
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Sequence
from math import log
from typing import Any, Protocol

from tokalign.cost.expected_gain import Costs
from tokalign.runtime.context import Context
from tokalign.runtime.draft.mixing import Candidate, Mixer, Mixing, Source
from tokalign.runtime.draft.trust import LEAST
from tokalign.runtime.interfaces import Drafter
from tokalign.runtime.proposal import Proposal
from tokalign.runtime.rounds import Round
from tokalign.tables.token_tree import TokenTree
from tokalign.tokenizer.vocabulary import TargetId

FREE_ROWS = Costs(rows=(1.0,))
"""Costs under which any number of rows takes one pass, as emulators count."""


_LEAST_REACHED = 0.003
"""Ids that are less likely to be reached are not looked at."""

_MOST_PROBABLE = 0.99


class ComingNoise(Protocol):
    """Knows the noise that the target's choices at coming positions will be made with."""

    def rows(self, position: int) -> Sequence[Sequence[float]]:
        """e to the noise of every id, for `position` and as many further ones as are known."""
        ...


class _Node:
    """A place in the tree: the text, or an id of the tree."""

    __slots__ = ("candidates", "children", "depth", "index", "reached", "states")

    def __init__(self, index: int, depth: int, states: Sequence[Any], reached: float) -> None:
        self.index, self.depth, self.states, self.reached = index, depth, states, reached
        self.candidates: list[Candidate] = []
        self.children: dict[TargetId, _Node] = {}


class _Growth:
    """A tree of at most `limit` ids that grows best-first.

    noise: by depth, see `Mixer.candidates`; at further depths it is not known.
    """

    def __init__(
        self,
        mixer: Mixer,
        sources: Sequence[Source],
        states: Sequence[Any],
        limit: int,
        noise: Sequence[Sequence[float]] = (),
    ) -> None:
        self._mixer, self._sources, self._limit, self._noise = mixer, sources, limit, noise
        self.root = _Node(-1, 0, states, 1.0)
        # The ids that may still join the tree, the most probable first; ties go to the first found.
        self._frontier: list[tuple[float, int, _Node, Candidate, float]] = []
        self._found = 0
        self.ids: list[TargetId] = []
        self.parents: list[int] = []
        self.names: list[str] = []
        self.probabilities: list[float] = []
        self.reached: list[float] = []
        self._expand(self.root)

    def _expand(self, node: _Node) -> None:
        frontier, room = self._frontier, self._limit - len(self.ids)
        least = -frontier[room - 1][0] if 0 < room <= len(frontier) else _LEAST_REACHED
        if not room or least > _MOST_PROBABLE * node.reached:
            return
        noise = self._noise[node.depth] if node.depth < len(self._noise) else None
        node.candidates, chances = self._mixer.candidates(
            node.states, least / node.reached, _LEAST_REACHED / node.reached, noise
        )
        for one, chance in zip(node.candidates, chances, strict=True):
            reached = node.reached * chance
            if reached >= least:
                self._found += 1
                insort(frontier, (-reached, self._found, node, one, chance))
        del frontier[room:]

    @property
    def next_reached(self) -> float:
        """How likely the next id is to be reached; 0 if the sources know no more."""
        return -self._frontier[0][0] if self._frontier else 0.0

    def grow(self) -> None:
        """Add the id that is most probably reached."""
        negative, _, parent, (token, _, name, _), chance = self._frontier.pop(0)
        self.parents.append(parent.index)
        self.ids.append(token)
        self.names.append(name)
        self.probabilities.append(chance)
        self.reached.append(-negative)
        states = [
            None if state is None else source.advance(state, token)
            for source, state in zip(self._sources, parent.states, strict=True)
        ]
        node = _Node(len(self.ids) - 1, parent.depth + 1, states, -negative)
        parent.children[token] = node
        self._expand(node)

    def tree(self, count: int) -> TokenTree[TargetId]:
        """The first `count` ids as a tree, the most probable chain first."""
        chain, last = [], -1
        for index in range(count):
            if self.parents[index] == last:
                chain.append(index)
                last = index
        in_chain = set(chain)
        return self._selected([*chain, *[i for i in range(count) if i not in in_chain]])

    def best_chain(self, limit: int, costs: Costs, spent: float) -> TokenTree[TargetId]:
        """The branch with the best expected rate, or its part with that rate."""
        tokens, depths = [1.0], [0]
        best, rate = 0, 1.0 / (costs.verify(1) + spent)
        for index, parent in enumerate(self.parents, start=1):
            tokens.append(tokens[parent + 1] + self.reached[index - 1])
            depths.append(depths[parent + 1] + 1)
            if depths[-1] <= limit:
                time = costs.verify(depths[-1] + 1) + costs.host + spent
                if tokens[-1] / time > rate:
                    best, rate = index, tokens[-1] / time
        path = []
        while best:
            path.append(best - 1)
            best = self.parents[best - 1] + 1
        return self._selected(path[::-1])

    def _selected(self, kept: Sequence[int]) -> TokenTree[TargetId]:
        place = {index: new for new, index in enumerate(kept)}
        return TokenTree(
            tuple([self.ids[i] for i in kept]),
            tuple([place.get(self.parents[i], -1) for i in kept]),
            tuple([self.names[i] for i in kept]),
            tuple([self.probabilities[i] for i in kept]),
        )


class AnswerSource:
    """The tree of a draft model as a source. A state is the index of an id of it; -1 for the text.

    It ends where the tree ends.
    """

    def __init__(self, answer: TokenTree[TargetId]) -> None:
        self.name = answer.sources[0] if answer else "draft"
        self._next: dict[int, list[tuple[TargetId, float, int]]] = {}
        for index, (token, parent, probability) in enumerate(
            zip(answer.ids, answer.parents, answer.probabilities, strict=True)
        ):
            kept = min(max(probability, LEAST), 1.0 - LEAST)
            odds = log(kept / (1.0 - kept))
            self._next.setdefault(parent, []).append((token, odds, index))
        for siblings in self._next.values():  # a tree has them in any order
            siblings.sort(key=lambda one: -one[1])

    def follow(self, ids: Sequence[TargetId]) -> int:
        """See `Source`."""
        return -1

    def advance(self, state: int, token: TargetId) -> int | None:
        """See `Source`."""
        return next((i for known, _, i in self._next.get(state, ()) if known == token), None)

    def expect(self, state: int) -> list[tuple[TargetId, float]]:
        """See `Source`."""
        return [(token, odds) for token, odds, _ in self._next.get(state, ())]


class Hybrid(Drafter):
    """Proposes the best tree of all its sources, by expected tokens per time.

    One object serves one request.
    costs: called in every round, because costs may be measured while decoding.
    max_tokens: the most ids of a proposal. rows: propose so many, whatever they cost; fewer only
    where the sources know no more. branches: whether a proposal may be a tree; else it is a chain.
    mixing: what was learned about sources; requests may share it.
    noise: of the coming choices, where the target samples.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        *,
        noise: ComingNoise | None = None,
        costs: Callable[[], Costs] = lambda: FREE_ROWS,
        max_tokens: int = 8,
        rows: int | None = None,
        branches: bool = True,
        mixing: Mixing | None = None,
    ) -> None:
        self._sources = tuple(sources)
        self._costs, self._max_tokens, self._rows = costs, rows or max_tokens, rows
        self._branches = branches
        self._mixing = mixing or Mixing()
        self._mixer = Mixer(self._mixing, self._sources)
        self._noise = noise
        self._coming: Sequence[Sequence[float]] = ()
        self._states: list[Any] = []
        self._last: tuple[Mixer, _Node | None] = self._mixer, None

    @property
    def rows(self) -> int | None:
        """How many ids every proposal has, whatever they cost; None if costs decide."""
        return self._rows

    def propose(self, context: Context, limit: int) -> Proposal:
        """See `interfaces.Drafter`."""
        ids = context.ids
        self._states = [source.follow(ids) for source in self._sources]
        limit = min(limit, self._max_tokens)
        self._coming = () if self._noise is None else self._noise.rows(len(ids))
        growth = self._growth(self._mixer, self._sources, self._states, limit)
        return Proposal(tree=self._grow(growth, limit, spent=0.0))

    def _growth(
        self,
        mixer: Mixer,
        sources: Sequence[Source],
        states: Sequence[Any],
        limit: int,
    ) -> _Growth:
        """A tree to be grown, from which this round will learn."""
        # A chain is the best branch of a tree of twice as many ids.
        most = limit if self._branches else 2 * limit
        growth = _Growth(mixer, sources, states, most, self._coming)
        self._last = mixer, growth.root
        return growth

    def _grow(self, growth: _Growth, limit: int, *, spent: float) -> TokenTree[TargetId]:
        costs = self._costs()
        if not self._branches:
            while growth.next_reached > 0.02 and len(growth.ids) < 2 * limit:
                growth.grow()
            return growth.best_chain(limit, costs, spent)
        tokens, best = 1.0, 0
        rate = 1.0 / (costs.verify(1) + spent)
        while len(growth.ids) < limit and (reached := growth.next_reached):
            count = len(growth.ids)
            if self._rows is None and not _may_pay(
                tokens, reached, count, limit, costs, spent, rate
            ):
                break
            growth.grow()
            tokens += reached
            found = tokens / (costs.verify(count + 2) + costs.host + spent)
            if found > rate or self._rows is not None:
                best, rate = count + 1, found
        return growth.tree(best)

    def join(self, answer: TokenTree[TargetId], limit: int, spent: float) -> TokenTree[TargetId]:
        """The best proposal of this round once a draft model has answered.

        answer: its tree, with probabilities. spent: the time that drafting it took.
        """
        sources = (*self._sources, AnswerSource(answer))
        mixer = Mixer(self._mixing, sources)
        limit = min(limit, self._max_tokens)
        growth = self._growth(mixer, sources, [*self._states, -1], limit)
        return self._grow(growth, limit, spent=spent)

    def observe(self, one: Round) -> None:
        """Compare what was expected with the ids that came, as far as these follow the tree."""
        mixer, node = self._last
        for token in one.emitted:
            if node is None:
                break
            mixer.learn(node.candidates, token)
            node = node.children.get(token)
        self._last = mixer, node


def _may_pay(
    tokens: float,
    reached: float,
    count: int,
    limit: int,
    costs: Costs,
    spent: float,
    rate: float,
) -> bool:
    """Whether any number of further ids, none likelier to be reached, can raise the rate."""
    for more in range(1, limit - count + 1):
        time = costs.verify(count + more + 1) + costs.host + spent
        if tokens + more * reached > rate * time:
            return True
    return False
