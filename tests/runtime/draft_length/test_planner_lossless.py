"""Whatever the planner decides, on whatever clock, the target's own output comes out."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
from random_models import RandomDrafter, generate, random_model, rounds_of
from scripted_models import ScriptedModel, ScriptedSource

from tokalign.runtime.draft.hybrid import Hybrid
from tokalign.runtime.draft_length.knowledge import Knowledge, ModelWorth
from tokalign.runtime.draft_length.learned_costs import LearnedCosts, PassTimes
from tokalign.runtime.draft_length.planner import Planner
from tokalign.runtime.drafting import NoDrafter
from tokalign.runtime.loop import Limits
from tokalign.runtime.mlx.sampling import Sampling
from tokalign.runtime.mlx.target_session import TargetModelSession


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
    plain = generate(NoDrafter(), sampling, tokens=120)
    rows, drafts = PassTimes([1.0, 1.01], weight=0), PassTimes([0.01], weight=0)
    knowledge = Knowledge(costs=LearnedCosts(rows, drafts))
    drafted = 0
    for request in range(2):  # the second goes on with what the first has learned
        adversary = RandomDrafter(seed + 9, plain)
        model = ScriptedModel(lambda now, steps, by=adversary: by.propose(now, steps).tree)
        source = ScriptedSource(plain[-1], 0.9)
        planner = Planner(
            knowledge,
            Hybrid([source] if seed % 3 else []),
            model if seed % 2 else None,
            clock=erratic_clock(seed + request),
        )
        session, limits = TargetModelSession(random_model()), Limits(max_tokens=120)
        emitted, rounds = rounds_of(planner, session, sampling, limits=limits)
        assert emitted == plain
        drafted += sum(one.accepted for one in rounds)
    assert drafted or seed % 2 == 0  # a model is at least tried
