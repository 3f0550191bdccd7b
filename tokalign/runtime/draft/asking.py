"""When a draft model is worth asking beside sources that are free.

Without the model a round gives what the best free chain promises. With it, it gives at least the
better of the two and something of the other, as guesses are merged; how much is learned as a
factor. The model is asked where that, over the time it takes, is the better rate.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from tokalign.runtime.context import Context
from tokalign.runtime.draft.hybrid import FREE_ROWS, Hybrid, expected
from tokalign.runtime.estimates import Acceptance
from tokalign.runtime.gain import Costs, best_length
from tokalign.runtime.interfaces import Drafter
from tokalign.runtime.proposal import Guess, Proposal
from tokalign.vocab import TargetId

SOURCE = "draft"

_BOTH = 0.3
"""What the weaker of free chain and model adds to the stronger, before that is learned."""

_KEPT = 0.95
"""What of the past counts at the next observation."""


class Mean:
    """A running mean that forgets; `start` weighs `weight` observations, and is forgotten too."""

    def __init__(self, start: float, weight: float) -> None:
        self._sum, self._weight = start * weight, weight

    @property
    def value(self) -> float:
        return self._sum / self._weight

    def observe(self, value: float) -> None:
        self._sum = self._sum * _KEPT + value
        self._weight = self._weight * _KEPT + 1.0


class AskedWhereItPays:
    """A hybrid and a draft model; one object per request.

    costs: as the hybrid's; `draft_pass` is the model's price.
    """

    def __init__(
        self,
        hybrid: Hybrid,
        model: Drafter,
        *,
        costs: Callable[[], Costs] = lambda: FREE_ROWS,
    ) -> None:
        self._hybrid, self._model, self._costs = hybrid, model, costs
        self._acceptance = Acceptance()
        self._passes, self._length = Mean(2.0, 1.0), Mean(2.0, 1.0)
        self._factor = Mean(1.0, 10.0)
        self._answer: tuple[TargetId, ...] = ()
        self._merged = 0.0
        self._seen = 0

    def propose(self, context: Context, limit: int) -> Proposal:
        self._learn(context.ids[self._seen :])
        self._seen = len(context.ids)
        free, costs = self._hybrid.propose(context, limit), self._costs()
        if not limit or not self._pays(free, costs):
            return free
        answer = self._model.propose(context, limit)
        self._remember(answer, free)
        joined = self._hybrid.join(
            self._guess(answer), limit, spent=answer.draft_passes * costs.draft_pass
        )
        return replace(
            joined,
            draft_passes=answer.draft_passes,
            counts=answer.counts,
            model_seconds=answer.model_seconds,
        )

    def _pays(self, free: Proposal, costs: Costs) -> bool:
        """Whether the round is expected to have a better rate with the model than without."""
        rows = 1 + max(len(free.ids), round(self._length.value))
        time = costs.verify(rows) + costs.host + self._passes.value * costs.draft_pass
        tokens = 1.0 + self._factor.value * self._together(free)
        return tokens / time > best_length(free.probabilities, costs).rate

    def _together(self, free: Proposal) -> float:
        """How many ids of free chain and model together are accepted, as far as not learned."""
        length = round(self._length.value)
        alone = expected(free.probabilities), expected(self._acceptance.probabilities(length))
        return max(alone) + _BOTH * min(alone)

    def _guess(self, answer: Proposal) -> Guess:
        """The chain of an answer: probabilities that it does not say are those of the position."""
        chain = answer.ids[: answer.chain_length]
        said = answer.probabilities[: len(chain)]
        assumed = self._acceptance.probabilities(len(chain))[len(said) :]
        return Guess(chain, (*said, *assumed), SOURCE)

    def _remember(self, answer: Proposal, free: Proposal) -> None:
        self._passes.observe(answer.draft_passes)
        self._length.observe(answer.chain_length)
        self._answer = answer.ids[: answer.chain_length]
        self._merged = self._together(free)

    def _learn(self, came: Sequence[TargetId]) -> None:
        """What came behind the last answer; nothing if the model was not asked."""
        if self._answer:
            right = [guessed == token for guessed, token in zip(self._answer, came, strict=False)]
            right.append(False)
            self._acceptance.observe(min(len(self._answer), len(came)), right.index(False))
            self._factor.observe((len(came) - 1) / self._merged)
        self._answer = ()
