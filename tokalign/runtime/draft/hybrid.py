"""The hybrid: every source says what it expects, and the best tree of it all is proposed.

The tree grows one id at a time, always by the id that is most probably reached. At each node the
sources are asked what may follow, and `mixing.py` makes one probability of what they say. Growth
ends where no further row can bring more than it costs; the part of the tree with the best expected
rate is proposed. Where one source ends, another goes on, because all are asked at every node.
The answer of a draft model joins them as one more source; `planner.py` decides when it is worth its
price.
Source: best-first growth after OPT-Tree (Wang et al., 2024) and SuffixDecoding (Oliaro et al.,
2024).
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from math import log
from typing import Any, Protocol

from tokalign.runtime.draft.learned_costs import Costs, Plan
from tokalign.runtime.draft.mixing import LEAST, MOST, Candidate, Mixer, Mixing, Source
from tokalign.runtime.grammar import Constraint, State
from tokalign.runtime.rounds import UNBOUNDED, Context, Drafter, Proposal, Round
from tokalign.tables.token_tree import TokenTree
from tokalign.tokenizer.vocabulary import TargetId

FREE_ROWS = Costs(rows=(1.0,))
"""Costs under which any number of rows takes one pass, as emulators count."""

_LEAST_REACHED = 0.003
"""Ids that are less likely to be reached are not looked at."""

_LEAST_OF_CHAIN = 0.02
"""The same for an id of a chain."""

_UNLIKELY = 0.5
"""Where an id would have to be more probable than this to join the tree, none is looked for. That
leaves out a third of the look-ups of a tree of 15 ids (`lab/results/host-time.md`)."""

FORCED = "grammar"
"""The source of ids that a grammar leaves no choice about."""


class ComingNoise(Protocol):
    """Knows the noise that the target's choices at coming positions will be made with."""

    def rows(self, position: int) -> Sequence[Sequence[float]]:
        """e to the noise of every id, for `position` and as many further ones as are known."""
        ...


