"""Drafts from the target's top-k logits never change its output, and do save passes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from mlx_lm.models.cache import RotatingKVCache
from random_models import generate, random_model

from lab.baselines.adjacency import Adjacency
from lab.baselines.recycling import SamDrafter, TokenRecyclingDrafter
from lab.baselines.unispec import Expansion, UniSpecDrafter
from tokalign.runtime.drafting import NoDrafter
from tokalign.runtime.mlx.sampling import Sampling
from tokalign.runtime.mlx.session import TargetModelSession
from tokalign.runtime.rounds import Drafter

Maker = Callable[[Adjacency, bool], Drafter]

MAKERS: dict[str, Maker] = {
    "recycling": lambda rows, branches: TokenRecyclingDrafter(rows, branches=branches),
    "sam": lambda rows, branches: SamDrafter(TokenRecyclingDrafter(rows, branches=branches)),
    "unispec": lambda rows, branches: UniSpecDrafter(rows, size=40, branches=branches),
    "unispec, ablated": lambda rows, branches: UniSpecDrafter(
        rows,
        size=40,
        expansion=Expansion(threshold=0.0, next_next=False, scored=False),
        branches=branches,
    ),
}
SAMPLINGS = {
    "greedy": Sampling(),
    "sampled": Sampling(temperature=0.9, top_p=0.95, seed=11),
    "processed": Sampling(temperature=0.7, seed=3, processors=[lambda ids, logits: logits * 1.5]),
}


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("name", MAKERS)
def test_the_output_is_plain_decoding_s(name: str, sampling: str) -> None:
    """The rows of the first text serve the second one too."""
    rows = Adjacency(8)
    for prompt in ((5, 17, 3), (40, 2)):
        plain = generate(NoDrafter(), SAMPLINGS[sampling], prompt=prompt)
        drafter = MAKERS[name](rows, True)
        drafted = generate(drafter, SAMPLINGS[sampling], prompt=prompt, store=rows)
        assert drafted == plain
    assert len(rows) > 10


@pytest.mark.parametrize("name", MAKERS)
def test_a_target_without_trees_is_given_chains(name: str) -> None:
    def session() -> TargetModelSession:
        layers = [RotatingKVCache(max_size=64, keep=4) for _ in range(2)]
        opened = TargetModelSession(random_model(), cache=layers)
        assert not opened.can_branch
        return opened

    rows = Adjacency(8)
    plain = generate(NoDrafter(), Sampling(), session=session())
    drafter = MAKERS[name](rows, False)
    assert generate(drafter, Sampling(), session=session(), store=rows) == plain


@pytest.mark.parametrize("name", MAKERS)
def test_a_text_that_is_known_takes_fewer_passes(name: str) -> None:
    """The same text twice: the second time the target's rows are there."""
    rows, passes = Adjacency(8), []
    for _ in range(2):
        session = TargetModelSession(random_model())
        generate(MAKERS[name](rows, True), Sampling(), session=session, store=rows)
        passes.append(session.passes)
    assert passes[1] < passes[0] <= 41
    assert passes[1] < 35
