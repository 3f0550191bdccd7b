"""Drawing over target ids: the draft distribution, its draws, and their noise."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_models import random_model
from scipy.stats import chisquare

from tokalign.runtime.mlx import noise
from tokalign.runtime.mlx.draft_session import DraftModelSession
from tokalign.runtime.mlx.sampling import Sampling
from tokalign.runtime.mlx.to_target_ids import ToTargetIds
from tokalign.tables.alignment import FirstIds
from tokalign.tables.token_tree import EMPTY_TREE, TokenTree
from tokalign.tokenizer.vocabulary import DraftId, TargetId


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(-1, 5), min_size=1, max_size=12).filter(lambda first: max(first) >= 0),
    st.integers(0, 3),
)
def test_probabilities_of_draft_ids_with_the_same_first_id_add_up(
    first: list[int], padding: int
) -> None:
    ids = np.random.default_rng(padding).permutation(len(first) + padding)
    onto = ToTargetIds(first_ids(first), ids)
    row = np.random.default_rng(len(first)).normal(0, 2, len(ids))
    logits = mx.array(row[None], dtype=mx.float32)
    expected = np.zeros(max(first) + 1)
    begins = [first[draft] if draft < len(first) else -1 for draft in ids]
    for column, target in enumerate(begins):
        if target >= 0:
            expected[target] += np.exp(row[column])
    assert np.allclose(np.exp(np.array(onto.logits(logits)[0])), expected, rtol=1e-4)
    for target in set(first) - {-1}:
        among = [column for column, of in enumerate(begins) if of == target]
        chosen = onto.most_probable(logits, mx.array([target])).item()
        assert chosen == max(among, key=row.__getitem__)


def first_ids(first: list[int], counts: list[int] | None = None) -> FirstIds:
    return FirstIds(np.array(first, np.int32), np.array(counts or [1] * len(first), np.int32))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(-1, 5), min_size=2, max_size=12), st.booleans())
def test_draft_ids_share_what_is_expected_of_their_first_id(
    first: list[int], filtered: bool
) -> None:
    """The softmax of log q + T g over draft ids, where those with one first id share its noise."""
    first = [0, *first]
    options = Sampling(temperature=0.8, seed=3, top_k=2 if filtered else 0)
    onto = ToTargetIds(first_ids(first), np.arange(len(first)))
    row = np.random.default_rng(len(first)).normal(0, 2, len(first)).astype(np.float32)
    masked = mx.array(row[None]) + onto.mask
    found = np.exp(np.array(onto.expect(masked, options, [7])[0], dtype=np.float64))
    noise = np.array(options.noise_at(7, 6))
    kept = np.array([target >= 0 for target in first])
    mass = np.bincount(np.array(first)[kept], weights=np.exp(row[kept]), minlength=6)
    allowed = set(np.argsort(-mass, kind="stable")[: 2 if filtered else 6].tolist())
    scores = np.array(
        [
            np.exp(q + 0.8 * noise[target]) if target in allowed else 0.0
            for q, target in zip(row, first, strict=True)
        ]
    )
    assert found == pytest.approx(scores / scores.sum(), abs=1e-5)


FILTERS = [{}, {"top_p": 0.7}, {"top_k": 3}, {"min_p": 0.2}, {"top_p": 0.9, "min_p": 0.05}]


@pytest.mark.parametrize("filters", FILTERS)
def test_a_few_ids_are_expected_and_drawn_as_they_are_among_all(filters: dict[str, Any]) -> None:
    """Nine ids of 40: the host ranks them as the device does, and draws the same one."""
    options = Sampling(temperature=0.8, seed=2, **filters)
    rng = np.random.default_rng(4)
    for position in range(3, 12):
        few = {TargetId(int(i)): float(rng.normal(0, 1.5)) for i in rng.permutation(40)[:9]}
        row = np.full((1, 40), -np.inf, dtype=np.float32)
        row[0, list(few)] = list(few.values())
        found = options.expect_among(few, options.noise_at(position, 40))
        chosen, _ = options.choose(mx.array(row), [position])
        assert next(iter(found)) == chosen.item()
        expected = np.array(options.expect(mx.array(row), [position]))[0]
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
        common = expected[row] > 1e-4
        wanted = expected[row][common] / expected[row][common].sum()
        found = counts[common]
        assert chisquare(found, wanted * found.sum()).pvalue > 1e-3


def test_the_most_probable_id_of_a_branch_is_the_one_that_would_be_drawn() -> None:
    """A chain of several passes and a tree of one branch follow the same noise."""
    model = random_model(vocabulary=32, seed=3)
    counts = [1 + token % 2 for token in range(32)]  # of target ids, which move the noise on
    firsts = first_ids([*range(32)], counts)
    options = Sampling(temperature=0.8, seed=5)
    text = [DraftId(token) for token in (1, 2, 3, 8)]
    drawn = DraftModelSession(model).draft(text, 4, firsts, options, 4).ids
    session, tree, positions = DraftModelSession(model), EMPTY_TREE, [4]
    while len(tree) < 4:
        [*_, last] = session.branch(text, tree, None, 3, firsts, options, positions)()
        _, token = max(zip(last.logprobs, last.ids, strict=True))
        tree = TokenTree.chain([*tree.ids, token], "test")
        positions.append(positions[-1] + counts[token])
    assert list(tree.ids) == drawn
    assert positions[-1] > 8


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
