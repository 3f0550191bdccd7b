"""No drafter that learns changes the output: a recurrent one, the target's top-k logits, a plan.

The recurrent drafter was taught a part of the greedy output, so that accepted paths, rejected ones
and hidden states of inner rows all occur.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import count
from random import Random
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from drafter_cases import PROMPT, penalize_last
from random_drafters import taught_drafter
from random_models import WildDrafter, generate, random_model, rounds_of
from scripted_models import ScriptedModel, ScriptedSource

from tokalign.runtime.draft.context_copy import ContextCopy
from tokalign.runtime.draft.controller import Controller
from tokalign.runtime.draft.costs import LearnedCosts, PassTimes
from tokalign.runtime.draft.knowledge import Knowledge, ModelKnowledge
from tokalign.runtime.draft.lookup import LogitStore, logit_sources
from tokalign.runtime.draft.neural import DRAFT, DRAFTER
from tokalign.runtime.draft.trained import BeamDrafter
from tokalign.runtime.draft.tree import FREE_ROWS, TreeDrafter
from tokalign.runtime.drafting import NoDrafter
from tokalign.runtime.loop import Limits
from tokalign.runtime.mlx.beam_search import SOURCE
from tokalign.runtime.mlx.recurrent_drafter import RecurrentDrafter, RecurrentSession
from tokalign.runtime.mlx.sampling import Sampling
from tokalign.runtime.mlx.session import TargetModelSession
from tokalign.runtime.mlx.taps import state_rows
from tokalign.runtime.mlx.weights import vocabulary_size
from tokalign.tables.token_tree import TokenTree
from tokalign.tokenizer.vocabulary import TargetId

SAMPLINGS: dict[str, Sampling] = {
    "greedy": Sampling(),
    "sampled": Sampling(temperature=0.7, seed=3),
    "top-k": Sampling(temperature=0.9, top_k=8, seed=4),
    "filtered": Sampling(temperature=1.2, top_p=0.9, min_p=0.02, xtc_probability=0.5, seed=5),
    "processed": Sampling(temperature=0.8, seed=6, processors=(penalize_last,)),
    "greedy, processed": Sampling(processors=(penalize_last,)),
}
HOW: dict[str, dict[str, Any]] = {
    "by probability": {},
    "beam": {"length": 3},
    "chain": {"branches": False, "length": 3},
}


@cache
def drafter() -> RecurrentDrafter:
    plain = generate(NoDrafter(), Sampling())
    return taught_drafter(random_model(), [*PROMPT, *plain[:28]])


def opened(model: Any = None, **options: Any) -> TargetModelSession:
    return TargetModelSession(model or random_model(), watch=state_rows, **options)


def beam_drafter(session: TargetModelSession, sampling: Sampling, **how: Any) -> BeamDrafter:
    sampler = sampling.draft_sampler
    return BeamDrafter(RecurrentSession(drafter(), session), sampler=sampler, **how)


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_the_output_is_plain_decoding_s(sampling: str, how: str) -> None:
    chosen = SAMPLINGS[sampling]
    session = opened()
    emitted, rounds = rounds_of(beam_drafter(session, chosen, **HOW[how]), session, chosen)
    assert emitted == generate(NoDrafter(), chosen)
    assert not rounds[0].tree  # nothing is known before the first pass
    if sampling == "greedy":
        assert len(rounds) < 25
    if how != "by probability":
        assert all(one.tree for one in rounds[1:-1])


@pytest.mark.parametrize("sampling", ["greedy", "sampled"])
def test_its_answer_joins_the_one_tree(sampling: str) -> None:
    chosen, session = SAMPLINGS[sampling], opened()
    hybrid = TreeDrafter([ContextCopy()], rows=15)
    given = Knowledge.given(FREE_ROWS)
    joined = Controller(given, hybrid, beam_drafter(session, chosen), timed=False)
    emitted, rounds = rounds_of(joined, session, chosen)
    assert emitted == generate(NoDrafter(), chosen)
    assert max(len(one.tree) for one in rounds) == 15
    assert all(SOURCE in one.tree.sources for one in rounds[1:-2])


@pytest.mark.parametrize("how", HOW)
def test_every_round_starts_from_the_state_before_the_last_id(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever row that was: of a chain, of a tree, or of the pass before."""
    session, checked = opened(), 0
    find = session.state_before_last

    def checking(ids: Any) -> Any:
        nonlocal checked
        found = find(ids)
        if found is not None:
            other = opened()
            other.logits(list(ids[:-1]))
            expected = other.state_before_last([*ids[:-1], TargetId(0)])
            assert np.allclose(np.array(found), np.array(expected), atol=1e-4)
            checked += 1
        return found

    monkeypatch.setattr(session, "state_before_last", checking)
    rounds_of(beam_drafter(session, Sampling(), **HOW[how]), session, Sampling())
    assert checked > 5


def test_a_pass_that_ran_ahead_keeps_the_state_of_the_pass_before_it() -> None:
    session = opened()
    ids = [TargetId(i) for i in (*PROMPT, 8, 9)]
    session.logits(ids[:3])
    session.feed(mx.array([8]))
    found = session.state_before_last(ids[:4])
    after = session.state_before_last(ids)
    other = opened()
    other.logits(ids[:4], last=2)
    for state, known in ((found, ids[:4]), (after, ids)):
        assert np.allclose(np.array(state), np.array(other.state_before_last(known)), atol=1e-4)
    assert session.state_before_last(ids[:3]) is None