class _Growth:
    """A tree of at most `limit` ids that grows best-first.

    Index 0 of `_states`, `_depths`, `_reached`, `_rules` and `_candidates` is the text, and i + 1
    the id at index i: a round makes too many nodes for objects of a class.
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
        self._mixer, self._limit, self._noise = mixer, limit, noise
        self._advances = [source.advance for source in sources]
        # The ids that may still join the tree, the most probable first; ties go to the first found.
        self._frontier: list[tuple[float, int, int, Candidate, float]] = []
        self._found = 0
        self.ids: list[TargetId] = []
        self.parents: list[int] = []
        self.names: list[str] = []
        self.probabilities: list[float] = []
        self._states, self._depths, self._reached, self._rules = [states], [0], [1.0], [rule]
        self._candidates: list[Sequence[Candidate]] = []
        self._seen: int | None = -1  # the last id of the tree that came
        self._expand(0)

    def _expand(self, node: int) -> None:
        """Find what may follow the text (0) or the id at index `node - 1`."""
        frontier, room, before = self._frontier, self._limit - len(self.ids), self._reached[node]
        least = -frontier[room - 1][0] if 0 < room <= len(frontier) else _LEAST_REACHED
        if not room or least > _UNLIKELY * before:
            self._candidates.append(())
            return
        if node:  # an id after which nothing is looked for needs no states
            self._states[node] = self._advanced(node - 1)
        rule, depth = self._rules[node], self._depths[node]
        found: Sequence[Candidate]
        if rule is not None and rule.forced:  # nothing is learned from what is certain
            found, chances = [(rule.forced[0], MOST, FORCED, (0, 0, 0))], [MOST]
            self._candidates.append(())
        else:
            noise = self._noise[depth] if depth < len(self._noise) else None
            allows = None if rule is None else rule.allows
            found, chances = self._mixer.candidates(
                self._states[node], least / before, _LEAST_REACHED / before, noise, allows
            )
            self._candidates.append(found)
        for one, chance in zip(found, chances, strict=True):
            reached = before * chance
            if reached >= least:
                self._found += 1
                insort(frontier, (-reached, self._found, node, one, chance))
        del frontier[room:]

    def _advanced(self, index: int) -> list[Any]:
        token, before = self.ids[index], self._states[self.parents[index] + 1]
        return [
            None if state is None else advance(state, token)
            for advance, state in zip(self._advances, before, strict=True)
        ]

    @property
    def next_reached(self) -> float:
        """How likely the next id is to be reached; 0 if the sources know no more."""
        return -self._frontier[0][0] if self._frontier else 0.0

    def grow(self) -> None:
        negative, _, parent, (token, _, name, _), chance = self._frontier.pop(0)
        self.ids.append(token)
        self.parents.append(parent - 1)
        self.names.append(name)
        self.probabilities.append(chance)
        self._reached.append(-negative)
        self._depths.append(self._depths[parent] + 1)
        rule = self._rules[parent]
        self._rules.append(None if rule is None else rule.advance(token))
        self._states.append(())
        self._expand(len(self.ids))

    def learn(self, came: Sequence[TargetId]) -> None:
        """Compare what was expected with the ids that came, as far as these follow the tree."""
        for token in came:
            if self._seen is None:
                return
            self._mixer.learn(self._candidates[self._seen + 1], token)
            pairs = enumerate(zip(self.parents, self.ids, strict=True))
            self._seen = next((i for i, pair in pairs if pair == (self._seen, token)), None)

    def tree(self, count: int) -> TokenTree[TargetId]:
        """The first `count` ids as a tree, the most probable chain first."""
        chain, others, last = [], [], -1
        for index in range(count):
            if self.parents[index] == last:
                chain.append(index)
                last = index
            else:
                others.append(index)
        return self._whole.select(chain + others)

    def best_chain(self, times: Sequence[float]) -> tuple[TokenTree[TargetId], Plan]:
        """The branch with the best expected rate, or its part with that rate.

        times: of rounds that propose 0, 1, 2, ... ids, so many at most.
        """
        tokens = [1.0]
        best, plan = 0, Plan(0, 1.0 / times[0])
        for index, parent in enumerate(self.parents, start=1):
            tokens.append(tokens[parent + 1] + self._reached[index])
            depth = self._depths[index]
            if depth < len(times) and tokens[-1] / times[depth] > plan.rate:
                best, plan = index, Plan(depth, tokens[-1] / times[depth], tokens[-1])
        whole = self._whole
        return whole.select(whole.path_to(best - 1)), plan

    @property
    def _whole(self) -> TokenTree[TargetId]:
        return TokenTree(
            tuple(self.ids), tuple(self.parents), tuple(self.names), tuple(self.probabilities)
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
    size: how many ids the target has.
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
        size: int = UNBOUNDED,
    ) -> None:
        self.sources: tuple[Source, ...] = tuple(sources)
        self.rows = rows
        self._costs, self._max_tokens = costs, rows or max_tokens
        self._branches, self._noise = branches, noise
        self._constraint = constraint
        self._rule: State | None = None
        self._mixing = mixing or Mixing()
        self._size = size
        self._mixer = Mixer(self._mixing, self.sources, size)
        self._at = -1  # how many ids the following is known after
        self._states: list[Any] = []
        self._coming: Sequence[Sequence[float]] = ()
        self._growth: _Growth | None = None

    @property
    def can_offer(self) -> bool:
        """Whether it can ever propose anything by itself."""
        return bool(self.sources) or self._constraint is not None

    def propose(self, context: Context, limit: int) -> Proposal:
        tree, _ = self.offer(context.ids, limit, self._costs)
        return Proposal(tree=tree)

    def observe(self, one: Round) -> None:
        """Compare what was expected with the ids that came, as far as these follow the tree."""
        if self._growth is not None:
            self._growth.learn(one.emitted)

    def offer(
        self,
        ids: Sequence[TargetId],
        limit: int,
        costs: Costs,
        *,
        answer: TokenTree[TargetId] | None = None,
        spent: float = 0.0,
        alone: bool = False,
        quick: bool = False,
    ) -> tuple[TokenTree[TargetId], Plan]:
        """The best tree after `ids`, and its rate.

        answer: the tree of a draft model, with probabilities. spent: the time that drafting it
        took. alone: without the free sources. Where they know too little to offer anything, the
        model is right more often than a mixture that holds their silence against it.
        quick: without the noise of the choices.
        """
        if self._at != len(ids):
            self._at = len(ids)
            self._states = [source.follow(ids) for source in self.sources]
            noise = None if quick else self._noise
            self._coming = () if noise is None else noise.rows(len(ids))
            self._rule = None if self._constraint is None else self._constraint.after(ids)
        free = [None] * len(self.sources) if alone else self._states
        sources, states, mixer = self.sources, free, self._mixer
        if answer is not None:
            sources, states = (*sources, AnswerSource(answer)), [*free, -1]
            mixer = Mixer(self._mixing, sources, self._size)
        limit = min(limit, self._max_tokens)
        times = [costs.verify(1 + count) + costs.host + spent for count in range(1 + limit)]
        times[0] = costs.verify(1) + spent
        # A chain is the best branch of a tree of twice as many ids.
        most = limit if self._branches else 2 * limit
        growth = self._growth = _Growth(mixer, sources, states, most, self._coming, self._rule)
        if self._branches:
            return self._best_tree(growth, times)
        while growth.next_reached > _LEAST_OF_CHAIN and len(growth.ids) < most:
            growth.grow()
        return growth.best_chain(times)

    def _best_tree(
        self, growth: _Growth, times: Sequence[float]
    ) -> tuple[TokenTree[TargetId], Plan]:
        """Grow a tree as long as a further row may pay. Returns: its part with the best rate."""
        tokens, best = 1.0, (0, 1.0 / times[0], 1.0)
        for count in range(1, len(times)):
            reached, rate = growth.next_reached, best[1]
            # Whether any number of further ids, none likelier to be reached, can raise the rate.
            may_pay = self.rows is not None or any(
                tokens + more * reached > rate * time
                for more, time in enumerate(times[count:], start=1)
            )
            if not (reached and may_pay):
                break
            growth.grow()
            tokens += reached
            if self.rows is not None or tokens / times[count] > rate:
                best = count, tokens / times[count], tokens
        return growth.tree(best[0]), Plan(*best)
