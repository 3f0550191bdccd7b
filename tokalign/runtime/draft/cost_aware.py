"""When a draft model is worth asking where there are also sources that cost nothing.

Without the model a round gives what the best free chain promises. What the model adds to that is
learned, separately for rounds in which the free chain promises little and much, because both find
the same tokens easy. The model is asked where the tokens then expected, over the time they take,
make the better rate. An estimate that is not tried drifts back to its start, so that a bad stretch
does not rule the model out for good.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable, Sequence
from dataclasses import replace

from tokalign.cost.expected_gain import Costs, best_ids, best_length
from tokalign.runtime.context import Context
from tokalign.runtime.draft.hybrid import FREE_ROWS, Hybrid, expected_accepted
from tokalign.runtime.draft_length.estimates import Acceptance
from tokalign.runtime.interfaces import Drafter
from tokalign.runtime.proposal import Proposal
from tokalign.tables.token_tree import TokenTree
from tokalign.tokenizer.vocabulary import TargetId

_PROMISES = (0.1, 0.3, 0.6, 1.2)
_ADDED = (0.6, 0.5, 0.4, 0.3, 0.15)
"""Tokens that the model adds below and between these promises, before that is learned."""

_KEPT = 0.99
"""Weight that the past keeps at the next observation; in a round without one it is `_FADING`."""

_FADING = 0.998


class Mean:
    """A running mean that forgets. Its start counts as much as `weight` observations."""

    def __init__(self, start: float, weight: float) -> None:
        self.start, self._weight = start, weight
        self._sum = self._seen = 0.0

    @property
    def value(self) -> float:
        """The mean."""
        return self.scaled(1.0)

    def scaled(self, factor: float) -> float:
        """The mean, had it started at `factor` times its start."""
        return (self._sum + factor * self.start * self._weight) / (self._seen + self._weight)

    def observe(self, value: float) -> None:
        """Take one value in."""
        self._sum = self._sum * _KEPT + value
        self._seen = self._seen * _KEPT + 1.0

    def fade(self) -> None:
        """A round went by without an observation."""
        self._sum *= _FADING
        self._seen *= _FADING


class Experience:
    """What is known of a draft model's answers. It holds no text, so requests may share it."""

    def __init__(self) -> None:
        self.acceptance = Acceptance()
        self.passes, self.proposed = Mean(2.0, 1.0), Mean(2.0, 1.0)
        self._added = [Mean(start, 4.0) for start in _ADDED]
        self._overall = Mean(1.0, 4.0)  # tokens added, over those expected at the start

    def added(self, promised: float) -> float:
        """Tokens that the model is expected to add where the free chain promises so many."""
        return self._place(promised).scaled(self._overall.value)

    def asked(self, promised: float, accepted: int) -> None:
        """The model was asked, and so many tokens were accepted."""
        mean, added = self._place(promised), accepted - promised
        mean.observe(added)
        self._overall.observe(added / mean.start)

    def not_asked(self, promised: float) -> None:
        """The model was not asked: its estimates drift back to where they started."""
        self._place(promised).fade()
        self._overall.fade()

    def _place(self, promised: float) -> Mean:
        return self._added[bisect(_PROMISES, promised)]


class CostAwareHybrid:
    """A hybrid that asks a draft model where that is expected to pay; one object per request.

    costs: as the hybrid's; `draft_pass` is the price of one pass of the model.
    """

    def __init__(
        self,
        hybrid: Hybrid,
        model: Drafter,
        *,
        costs: Callable[[], Costs] = lambda: FREE_ROWS,
        experience: Experience | None = None,
    ) -> None:
        self._hybrid, self._model, self._costs = hybrid, model, costs
        self._experience = experience or Experience()
        self._answer: tuple[TargetId, ...] = ()
        self._promised = 0.0
        self._seen = 0

    def propose(self, context: Context, limit: int) -> Proposal:
        """See `interfaces.Drafter`."""
        self._learn(context.ids[self._seen :])
        self._seen = len(context.ids)
        free, costs = self._hybrid.propose(context, limit), self._costs()
        self._promised = expected_accepted(free.tree.probabilities)
        if not limit or not self._pays(free.tree, costs):
            self._experience.not_asked(self._promised)
            return free
        answer = self._model.propose(context, limit)
        self._experience.passes.observe(answer.draft_passes)
        spent = answer.draft_passes * costs.draft_pass
        joined = self._hybrid.join(self._believed(answer.tree), limit, spent=spent)
        kept = best_ids(joined.probabilities, joined.parents, costs, spent=spent)
        self._answer = answer.tree.first_chain.ids
        self._experience.proposed.observe(len(kept))
        return replace(answer, tree=joined.select(kept), distributions=())

    def _believed(self, answer: TokenTree) -> TokenTree:
        """The model's tree with the probabilities that its positions had so far, if it has none."""
        if answer.probabilities:
            return answer
        chain = answer.first_chain
        known = self._experience.acceptance.probabilities(len(chain))
        return chain.with_probabilities(known)

    def _pays(self, free: TokenTree, costs: Costs) -> bool:
        """Whether the round is expected to have a better rate with the model than without."""
        known = self._experience
        tokens = 1.0 + self._promised + known.added(self._promised)
        time = costs.expected_verify(1.0 + known.proposed.value) + costs.host
        time += known.passes.value * costs.draft_pass
        return tokens / time > best_length(free.probabilities, costs).rate

    def _learn(self, came: Sequence[TargetId]) -> None:
        """Compare the last answer with the ids that came; nothing if the model was not asked."""
        if self._answer:
            right = [guessed == token for guessed, token in zip(self._answer, came, strict=False)]
            right.append(False)
            known = self._experience
            known.acceptance.observe(min(len(self._answer), len(came)), right.index(False))
            known.asked(self._promised, len(came) - 1)
        self._answer = ()
