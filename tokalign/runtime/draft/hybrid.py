"""The hybrid: every source says what it expects, and the best tree of it all is proposed.

The tree grows one id at a time, always by the id that is most probably reached. At each node the
sources are asked what may follow, and `mixing.py` makes one probability of what they say. Growth
ends where no further row can bring more than it costs; the part of the tree with the best expected
rate is proposed. Where one source ends, another goes on, because all are asked at every node.
The answer of a draft model joins them as one more source (`Hybrid.join`);
`draft_length/planner.py` decides when it is worth its price.
Source: best-first growth after OPT-Tree (Wang et al., 2024) and SuffixDecoding (Oliaro et al.,
2024).
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from math import log
from typing import Any, Protocol

from tokalign.cost.expected_gain import Costs, Plan
from tokalign.runtime.draft.mixing import LEAST, MOST, Candidate, Mixer, Mixing, Source
from tokalign.runtime.grammar import Constraint, State
from tokalign.runtime.rounds import Context, Drafter, Proposal, Round
from tokalign.tables.token_tree import TokenTree
from tokalign.tokenizer.vocabulary import TargetId

FREE_ROWS = Costs(rows=(1.0,))
"""Costs under which any number of rows takes one pass, as emulators count."""


_LEAST_REACHED = 0.003
"""Ids that are less likely to be reached are not looked at."""

_LEAST_OF_CHAIN = 0.02
"""The same for an id of a chain."""

_MOST_PROBABLE = 0.99

FORCED = "grammar"
"""The source of ids that a grammar leaves no choice about."""


class ComingNoise(Protocol):
    """Knows the noise that the target's choices at coming positions will be made with."""

    def rows(self, position: int) -> Sequence[Sequence[float]]:
        """e to the noise of every id, for `position` and as many further ones as are known."""
        ...


class _Node:
    """A place in the tree: the text, or an id of the tree."""

    __slots__ = ("candidates", "children", "depth", "index", "reached", "rule", "states")

    def __init__(
        self, index: int, depth: int, states: Sequence[Any], reached: float, rule: State | None
    ) -> None:
        self.index, self.depth, self.states, self.reached = index, depth, states, reached
        self.rule = rule
        self.candidates: list[Candidate] = []
        self.children: dict[TargetId, _Node] = {}


class _Growth:
    """A tree of at most `limit` ids that grows best-first.

    noise: by depth, see `Mixer.candidates`; at further depths it is not known. rule: the state of
    the text in the grammar that the output follows, if there is one.
    """

    def __init__(
        self,
        mixer: Mixer,
        sources: Sequence[Source],
        states: Sequence[Any],
        limit: int,
        noise: Sequence[Sequence[float]] = (),
        rule: State | None = None,
    ) -> None:
        self._mixer, self._sources, self._limit, self._noise = mixer, sources, limit, noise
        self.root = _Node(-1, 0, states, 1.0, rule)
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
        rule = node.rule
        if rule is not None and rule.forced:  # nothing is learned from what is certain
            found, chances = [(rule.forced[0], MOST, FORCED, (0, 0, 0))], [MOST]
        else:
            noise = self._noise[node.depth] if node.depth < len(self._noise) else None
            allows = None if rule is None else rule.allows
            node.candidates, chances = self._mixer.candidates(
                node.states, least / node.reached, _LEAST_REACHED / node.reached, noise, allows
            )
            found = node.candidates
        for one, chance in zip(found, chances, strict=True):
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
        rule = None if parent.rule is None else parent.rule.advance(token)
        node = _Node(len(self.ids) - 1, parent.depth + 1, states, -negative, rule)
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

    def best_chain(
        self, limit: int, costs: Costs, spent: float
    ) -> tuple[TokenTree[TargetId], Plan]:
        """The branch with the best expected rate, or its part with that rate."""
        tokens, depths = [1.0], [0]
        best, plan = 0, Plan(0, 1.0 / (costs.verify(1) + spent))
        for index, parent in enumerate(self.parents, start=1):
            tokens.append(tokens[parent + 1] + self.reached[index - 1])
            depths.append(depths[parent + 1] + 1)
            if depths[-1] <= limit:
                time = costs.verify(depths[-1] + 1) + costs.host + spent
                if tokens[-1] / time > plan.rate:
                    best, plan = index, Plan(depths[-1], tokens[-1] / time, tokens[-1])
        path = []
        while best:
            path.append(best - 1)
            best = self.parents[best - 1] + 1
        return self._selected(path[::-1]), plan

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
        return -1

    def advance(self, state: int, token: TargetId) -> int | None:
        return next((i for known, _, i in self._next.get(state, ()) if known == token), None)

    def expect(self, state: int) -> list[tuple[TargetId, float]]:
        return [(token, odds) for token, odds, _ in self._next.get(state, ())]