@pytest.mark.parametrize("edited", [0, 2, 3, 4])
@pytest.mark.parametrize("pass_of", ["chain", "tree", "fed", "fed twice"])
def test_the_state_of_another_text_of_equal_length_is_not_given(pass_of: str, edited: int) -> None:
    """As after an edit of a conversation's history: the rows kept are of what was there before."""
    session, ids = opened(), [TargetId(i) for i in (*PROMPT, 8, 9, 11)]
    match pass_of:
        case "chain":
            session.logits(ids[:5], last=3)
        case "tree":
            session.logits(ids[:2])
            branches = TokenTree((TargetId(7), ids[3], ids[4]), (-1, -1, 1), ("",) * 3)
            session.tree(ids[:3], branches)
        case "fed":
            session.logits(ids[:4])
            session.feed(mx.array([ids[4]]))
        case "fed twice":
            session.logits(ids[:3])
            session.feed(mx.array([ids[3]]))
            session.feed(mx.array([ids[4]]))
    assert session.state_before_last(ids) is not None
    other = list(ids)
    other[edited] = TargetId(other[edited] + 1)
    assert session.state_before_last(other) is None


# -- the controller -------------------------------------------------------------------


def test_the_planner_chooses_its_steps_and_learns_nothing_from_the_first_round() -> None:
    """At the first round of a request a drafter has no hidden state yet and is not to blame.

    Further rows and steps cost next to nothing, so that drafting pays.
    """
    rows = PassTimes([1.0 + 0.001 * row for row in range(40)], weight=4)
    steps = PassTimes([0.001 * step for step in range(1, 17)], weight=4)
    models = {DRAFTER: ModelKnowledge(steps)}
    knowledge = Knowledge(costs=LearnedCosts(rows), models=models)
    clock = count(step=0.001).__next__  # everything takes as long
    plain = generate(NoDrafter(), Sampling())
    for tokens in (1, 40) * 3:
        session, known = opened(), models[DRAFTER].worth.acceptance.probabilities(4)
        controller = Controller(knowledge, TreeDrafter([]), beam_drafter(session, Sampling()))
        limits = Limits(max_tokens=tokens)
        emitted, rounds = rounds_of(controller, session, limits=limits, clock=clock)
        assert emitted == plain[:tokens]
        assert not rounds[0].draft_passes
        learned = models[DRAFTER].worth.acceptance.probabilities(4) != known
        assert learned == (tokens > 1)
        assert sum(one.draft_passes > 0 for one in rounds) >= 3 * learned


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
def test_no_decision_changes_the_output(seed: int, temperature: float) -> None:
    sampling = Sampling(temperature=temperature, seed=seed)
    plain = generate(NoDrafter(), sampling, tokens=120)
    rows, drafts = PassTimes([1.0, 1.01], weight=0), PassTimes([0.01], weight=0)
    models = {DRAFT: ModelKnowledge(drafts)}
    knowledge = Knowledge(costs=LearnedCosts(rows), models=models)
    drafted = 0
    for request in range(2):  # the second goes on with what the first has learned
        adversary = WildDrafter(plain, seed=seed + 9)
        model = ScriptedModel(lambda now, steps, by=adversary: by.propose(now, steps).tree)
        source = ScriptedSource(plain[-1], 0.9)
        free = TreeDrafter([source] if seed % 3 else [])
        controller = Controller(knowledge, free, *[model] * (seed % 2))
        session, limits = TargetModelSession(random_model()), Limits(max_tokens=120)
        clock = erratic_clock(seed + request)
        emitted, rounds = rounds_of(controller, session, sampling, limits=limits, clock=clock)
        assert emitted == plain
        drafted += sum(one.accepted for one in rounds)
    assert drafted or seed % 2 == 0  # a model is at least tried


# -- the target's top-k logits ------------------------------------------------------------------


@pytest.mark.parametrize("branches", [True, False])
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_trees_from_the_store_never_change_the_output(sampling: str, branches: bool) -> None:
    """The second request finds what the first one left, so that much of it is drafted."""
    plain = generate(NoDrafter(), SAMPLINGS[sampling])
    store, rounds = LogitStore(), []
    for _ in range(2):
        model = random_model()
        noise = SAMPLINGS[sampling].noise_ahead(vocabulary_size(model))
        sources = [ContextCopy(), *logit_sources(store)]
        hybrid = TreeDrafter(sources, noise=noise, rows=7 if branches else None, branches=branches)
        session = TargetModelSession(model)
        emitted, found = rounds_of(hybrid, session, SAMPLINGS[sampling], store=store)
        assert emitted == plain
        rounds.append(found)
    accepted = [name for one in rounds[1] for name in one.sources if name.startswith("logits")]
    assert accepted or not branches
    branched = [one for one in rounds[1] if one.tree.chain_length < len(one.tree)]
    assert bool(branched) == branches
    assert len(rounds[1]) < 40 or not branches
