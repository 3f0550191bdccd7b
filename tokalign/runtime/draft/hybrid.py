"""The hybrid: every source guesses, and the chain of the best expected rate is proposed.

Sources that only look up are asked in every round and merged (`vote_tree.py`). After the best chain
they are asked again, so that one source goes on where another ends. The answer of a draft model
joins them as one more guess (`Hybrid.join`); `cost_aware.py` decides when it is worth its price.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import NamedTuple, Protocol

from tokalign.cost.expected_gain import Costs, Plan, best_length
from tokalign.runtime.context import Context
from tokalign.runtime.draft.trust import Trust
from tokalign.runtime.draft.vote_tree import VoteTree
from tokalign.runtime.proposal import Proposal
from tokalign.tables.token_tree import TokenTree
from tokalign.tokenizer.vocabulary import TargetId

FREE_ROWS = Costs(rows=(1.0,))
"""Costs under which any number of rows takes one pass, as emulators count."""

_TRUST_RATE = 0.05
_EXTENDED = 0.1
"""A chain is extended only if all of it is right at least this often."""


class Source(Protocol):
    """Guesses in microseconds, so that it can be asked in every round and more than once."""

    def follow(self, ids: Sequence[TargetId]) -> None:
        """Read on in the committed text. `ids` is all of it; it only grows from call to call."""
        ...

    def guesses(self, ahead: Sequence[TargetId], limit: int) -> Sequence[TokenTree]:
        """Chains that may follow the committed text and `ahead`, at most `limit` ids each.

        Their probabilities are calibrated as well as the source can.
        """
        ...


class _Planned(NamedTuple):
    """A chain, and how much of it to propose."""

    chain: TokenTree
    plan: Plan

    @property
    def proposed(self) -> TokenTree:
        """The part of the chain that is worth verifying."""
        return self.chain.head(self.plan.length)


class Hybrid:
    """Proposes the best chain of all its sources, by expected tokens per time.

    One object serves one request.
    costs: called in every round, because costs may be measured while decoding.
    max_tokens: the longest proposal.
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
        self._trust = Trust(rate=_TRUST_RATE)
        self._votes = VoteTree(self._trust)
        self._seen = 0

    def propose(self, context: Context, limit: int) -> Proposal:
        """See `interfaces.Drafter`."""
        ids = context.ids
        self._votes.learn(ids[self._seen :])
        self._seen = len(ids)
        self._votes = VoteTree(self._trust)
        for source in self._sources:
            source.follow(ids)
        return Proposal(tree=self._grow(min(limit, self._max_tokens), spent=0.0).proposed)

    def join(self, answer: TokenTree, limit: int, spent: float) -> TokenTree:
        """The best proposal of this round once a draft model has answered.

        answer: its tree, with probabilities. spent: the time that drafting it took.
        Returns: the best chain of all sources, and the other first ids that the model expects.
        """
        self._votes.add(answer.first_chain)
        best = self._grow(min(limit, self._max_tokens), spent=spent).proposed
        return best.with_roots_of(answer)

    def _grow(self, limit: int, *, spent: float) -> _Planned:
        """The best chain, extended until the sources know no more or it is no longer the best."""
        costs = self._costs()
        best = self._best(costs, spent)
        while len(best.chain) < limit and self._extend(best, limit):
            best = self._best(costs, spent)
        return best

    def _extend(self, best: _Planned, limit: int) -> bool:
        """Add what the sources expect after the best chain, if all of that is to be proposed.

        Returns: whether they expect anything.
        """
        chain = best.chain
        if best.plan.length < len(chain) or prod(chain.probabilities) < _EXTENDED:
            return False
        room = limit - len(chain)
        guesses = [g for source in self._sources for g in source.guesses(chain.ids, room)]
        for guess in guesses:
            self._votes.add(guess, chain.ids)
        return bool(guesses)

    def _best(self, costs: Costs, spent: float) -> _Planned:
        planned = [
            _Planned(chain, best_length(chain.probabilities, costs, spent=spent))
            for chain in self._votes.chains()
        ]
        return max(planned, key=lambda one: one.plan.rate)
