"""Whatever the controller decides, on whatever clock, the target's own output comes out."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
from random_models import RandomDrafter, generate, random_model

from tokalign.runtime.context import Context
from tokalign.runtime.draft.none import NoDrafter
from tokalign.runtime.draft_length.controller import DraftLengthController
from tokalign.runtime.draft_length.knowledge import Knowledge, ModelWorth
from tokalign.runtime.draft_length.learned_costs import LearnedCosts, PassTimes
from tokalign.runtime.interfaces import Drafter
from tokalign.runtime.loop import Limits, decode
from tokalign.runtime.mlx.sampling import Sampling
from tokalign.runtime.mlx.target_session import TargetModelSession
from tokalign.runtime.proposal import Proposal
from tokalign.runtime.verify import TargetVerifier
from tokalign.tokenizer.vocabulary import TargetId

PROMPT = (5, 17, 3)


class SteppedAdversary(Drafter):
    """Right and wrong guesses, as long as it is told."""

    def __init__(self, seed: int, reference: list[int]) -> None:
        self._inner = RandomDrafter(seed, reference)

    def propose(self, context: Context, limit: int) -> Proposal:
        return self.draft(context, steps=limit, limit=limit)

    def draft(self, context: Context, *, steps: int, limit: int) -> Proposal:
        return self._inner.propose(context, min(steps, limit))


def erratic_clock(seed: int) -> Callable[[], float]:
    """Time that jumps, so that every decision is taken at some point."""
    chance, now = Random(seed), [0.0]

    def clock() -> float:
        now[0] += 0.02 if chance.random() < 0.05 else 0.001
        return now[0]

    return clock


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.slow
def test_no_decision_changes_the_output(
    seed: int, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    # By that clock no model can pay; it is to be tried all the same.
    monkeypatch.setattr(ModelWorth, "is_hopeless", lambda *_: False)
    sampling = Sampling(temperature=temperature, seed=seed)
    plain = generate(NoDrafter(), sampling, prompt=PROMPT, tokens=120)
    rows, drafts = PassTimes([1.0, 1.01], weight=0), PassTimes([0.01], weight=0)
    knowledge = Knowledge(costs=LearnedCosts(rows, drafts))
    drafted = 0
    for request in range(2):  # the second goes on with what the first has learned
        context = Context([TargetId(i) for i in PROMPT])
        controller = DraftLengthController(
            knowledge,
            TargetVerifier(TargetModelSession(random_model()), sampling),
            free=RandomDrafter(seed + request, plain) if seed % 3 else None,
            model=SteppedAdversary(seed + 9, plain) if seed % 2 else None,
            clock=erratic_clock(seed + request),
        )
        for event in decode(context, controller, controller, limits=Limits(max_tokens=120)):
            drafted += getattr(event, "accepted", 0)
        assert list(context.emitted) == plain
    assert drafted or seed % 2 == 0  # a model is at least tried
