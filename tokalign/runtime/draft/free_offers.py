"""What the free sources offer the controller, and how often they are asked.

Where a pass has begun already, its round can propose nothing. They are asked all the same, now and
then, as only an offer shows that waiting for the next one pays.
"""

from __future__ import annotations

from collections.abc import Sequence

from tokalign.runtime.draft.costs import HICCUP, LearnedCosts, Plan
from tokalign.runtime.draft.knowledge import NO_OFFER, Knowledge
from tokalign.runtime.draft.tree import TreeDrafter
from tokalign.tables.token_tree import EMPTY_TREE, TokenTree
from tokalign.tokenizer.vocabulary import TargetId

_MEMORY = 32
"""Offers that their mean looks back on."""

_ASKING_SHARE, _ASKING_MEMORY = 0.01, 8
"""The share of plain decoding's time that asking may take; a quarter of it while drafting rests."""


class FreeOffers:
    """The offers of one request's free sources. timed: as of `Controller`. mean: what an offer has
    been worth, in plain passes; the next request begins with it."""

    def __init__(self, free: TreeDrafter, knowledge: Knowledge, *, timed: bool) -> None:
        self._free, self._knowledge, self._is_timed = free, knowledge, timed
        self.mean = knowledge.offers
        self._until_asked, self._asking = 0, 0.0  # rounds, and the seconds that asking takes
        self._asked_beside = False  # in this round, whose pass had begun
        self._had_read = False  # before this round

    def begin_round(self) -> None:
        self._asked_beside, self._had_read = False, self._free.has_read

    @property
    def were_first_asked(self) -> bool:
        """Whether the sources have read the prompt in this round."""
        return self._free.has_read and not self._had_read

    def ask(
        self,
        ids: Sequence[TargetId],
        limit: int,
        costs: LearnedCosts,
        *,
        under_way: bool,
        over: Plan = NO_OFFER,
    ) -> tuple[TokenTree[TargetId], Plan]:
        """The best tree after `ids`, and its plan; none where they are not asked.

        under_way: whether the round's pass has begun. over: what a model would draft; if that pays,
        only what may be better is looked for.
        """
        free, hopeful = self._free, self._is_timed and self._knowledge.long_drafts.is_due
        self._until_asked -= 1
        self._asked_beside = under_way and free.can_offer and self._until_asked <= 0
        if not free.can_offer or (under_way and not self._asked_beside):
            return EMPTY_TREE, Plan(0, 1.0 / costs.rows(1))
        times = costs.by_proposed(min(limit, free.most), hopeful=hopeful)
        least = over.rate if costs.pays(over) else 0.0
        # Noise is left out where it takes long, as no pass hides it.
        tree, plan = free.offer(ids, limit, times, quick=under_way, over=least)
        self.mean += (_worth(plan, costs) - self.mean) / _MEMORY
        self._knowledge.offers = self.mean
        return tree, plan

    def is_rich(self, plan: Plan, costs: LearnedCosts) -> bool:
        """Whether an offer is worth more than is usual."""
        return _worth(plan, costs) > self.mean

    def learn_asking(self, seconds: float, plain: float, *, rests: bool) -> None:
        """The drafting of a round took so many seconds, and a plain pass takes `plain`. rests:
        whether it rested otherwise."""
        if self._asked_beside:
            asking = min(seconds, HICCUP * self._asking) if self._asking else seconds
            self._asking += (asking - self._asking) / _ASKING_MEMORY
            share = _ASKING_SHARE / (4 if rests else 1)
            self._until_asked = round(self._asking / (share * plain))


def _worth(plan: Plan, costs: LearnedCosts) -> float:
    """What an offer is expected to save, in plain passes."""
    if not plan.length:
        return -costs.overlap
    return plan.tokens - plan.tokens / (plan.rate * costs.plain)
