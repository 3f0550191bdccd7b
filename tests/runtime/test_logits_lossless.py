"""Trees of what the target found likely emit the target's own output, and save passes."""

from __future__ import annotations

import mlx.core as mx
import pytest
from random_models import generate, random_model, rounds_of

from tokalign.runtime.draft.context_copy import ContextCopy
from tokalign.runtime.draft.hybrid import Hybrid
from tokalign.runtime.draft.lookup import LogitStore, logit_sources
from tokalign.runtime.drafting import NoDrafter
from tokalign.runtime.mlx.sampling import Sampling
from tokalign.runtime.mlx.target_session import TargetModelSession
from tokalign.runtime.mlx.weights import vocabulary_size


def penalize_last(history: mx.array, logits: mx.array) -> mx.array:
    """A logits processor: the latest id is less likely to come again."""
    logits[:, history[-1:]] -= 3.0
    return logits


SAMPLINGS: dict[str, Sampling] = {
    "greedy": Sampling(),
    "sampled": Sampling(temperature=0.7, seed=3),
    "top-k": Sampling(temperature=0.9, top_k=8, seed=4),
    "filtered": Sampling(temperature=1.2, top_p=0.9, min_p=0.02, xtc_probability=0.5, seed=5),
    "processed": Sampling(temperature=0.8, seed=6, processors=(penalize_last,)),
}


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
        hybrid = Hybrid(sources, noise=noise, rows=7 if branches else None, branches=branches)
        session = TargetModelSession(model)
        emitted, found = rounds_of(hybrid, session, SAMPLINGS[sampling], store=store)
        assert emitted == plain
        rounds.append(found)
    accepted = [name for one in rounds[1] for name in one.sources if name.startswith("logits")]
    assert accepted or not branches
    branched = [one for one in rounds[1] if one.tree.chain_length < len(one.tree)]
    assert bool(branched) == branches
    assert len(rounds[1]) < 40 or not branches
