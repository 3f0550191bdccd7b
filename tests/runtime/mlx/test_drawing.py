"""Drawing over target ids: the draft distribution, its draws, and what pairs of models emit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from random_models import decoder_of, random_model
from scipy.stats import chisquare

from tokalign.runtime.decoder import LanguageModel
from tokalign.runtime.loop import Limits
from tokalign.runtime.mlx import noise
from tokalign.runtime.mlx.draft_session import DraftModelSession, ToTargetIds
from tokalign.runtime.mlx.sampling import Sampling, logprobs_of
from tokalign.runtime.mlx.session import ModelSession, TargetModelSession
from tokalign.runtime.rounds import Round
from tokalign.tables.alignment import Intersection
from tokalign.tables.token_tree import EMPTY_TREE, TokenTree
from tokalign.tokenizer.vocabulary import TargetId

LIMIT = 1e-3
"""p-values of right distributions are above it, of wrong ones below."""


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(-1, 5), min_size=1, max_size=12),
    st.lists(st.integers(-1, 11), min_size=6, max_size=6),
    st.integers(0, 3),
)
def test_probabilities_of_draft_ids_with_the_same_target_id_add_up(
    to_target: list[int], preferred: list[int], padding: int
) -> None:
    size = len(to_target)
    preferred = [i if i < size else -1 for i in preferred]
    shared = Intersection(np.array(to_target, np.int32), np.array(preferred, np.int32))
    onto = ToTargetIds(shared, len(to_target))
    row = np.random.default_rng(size).normal(0, 2, size + padding)
    expected = np.zeros(6)
    for draft, target in enumerate(to_target):
        if target >= 0:
            expected[target] += np.exp(row[draft])
    found = np.exp(np.array(onto.logits(mx.array(row[None], dtype=mx.float32))[0]))
    assert np.allclose(found, expected, rtol=1e-4)
    for target in set(to_target) - {-1}:
        token = int(onto.draft_ids(mx.array([target])).item())
        assert to_target[token] == target
        if preferred[target] >= 0 and to_target[preferred[target]] == target:
            assert token == preferred[target]


FILTERS = [{}, {"top_p": 0.7}, {"top_k": 3}, {"min_p": 0.2}, {"top_p": 0.9, "min_p": 0.05}]


def parity(ids: Any, logits: Any) -> Any:
    """A logits processor that looks at its history: after an odd id odd ids are likelier."""
    return logits + 0.7 * (mx.arange(logits.shape[-1]) % 2 == ids[-1] % 2)


def few_of_many(sampling: Sampling) -> Iterator[tuple[int, dict[TargetId, float], Any, Any]]:
    """Positions, nine logits at each, the same among 40 ids, and the noise there."""
    rng = np.random.default_rng(4)
    for position in range(3, 12):
        few = {TargetId(int(i)): float(rng.normal(0, 1.5)) for i in rng.permutation(40)[:9]}
        row = np.full((1, 40), -np.inf, dtype=np.float32)
        row[0, list(few)] = list(few.values())
        yield position, few, mx.array(row), sampling.noise_at(position, 40)


@pytest.mark.parametrize("filters", FILTERS)
@pytest.mark.parametrize("processors", [(), (parity,)])
def test_drawing_among_a_few_ids_equals_drawing_among_all(
    processors: Any, filters: dict[str, Any]
) -> None:
    """The host draws the same id as the device."""
    options = Sampling(temperature=0.8, seed=2, processors=processors, **filters)
    for position, few, row, known in few_of_many(options):
        history = [*range(position - 1), next(iter(few))]
        ranked = options.expect_among(few, ids=history, noise=known)
        assert next(iter(ranked)) == options.choose(row, [position], ids=history)[0].item()


@pytest.mark.parametrize("filters", FILTERS)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_what_is_expected_among_a_few_ids_equals_what_is_expected_among_all(
    temperature: float, filters: dict[str, Any]
) -> None:
    options = Sampling(temperature=temperature, seed=2, **filters)
    for position, few, row, known in few_of_many(options):
        found = options.expect_among(few, noise=known)
        expected = np.array(options.expect(row, [position]))[0]
        assert {i for i, logprob in enumerate(expected) if logprob > -np.inf} == set(found)
        assert list(found.values()) == pytest.approx([expected[i] for i in found], abs=1e-5)


def test_what_is_expected_is_how_often_a_target_that_differs_by_gumbel_noise_chooses() -> None:
    """The target's noise is known, and what its logits differ by is drawn 100,000 times."""
    rng = np.random.default_rng(1)
    options = Sampling(temperature=0.8, seed=3)
    logits = mx.array(rng.normal(0, 1.5, (2, 12)).astype(np.float32))
    positions = [7, 4]
    expected = np.exp(np.array(options.expect(logits, positions), dtype=np.float64))
    for row, position in enumerate(positions):
        known = 0.8 * np.array(options.noise_at(position, 12))
        targets = np.array(logits)[row] + rng.gumbel(size=(100_000, 12))
        counts = np.bincount(np.argmax(targets + known, axis=-1), minlength=12)
        assert p_value(counts.astype(float), expected[row]) > LIMIT


