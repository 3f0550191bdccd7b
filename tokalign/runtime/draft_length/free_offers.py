"""What the free sources offer during one request: when they are asked, and how much of it pays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tokalign.cost.expected_gain import Plan, best_size, most_probable_ids
from tokalign.runtime.context import Context
from tokalign.runtime.draft_length.knowledge import Knowledge
from tokalign.runtime.interfaces import Drafter
from tokalign.runtime.proposal import Proposal
from tokalign.runtime.rounds import Round

_NONE = Proposal()


class FreeOffers:
    """Asks drafters that only look up, and keeps their last offer until it is verified.

    free: proposes chains; None if there is no such drafter. clock: in seconds.
    """

    def __init__(
        self, free: Drafter | None, knowledge: Knowledge, clock: Callable[[], float]
    ) -> None:
        self._free, self._knowledge, self._clock = free, knowledge, clock
        self._offer, self._position = _NONE, 0
        self._rounds_to_wait = 0

    @property
    def pay(self) -> bool:
        """Whether waiting for the next offer, instead of running ahead, is expected to pay."""
        return self._free is not None and self._knowledge.offers.pays

    def ask(self, context: Context, limit: int, *, seldom: bool) -> Plan:
        """Ask for an offer of at most `limit` ids, and plan how much of it is worth verifying.

        seldom: the answer cannot be proposed in this round, so ask only now and then.
        """
        knowledge, costs = self._knowledge, self._knowledge.costs
        plan = Plan(0, 1.0 / costs.rows(1))
        self._rounds_to_wait -= 1
        if self._free is None or (seldom and self._rounds_to_wait > 0):
            return plan
        began = self._clock()
        offer = self._free.propose(context, limit)
        if offer.tree:
            self._offer, self._position = offer, len(context.ids)
            probabilities = knowledge.trust.probabilities(offer.tree)
            verification = costs.verification(len(offer.tree))
            plan = best_size(probabilities, offer.tree.parents, verification)
        knowledge.offers.learn(plan, plain=costs.plain, overlap=costs.overlap)
        took = self._clock() - began
        self._rounds_to_wait = knowledge.offers.rounds_between(took, plain=costs.plain)
        return plan

    def most_probable(self, context: Context, count: int) -> Proposal:
        """The `count` ids of what was offered after this context that are most probably reached.

        The first chain of a tree stays first.
        """
        offer = self.at(context)
        tree = offer.tree
        probabilities = self._knowledge.trust.probabilities(tree)
        return replace(
            offer, tree=tree.select(most_probable_ids(probabilities, tree.parents, count))
        )

    def at(self, context: Context) -> Proposal:
        """What was offered after this very context; an empty proposal if nothing was."""
        return self._offer if self._position == len(context.ids) else _NONE

    def forget(self) -> None:
        """The offer has been verified, so everything is learned from it."""
        self._offer = _NONE

    def observe(self, one: Round) -> None:
        """A round is over."""
        if self._free is not None:
            self._free.observe(one)

    def learn_from_unused(self, context: Context) -> None:
        """An offer that was not verified still tells whether its first id was right."""
        if self._offer.tree and self._position < len(context.ids):
            came = context.ids[self._position : self._position + 1]
            self._knowledge.trust.learn(self._offer.tree, came)
            self.forget()
