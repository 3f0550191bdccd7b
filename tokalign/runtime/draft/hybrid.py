"""The hybrid: every source guesses, and the chain of the best expected rate is proposed.

Sources that only look up are asked in every round and merged (`guess_tree.py`); behind the best
chain they are asked again, so that one goes on where another ends. What a draft model answers is
joined to them as one more guess (`Hybrid.join`); `asking.py` decides when it is worth its price.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import NamedTuple

from tokalign.cost.expected_gain import Costs, Plan, best_length
from tokalign.runtime.context import Context
from tokalign.runtime.draft.guess_tree import GuessTree, Path
from tokalign.runtime.draft.sources import Source
from tokalign.runtime.draft.trust import Trust
from tokalign.runtime.proposal import Guess, Proposal

FREE_ROWS = Costs(rows=(1.0,))
"""A verified row costs nothing: what emulators count by."""

_RATE = 0.05
_EXTENDED = 0.1
"""A chain that is right less often than this as a whole is not extended."""


class Chosen(NamedTuple):
    """A path, and how much of it to propose."""

    path: Path
    plan: Plan

    def proposal(self) -> Proposal:
        path, end = self.path, self.plan.length
        return Proposal(
            ids=path.ids[:end], probabilities=path.probabilities[:end], sources=path.sources[:end]
        )


class Hybrid:
    """Proposes the best chain of all its sources, by expected tokens per time.

    costs: asked in every round, as they may be measured meanwhile. max_tokens: the longest
    proposal. One object per request.
    Cost: 0.1-0.25 ms a round for a dictionary and context copy.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        *,
        costs: Callable[[], Costs] = lambda: FREE_ROWS,
        max_tokens: int = 8,
    ) -> None:
        self._sources = tuple(sources)
        self._costs, self._max_tokens = costs, max_tokens
        self._trust = Trust(rate=_RATE)
        self._tree = GuessTree(self._trust)
        self._seen = 0

    def propose(self, context: Context, limit: int) -> Proposal:
        ids = context.ids
        self._tree.learn(ids[self._seen :])
        self._seen = len(ids)
        self._tree = GuessTree(self._trust)
        for source in self._sources:
            source.follow(ids)
        return self._grow(min(limit, self._max_tokens), spent=0.0).proposal()

    def join(self, guess: Guess, limit: int, *, spent: float) -> Proposal:
        """The best chain of this round once `guess`, for which `spent` time was paid, is known."""
        self._tree.add(guess)
        return self._grow(min(limit, self._max_tokens), spent=spent).proposal()

    def _grow(self, limit: int, *, spent: float) -> Chosen:
        """The best chain, extended as long as it gets longer."""
        costs = self._costs()
        best = self._best(costs, spent)
        while len(best.path.ids) < limit and self._extend(best, limit):
            best = self._best(costs, spent)
        return best

    def _extend(self, best: Chosen, limit: int) -> bool:
        """Ask behind the best chain, if it is to be proposed as a whole; whether that gave any."""
        ids, probabilities, _ = best.path
        if best.plan.length < len(ids) or prod(probabilities) < _EXTENDED:
            return False
        guesses = [g for source in self._sources for g in source.guesses(ids, limit - len(ids))]
        for guess in guesses:
            self._tree.add(guess, ids)
        return bool(guesses)

    def _best(self, costs: Costs, spent: float) -> Chosen:
        planned = [
            Chosen(path, best_length(path.probabilities, costs, spent=spent))
            for path in self._tree.paths()
        ]
        return max(planned, key=lambda chosen: chosen.plan.rate)


def expected(probabilities: Sequence[float]) -> float:
    """How many ids of a chain are accepted on average."""
    total, reached = 0.0, 1.0
    for probability in probabilities:
        reached *= probability
        total += reached
    return total
