"""Draft models with the target's ids grow trees: more is accepted, and nothing else changes."""

from __future__ import annotations

from copy import deepcopy

import mlx.core as mx
import pytest
from mlx.utils import tree_map
from random_models import VOCABULARY, random_model

from tokalign.runtime.context import Context
from tokalign.runtime.draft.neural import NeuralDrafter
from tokalign.runtime.draft.none import NoDrafter
from tokalign.runtime.limits import Limits
from tokalign.runtime.loop import decode
from tokalign.runtime.mlx.draft_session import DraftModelSession
from tokalign.runtime.mlx.sampling import Sampling
from tokalign.runtime.mlx.target_session import TargetModelSession
from tokalign.runtime.rounds import Round
from tokalign.runtime.translation.shared_ids import SharedIds
from tokalign.runtime.verify import TargetVerifier
from tokalign.tokenizer.vocabulary import TargetId

PROMPT = [TargetId(i) for i in (5, 17, 3)]
SAMPLINGS = {
    "greedy": Sampling(),
    "sampled": Sampling(temperature=0.7, top_p=0.95, seed=4),
}


def similar_model(noise: float) -> object:
    """The random model with other weights, so that it is right now and then."""
    model = deepcopy(random_model())
    mx.random.seed(1)
    model.update(
        tree_map(
            lambda w: w + noise * mx.random.normal(w.shape) * mx.abs(w).mean(), model.parameters()
        )
    )
    return model


def rounds_of(
    draft: object, sampling: Sampling, *, alternatives: int
) -> tuple[list[int], list[Round]]:
    """What 60 tokens with this draft model are, and how they came about."""
    context = Context(PROMPT)
    drafter = NeuralDrafter(
        DraftModelSession(draft),
        SharedIds(sampling.draft_sampler(VOCABULARY)),
        num_draft_tokens=3,
        alternatives=alternatives,
    )
    verifier = TargetVerifier(TargetModelSession(random_model()), sampling)
    events = list(decode(context, drafter, verifier, limits=Limits(max_tokens=60)))
    return list(context.emitted), [event for event in events if isinstance(event, Round)]


@pytest.mark.parametrize("name", SAMPLINGS)
def test_trees_of_shared_ids_accept_more_than_chains_and_change_nothing(name: str) -> None:
    sampling, draft = SAMPLINGS[name], similar_model(0.5)
    context = Context(PROMPT)
    verifier = TargetVerifier(TargetModelSession(random_model()), sampling)
    for _ in decode(context, NoDrafter(), verifier, limits=Limits(max_tokens=60)):
        pass
    chain, chains = rounds_of(draft, sampling, alternatives=0)
    tree, trees = rounds_of(draft, sampling, alternatives=6)
    assert chain == tree == list(context.emitted)
    assert any(one.tree.chain_length < len(one.tree) for one in trees)
    assert all(one.draft_passes <= 3 for one in trees)
    assert len(trees) < len(chains)


@pytest.mark.parametrize("name", SAMPLINGS)
def test_a_tree_of_the_target_itself_has_the_targets_choice(name: str) -> None:
    """Greedily always; when it draws, the draft can only say how probable each choice is."""
    _, rounds = rounds_of(random_model(), SAMPLINGS[name], alternatives=6)
    accepted = sum(one.accepted for one in rounds) / sum(3 for _ in rounds)
    assert accepted > 0.95 if name == "greedy" else accepted > 0.5


def test_an_answer_has_all_that_the_passes_found_and_a_proposal_the_likeliest_of_it() -> None:
    """A hybrid chooses among ids that the draft model alone would not propose."""
    answer, proposal = (
        getattr(drafter, ask)(Context(PROMPT), 8).tree
        for ask in ("answer", "propose")
        for drafter in [
            NeuralDrafter(
                DraftModelSession(similar_model(0.5)),
                SharedIds(),
                num_draft_tokens=3,
                alternatives=2,
            )
        ]
    )
    assert 3 <= len(proposal) <= 5 < len(answer)
    assert proposal == answer.likeliest(len(proposal), least=0.0, depth=8, chain=3)
