"""A hybrid of free sources and a draft model, which is asked where that is expected to pay.

Without the model a round gives what the best free chain promises. What the model adds is learned
separately for rounds in which the free chain promises little and much, because the model and the
free sources find the same tokens easy. The model is asked if the tokens then expected, over the
time they take, are the better rate. An estimate that is not tried drifts back to its start, so that
a bad stretch does not rule the model out for good.
"""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect
from collections.abc import Callable, Sequence
from dataclasses import replace

from tokalign.cost.expected_gain import Costs, best_ids, best_size, expected_accepted
from tokalign.runtime.context import Context
from tokalign.runtime.draft.hybrid import FREE_ROWS, Hybrid
from tokalign.runtime.draft_length.acceptance import Acceptance
from tokalign.runtime.interfaces import Drafter
from tokalign.runtime.proposal import Proposal
from tokalign.runtime.rounds import Round
from tokalign.tables.token_tree import EMPTY_TREE, TokenTree
from tokalign.tokenizer.vocabulary import TargetId

_PROMISES = (0.1, 0.3, 0.6, 1.2)
"""Accepted tokens promised by the free chain: the bounds between which experience is kept apart."""

_ADDED = (0.6, 0.5, 0.4, 0.3, 0.15)
"""Tokens that the model is assumed to add below, between and above these bounds at the start."""

_KEPT = 0.99
"""Weight that the past keeps at each observation."""

_FADING = 0.95
"""Weight that the past keeps in a round without an observation."""


class Mean:
    """A running mean that forgets. Its start is worth `weight` observations."""

    def __init__(self, start: float, weight: float) -> None:
        self.start, self._weight = start, weight
        self._sum = self._seen = 0.0

    @property
    def value(self) -> float:
        """The mean."""
        return self.scaled(1.0)

    def scaled(self, factor: float) -> float:
        """The mean if it had started at `factor` times its start."""
        return (self._sum + factor * self.start * self._weight) / (self._seen + self._weight)

    def observe(self, value: float) -> None:
        """Take one value in."""
        self._sum = self._sum * _KEPT + value
        self._seen = self._seen * _KEPT + 1.0

    def fade(self) -> None:
        """A round went by without an observation."""
        self._sum *= _FADING
        self._seen *= _FADING


class ModelDrafter(Drafter):
    """A draft model or a recurrent drafter, from whose answer somebody else may choose the rows."""

    @abstractmethod
    def answer(self, context: Context, limit: int) -> Proposal:
        """What may come next, at most `limit` deep: also what it would not propose by itself."""


class Experience:
    """What is known of a draft model's answers. It holds no text, so requests may share it.

    acceptance: how often the id at each position was right. passes, proposed: the mean draft passes
    and proposed ids of a round in which the model was asked.
    """

    def __init__(self) -> None:
        self.acceptance = Acceptance()
        self.passes, self.proposed = Mean(2.0, 4.0), Mean(2.0, 4.0)
        self._added = [Mean(start, 4.0) for start in _ADDED]
        self._overall = Mean(1.0, 4.0)  # tokens added over those assumed at the start

    def added(self, promised: float) -> float:
        """Tokens that the model should add where the free chain promises `promised` tokens."""
        return self._added_to(promised).scaled(self._overall.value)

    def asked(self, promised: float, accepted: int) -> None:
        """The model was asked, and `accepted` tokens were accepted."""
        mean, added = self._added_to(promised), accepted - promised
        mean.observe(added)
        self._overall.observe(added / mean.start)

    def not_asked(self, promised: float) -> None:
        """The model was not asked: its estimates drift back to where they started."""
        for mean in (self._added_to(promised), self._overall, self.passes, self.proposed):
            mean.fade()

    def _added_to(self, promised: float) -> Mean:
        return self._added[bisect(_PROMISES, promised)]


class CostAwareHybrid(Drafter):
    """A hybrid that asks a draft model where that is expected to pay; one object per request.

    costs: as the hybrid's; `draft_pass` is the price of one pass of the model.
    """

    def __init__(
        self,
        hybrid: Hybrid,
        model: ModelDrafter,
        *,
        costs: Callable[[], Costs] = lambda: FREE_ROWS,
        experience: Experience | None = None,
    ) -> None:
        self._hybrid, self._model, self._costs = hybrid, model, costs
        self._experience = experience or Experience()
        self._answer = EMPTY_TREE  # the model's own chain of the last round
        self._promised = 0.0

    def propose(self, context: Context, limit: int) -> Proposal:
        """See `interfaces.Drafter`."""
        free, costs = self._hybrid.propose(context, limit), self._costs()
        self._promised = expected_accepted(free.tree.probabilities, free.tree.parents)
        if not limit or not self._pays(free.tree, costs):
            self._experience.not_asked(self._promised)
            return free
        answer = self._model.answer(context, limit)
        self._experience.passes.observe(answer.draft_passes)
        spent = answer.draft_passes * costs.draft_pass
        joined = self._hybrid.join(self._believed(answer.tree), limit, spent=spent)
        kept: Sequence[int] = range(len(joined))
        if self._hybrid.rows is None:
            kept = best_ids(joined.probabilities, joined.parents, costs, spent=spent)
        self._answer = answer.tree.first_chain
        self._experience.proposed.observe(len(kept))
        return replace(answer, tree=joined.select(kept))

    def _believed(self, answer: TokenTree[TargetId]) -> TokenTree[TargetId]:
        """The model's tree; if it states no probabilities, its chain with learned ones."""
        if answer.probabilities:
            return answer
        chain = answer.first_chain
        known = self._experience.acceptance.probabilities(len(chain))
        return chain.with_probabilities(known)

    def _pays(self, free: TokenTree[TargetId], costs: Costs) -> bool:
        """Whether the round is expected to have a better rate with the model than without.

        Where the number of rows is given, costs decide nothing.
        """
        if self._hybrid.rows is not None:
            return True
        known = self._experience
        tokens = 1.0 + self._promised + known.added(self._promised)
        time = costs.expected_verify(1.0 + known.proposed.value) + costs.host
        time += known.passes.value * costs.draft_pass
        return tokens / time > best_size(free.probabilities, free.parents, costs).rate

    def observe(self, one: Round) -> None:
        """See `interfaces.Drafter`."""
        came = one.emitted
        self._hybrid.observe(one)
        self._model.observe(one)
        if self._answer:
            right = len(self._answer.path_of(came))
            self._experience.acceptance.observe(min(len(self._answer), len(came)), right)
            self._experience.asked(self._promised, len(came) - 1)
        self._answer = EMPTY_TREE
