"""Generations that share passes: each emits what it emits alone, whoever comes and goes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from random import Random
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
import zoo
from hypothesis import given
from hypothesis import strategies as st
from mlx_lm.sample_utils import make_logits_processors
from random_models import WildDrafter, random_model, rounds_of

from tokalign.errors import CacheError
from tokalign.runtime.batch import SharedPasses
from tokalign.runtime.draft.costs import PassTimes
from tokalign.runtime.draft.shared_costs import SharedRows, worth_verifying
from tokalign.runtime.drafting import NoDrafter
from tokalign.runtime.loop import Decoding, Limits, TargetVerifier
from tokalign.runtime.mlx.batch import SharedModel
from tokalign.runtime.mlx.batch_split import way_to_share
from tokalign.runtime.mlx.sampling import CallableSampler, Sampling
from tokalign.runtime.mlx.session import TargetModelSession
from tokalign.runtime.options import CacheOptions
from tokalign.runtime.rounds import Context, Drafter, Proposal, Round
from tokalign.tables.token_tree import EMPTY_TREE, TokenTree
from tokalign.tokenizer.vocabulary import TargetId

APART = {
    "afm7": "reads another layer's keys",
    "deepseek_v32": "an index within attention",
    "deepseek_v41": "caches of its own",
    "glm_moe_dsa": "an index within attention",
    "gpt2": "learned positions",
    "gpt_bigcode": "learned positions",
    "iquestloopcoder": "caches of its own",
    "llama4": "chunks",
    "ministral3": "queries are scaled by position",
    "mistral4": "queries are scaled by position",
    "recurrent_gemma": "states are replaced by its modules",
}
"""Architectures whose requests need passes of their own."""

SOME = ("llama", "gemma3_text", "gemma4_text", "gpt_oss", "lfm2", "qwen3_next", "mamba2")
SOME = (*SOME, "deepseek_v3", "falcon_h1", "gpt2")
TREES = (
    TokenTree.chain([TargetId(1), TargetId(2)], ""),
    EMPTY_TREE,
    TokenTree((TargetId(5), TargetId(6), TargetId(7)), (-1, 0, -1), ("",) * 3),
    EMPTY_TREE,
)


@pytest.mark.parametrize(
    "architecture",
    [*SOME, *[pytest.param(a, marks=pytest.mark.long) for a in zoo.zoo() if a not in SOME]],
)
def test_a_row_sees_in_a_shared_pass_what_it_sees_alone(architecture: str) -> None:
    """Also after a cache was cut back or its rows were moved, and after a pass that ran ahead."""
    model = zoo.make_model(architecture)
    assert (way_to_share(model) is None) == (architecture in APART)
    if architecture in APART:
        return
    shared, chance = SharedModel(model), Random(architecture)
    contexts = [[chance.randrange(zoo.VOCABULARY) for _ in range(n)] for n in (20, 7, 30, 12)]
    alone: list[TargetModelSession] = [TargetModelSession(model) for _ in contexts]
    together: list[TargetModelSession] = [TargetModelSession(model) for _ in contexts]
    for more in ([1, 9], [4], [5, 7]):
        expected, reads = [], []
        for one, other, ids, tree in zip(alone, together, contexts, TREES, strict=True):
            own = tree if one.can_branch else tree.first_chain
            expected += (
                [one.logits([*ids, *own.ids], last=1 + len(own))]
                if own is not tree or (own.chain_length == len(own))
                else [one.tree(ids, own)]
            )
            reads.append((other, other.reads([*ids], own)))
        for row, right in zip(shared.read(reads), expected, strict=True):
            np.testing.assert_allclose(np.array(row), np.array(right), rtol=1e-3, atol=1e-3)
        fed = [mx.array([3], dtype=mx.uint32)] * 2
        ahead = shared.feed(together[1::2], fed)
        for row, session, token in zip(ahead, alone[1::2], fed, strict=True):
            right = np.array(session.feed(token))
            np.testing.assert_allclose(np.array(row), right, rtol=1e-3, atol=1e-3)
        contexts = [[*ids, *more] for ids in contexts]


def hybrid() -> Any:
    return zoo.make_model("lfm2", vocab_size=96)


SAMPLINGS: dict[str, Any] = {
    "greedy": Sampling(),
    "sampled": Sampling(temperature=0.9, top_p=0.95, seed=3),
    "penalized": Sampling(processors=make_logits_processors(repetition_penalty=1.3)),
    "called": CallableSampler(lambda logprobs: mx.argmax(logprobs, axis=-1)),
}


@pytest.mark.parametrize(
    ("make", "cache"),
    [
        (random_model, CacheOptions()),
        (lambda: random_model(5, sliding_window=24), CacheOptions()),
        (random_model, CacheOptions(kv_bits=8, quantized_kv_start=20, kv_group_size=32)),
        (random_model, CacheOptions(max_kv_size=32)),
        (hybrid, CacheOptions()),
    ],
    ids=["full", "windowed", "quantized", "rotating", "hybrid"],
)
@pytest.mark.parametrize("seed", [0, *[pytest.param(n, marks=pytest.mark.long) for n in (1, 2, 3)]])
def test_every_generation_emits_what_it_emits_alone(make: Any, cache: Any, seed: int) -> None:
    """1 to 6 of them at a time, each with wild proposals; some leave before their end."""
    chance, model = Random(seed), make() if make is hybrid else _grouped(make())
    batch, running, ended = SharedPasses(model), list[tuple[Decoding, list[int]]](), 0
    for number in range(14):
        running.append(_begin(model, cache, chance, number))
        for _ in range(chance.randint(1, 9)):
            batch.round([decoding for decoding, _ in running])
            for decoding, right in [*running]:
                emitted = list(decoding.context.emitted)
                assert emitted == right[: len(emitted)]
                if decoding.ends or chance.random() < 0.02:
                    running.remove((decoding, right))
                    ended += decoding.ends is not None
            if not running:
                break
        del running[6:]
    assert ended > 4


def _grouped(model: Any) -> Any:
    """Heads of 32 dimensions, which a quantized cache can group."""
    return model if model.args.head_dim == 32 else random_model(heads=1, layers=2)


def _begin(model: Any, cache: Any, chance: Random, number: int) -> tuple[Decoding, list[int]]:
    prompt = [chance.randrange(96) for _ in range(chance.randint(1, 25))]
    sampling, tokens = chance.choice([*SAMPLINGS.values()]), chance.randint(1, 30)
    limits = Limits(max_tokens=tokens, stop_ids=frozenset([TargetId(chance.randrange(96))]))
    right, _ = rounds_of(
        NoDrafter(),
        TargetModelSession(model, cache),
        sampling,
        prompt=prompt,
        limits=limits,
    )
    session: TargetModelSession = TargetModelSession(model, cache)
    plain, branches = chance.random() < 0.3, session.can_branch
    drafter: Drafter = NoDrafter() if plain else WildDrafter(right, trees=branches, seed=number)
    context = Context([TargetId(token) for token in prompt])
    verifier = TargetVerifier(session, sampling)
    limits = Limits(max_tokens=tokens, stop_ids=limits.stop_ids, target=session)
    return Decoding(context, drafter, verifier, limits=limits), right


class Failing(NoDrafter):
    """Fails in its third round."""

    rounds = 0

    def propose(self, context: Context, limit: int) -> Proposal:
        self.rounds += 1
        if self.rounds == 3:
            raise ValueError("no more")
        return super().propose(context, limit)


def test_what_fails_in_one_generation_ends_no_other() -> None:
    model, chance = random_model(), Random(1)
    generations = [_begin(model, CacheOptions(), chance, number) for number in range(3)]
    decodings, batch = [decoding for decoding, _ in generations], SharedPasses(model)
    for decoding in decodings:
        decoding.limits = Limits(max_tokens=30)
        decoding._room = 30
    decodings[1].drafter = Failing()
    results = [batch.round(decodings) for _ in range(3)]
    failed = [[isinstance(one, ValueError) for one in round_] for round_ in results]
    assert failed == [[False] * 3] * 2 + [[False, True, False]]


def test_the_time_of_a_shared_pass_is_no_host_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """All wait for the whole pass, also where lengths are given and where it ran ahead."""
    model, decodings = random_model(), list[Decoding]()
    for _ in range(3):
        target: TargetModelSession = TargetModelSession(model)
        context, verifier = Context([TargetId(1)]), TargetVerifier(target, Sampling())
        decodings.append(
            Decoding(context, NoDrafter(), verifier, limits=Limits(max_tokens=9, target=target))
        )
    times = iter(range(0, 1000, 7))
    monkeypatch.setattr("tokalign.runtime.batch.perf_counter", times.__next__)
    batch = SharedPasses(model)
    for _ in range(3):
        rounds = batch.round(decodings)
        assert [one.verification for one in rounds if isinstance(one, Round)] == [7.0] * 3


tree_shapes = st.lists(
    st.lists(st.tuples(st.integers(-1, 3), st.floats(0.05, 0.95)), min_size=0, max_size=4),
    min_size=1,
    max_size=3,
)


def _tree(shape: Sequence[tuple[int, float]]) -> TokenTree[Any]:
    parents = [min(parent, index - 1) for index, (parent, _) in enumerate(shape)]
    ids = tuple(TargetId(index) for index in range(len(shape)))
    return TokenTree(ids, tuple(parents), ("",) * len(ids), tuple(p for _, p in shape))


def _reached(tree: TokenTree[Any], index: int) -> float:
    return float(np.prod([tree.probabilities[i] for i in tree.path_to(index)]))


@given(tree_shapes, st.lists(st.floats(0.0, 1.0), min_size=20, max_size=20))
def test_no_other_rows_of_all_trees_give_a_better_rate(
    shapes: list[list[tuple[int, float]]], steps: list[float]
) -> None:
    """Compared with every choice of ids whose parents are chosen."""
    times = PassTimes((1.0 + np.cumsum([0.0, *steps])).tolist(), weight=1)
    trees = [_tree(shape) for shape in shapes]
    nodes = [(n, i) for n, tree in enumerate(trees) for i in range(len(tree))]

    def rate(chosen: Sequence[tuple[int, int]]) -> float:
        tokens = len(trees) + sum(_reached(trees[n], i) for n, i in chosen)
        return tokens / times(len(trees) + len(chosen))

    best = max(
        rate(chosen)
        for count in range(len(nodes) + 1)
        for chosen in combinations(nodes, count)
        if all(trees[n].parents[i] < 0 or (n, trees[n].parents[i]) in chosen for n, i in chosen)
    )
    kept = worth_verifying([(tree, True) for tree in trees], times)
    tokens = len(trees) + sum(_reached(tree, i) for tree in kept for i in range(len(tree)))
    assert tokens / times(len(trees) + sum(map(len, kept))) == pytest.approx(best)


def test_a_row_costs_its_share_of_the_plain_pass_and_a_further_one_what_it_adds() -> None:
    times = PassTimes([1.0, 1.1, 1.5, 1.5, 1.5, 1.5], weight=1)
    alone, two = SharedRows(times, 1), SharedRows(times, 2)
    assert alone(1) == pytest.approx(1.0)
    assert two(1) == pytest.approx(0.55)
    assert two(3) - two(2) == pytest.approx(0.4 / 6)  # the step of 0.4 is for six rows


def test_what_may_not_be_cut_is_verified_whole() -> None:
    tree = _tree([(-1, 0.05), (0, 0.05)])
    times = PassTimes([1.0, 2.0, 3.0, 4.0], weight=1)
    assert worth_verifying([(tree, False), (tree, True)], times) == [tree, EMPTY_TREE]


def test_a_shared_pass_says_which_cache_cannot_be_quantized() -> None:
    """As a pass of one session does, in one line."""
    model = zoo.make_model("kimi_linear")
    cache = CacheOptions(kv_bits=8, kv_group_size=32, quantized_kv_start=2)
    sessions: list[TargetModelSession] = [TargetModelSession(model, cache) for _ in range(2)]
    reads = [(session, session.reads([TargetId(5)], TREES[0])) for session in sessions]
    shared = SharedModel(model)
    shared.read(reads)
    reads = [
        (session, session.reads([*map(TargetId, (5, 1, 2))], EMPTY_TREE)) for session in sessions
    ]
    with pytest.raises(CacheError, match="leave kv_bits out"):
        shared.read(reads)