def test_the_most_probable_id_of_a_branch_is_the_one_that_would_be_drawn() -> None:
    """A chain of several passes and a tree of one branch follow the same noise."""
    model = random_model(vocabulary=32, seed=3)
    ids = np.arange(32, dtype=np.int32)
    shared = Intersection(ids, ids)
    options = Sampling(temperature=0.8, seed=5)
    text = [1, 2, 3, 8]
    drawn = DraftModelSession(model).draw(text, 4, sampler=options, after=text, shared=shared)
    session, tree = DraftModelSession(model), EMPTY_TREE
    for position in range(4, 8):
        positions = range(4, 5 + len(tree))
        [*_, last] = session.branch(text, tree, None, 3, shared, options, positions).read()
        _, token = max(zip(last.logprobs, last.ids, strict=True))
        tree = TokenTree.chain([*tree.ids, TargetId(token)], "test")
        assert len(tree) == position - 3
    assert list(tree.ids) == drawn.read()


def test_noise_does_not_depend_on_rows_or_padding() -> None:
    one = noise.gumbel(7, noise.TARGET, 5, (3, 3000))
    other = noise.gumbel(7, noise.TARGET, 6, (1, 4000))
    assert mx.array_equal(one[1], other[0, :3000])
    verdict = noise.gumbel(7, noise.VERDICT, 5, (1, 3000))
    assert abs(np.corrcoef(np.array(one[0]), np.array(verdict[0]))[0, 1]) < 0.1


def test_noise_has_the_gumbel_distribution() -> None:
    found = np.sort(np.array(noise.gumbel(1, noise.TARGET, 0, (20, 5000))).ravel())
    expected = np.exp(-np.exp(-found))
    assert np.abs(expected - np.linspace(0, 1, len(found))).max() < 0.01
    assert np.isfinite(found).all()


# -- pairs of models with two tokenizers -----------------------------------------------------------

RUNS, TOP = 160, 3
"""How many tokens the target may choose among: few enough to enumerate two of them."""


def distribution_of_two(
    target: LanguageModel, options: Sampling, prompt: list[int]
) -> dict[Any, float]:
    """The probability of every pair of ids that the output may begin with."""
    session, found = ModelSession(target.model), {}

    def row(ids: list[int]) -> dict[int, float]:
        logits = session.logits(ids)
        logprobs = options.filter(logprobs_of(logits, options.processors, ids), [len(ids)])
        scores = np.array(logprobs[0], dtype=np.float64) / options.temperature
        weights = np.exp(scores - scores.max())
        return {int(i): weights[i] / weights.sum() for i in np.flatnonzero(weights)}

    for first, p in row(prompt).items():
        for second, q in row([*prompt, first]).items():
            found[first, second] = p * q
    return found


@pytest.mark.parametrize(
    ("translation", "trees"),
    [
        ("intersection", False),
        ("exact", True),
        pytest.param("intersection", True, marks=pytest.mark.long),
        pytest.param("exact", False, marks=pytest.mark.long),
    ],
)
@pytest.mark.slow
def test_the_first_tokens_of_a_model_pair_have_the_targets_distribution(
    demo_pair: tuple[LanguageModel, LanguageModel], translation: str, trees: bool
) -> None:
    """The same test refuses the distribution of a target at half the temperature."""
    target, draft = demo_pair
    sessions = TargetModelSession(target.model), DraftModelSession(draft.model)
    options: dict[str, Any] = {"temperature": 1.2, "top_k": TOP}
    if not trees:  # processors need the ids before each row, which only a chain has
        options["processors"] = (parity,)
    any_seed = decoder_of(
        demo_pair,
        Sampling(),
        method="draft",
        translation=translation,
        num_draft_tokens=2 if trees else 1,
        alternatives=4 if trees else 1,
    )
    counts: Counter[tuple[int, int]] = Counter()
    accepted = branching = 0
    for seed in range(RUNS):
        decoder = replace(any_seed, sampler=Sampling(seed=seed, **options))
        prompt = decoder.prompt("Woda w rzece", use_template=False)
        limits = Limits(max_tokens=2)
        context, events = decoder.run(prompt, limits, target=sessions[0], draft=sessions[1])
        for event in events:
            if isinstance(event, Round):
                accepted += event.accepted
                branching += 1 in event.tree.depths[1:] and 2 in event.tree.depths
        first, second = context.emitted
        counts[first, second] += 1
    assert accepted > RUNS / 8
    assert (branching > RUNS / 2) == trees
    expected = distribution_of_two(target, Sampling(**options), list(prompt.target))
    assert set(counts) <= set(expected)
    found: Floats = np.array([float(counts[both]) for both in expected])
    assert p_value(found, np.array(list(expected.values()))) > LIMIT
    cold = distribution_of_two(
        target, Sampling(**options | {"temperature": 0.6}), list(prompt.target)
    )
    assert p_value(found, np.array([cold[both] for both in expected])) < LIMIT


Floats = NDArray[np.float64]


def p_value(counts: Floats, distribution: Floats) -> float:
    """How often counts would be at least as far off if they were drawn from the distribution.

    Outcomes expected fewer than five times are counted together. An impossible outcome that
    occurred gives 0.
    """
    counts = counts.ravel()
    expected = distribution.ravel() / distribution.sum() * counts.sum()
    if counts[expected == 0].any():
        return 0.0
    common = expected >= 5
    found = np.append(counts[common], counts[~common].sum())
    wanted = np.append(expected[common], expected[~common].sum())
    return float(chisquare(found[wanted > 0], wanted[wanted > 0]).pvalue)