class Hybrid(Drafter):
    """Proposes the best tree of all its sources, by expected tokens per time.

    One object serves one request.
    costs: of passes, where nobody else gives them. max_tokens: the most ids of a proposal. rows:
    propose so many, whatever they cost; fewer only where the sources know no more. branches:
    whether a proposal may be a tree; else it is a chain.
    mixing: what was learned about sources; requests may share it.
    noise: of the coming choices, where the target samples.
    constraint: the grammar that the output follows. What it forbids is not proposed, and what it
    forces is, as a chain.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        *,
        noise: ComingNoise | None = None,
        costs: Costs = FREE_ROWS,
        max_tokens: int = 8,
        rows: int | None = None,
        branches: bool = True,
        mixing: Mixing | None = None,
        constraint: Constraint | None = None,
    ) -> None:
        self.sources, self.rows = tuple(sources), rows
        self._costs, self._max_tokens = costs, rows or max_tokens
        self._branches, self._noise = branches, noise
        self._constraint = constraint
        self._rule: State | None = None
        self._mixing = mixing or Mixing()
        self._mixer = Mixer(self._mixing, self.sources)
        self._at = -1  # how many ids the following is known after
        self._states: list[Any] = []
        self._coming: Sequence[Sequence[float]] = ()
        self._last: tuple[Mixer, _Node | None] = self._mixer, None

    @property
    def can_offer(self) -> bool:
        """Whether it can ever propose anything by itself."""
        return bool(self.sources) or self._constraint is not None

    def propose(self, context: Context, limit: int) -> Proposal:
        tree, _ = self.offer(context.ids, limit, self._costs)
        return Proposal(tree=tree)

    def offer(
        self,
        ids: Sequence[TargetId],
        limit: int,
        costs: Costs,
        *,
        quick: bool = False,
    ) -> tuple[TokenTree[TargetId], Plan]:
        """The best tree after `ids`, and its rate. quick: without the noise of the choices."""
        return self._grown(ids, limit, costs, quick=quick)

    def join(
        self,
        ids: Sequence[TargetId],
        answer: TokenTree[TargetId],
        limit: int,
        costs: Costs,
        *,
        spent: float,
        alone: bool = False,
    ) -> tuple[TokenTree[TargetId], Plan]:
        """The best tree of this round once a draft model has answered, and its rate.

        answer: its tree, with probabilities. spent: the time that drafting it took. alone: without
        the free sources. Where they know too little to offer anything, the model is right more
        often than a mixture that holds their silence against it.
        """
        return self._grown(ids, limit, costs, AnswerSource(answer), spent=spent, alone=alone)

    def observe(self, one: Round) -> None:
        """Compare what was expected with the ids that came, as far as these follow the tree."""
        mixer, node = self._last
        for token in one.emitted:
            if node is None:
                break
            mixer.learn(node.candidates, token)
            node = node.children.get(token)
        self._last = mixer, node

    def _grown(
        self,
        ids: Sequence[TargetId],
        limit: int,
        costs: Costs,
        *answers: AnswerSource,
        spent: float = 0.0,
        alone: bool = False,
        quick: bool = False,
    ) -> tuple[TokenTree[TargetId], Plan]:
        if self._at != len(ids):
            self._at = len(ids)
            self._states = [source.follow(ids) for source in self.sources]
            noise = None if quick else self._noise
            self._coming = () if noise is None else noise.rows(len(ids))
            self._rule = None if self._constraint is None else self._constraint.after(ids)
        sources: Sequence[Source] = (*self.sources, *answers)
        mixer = Mixer(self._mixing, sources) if answers else self._mixer
        limit = min(limit, self._max_tokens)
        # A chain is the best branch of a tree of twice as many ids.
        most = limit if self._branches else 2 * limit
        free = [None] * len(self.sources) if alone else self._states
        growth = _Growth(
            mixer, sources, [*free, *[-1] * len(answers)], most, self._coming, self._rule
        )
        self._last = mixer, growth.root
        if not self._branches:
            while growth.next_reached > _LEAST_OF_CHAIN and len(growth.ids) < most:
                growth.grow()
            return growth.best_chain(limit, costs, spent)
        return self._best_tree(growth, limit, costs, spent)

    def _best_tree(
        self,
        growth: _Growth,
        limit: int,
        costs: Costs,
        spent: float,
    ) -> tuple[TokenTree[TargetId], Plan]:
        """Grow a tree as long as a further row may pay. Returns: its part with the best rate."""
        tokens, plan = 1.0, Plan(0, 1.0 / (costs.verify(1) + spent))
        while len(growth.ids) < limit and (reached := growth.next_reached):
            count = len(growth.ids)
            if self.rows is None and not _may_pay(
                tokens, reached, count, limit, costs, spent, plan.rate
            ):
                break
            growth.grow()
            tokens += reached
            rate = tokens / (costs.verify(count + 2) + costs.host + spent)
            if rate > plan.rate or self.rows is not None:
                plan = Plan(count + 1, rate, tokens)
        return growth.tree(plan.length), plan


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
