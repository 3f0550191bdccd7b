"""What is known of coming choices is the noise that the target chooses with, and drafts use it."""

from __future__ import annotations

import numpy as np
import pytest

from tokalign.runtime.draft.mixing import given_noise
from tokalign.runtime.mlx.noise import TARGET, gumbel
from tokalign.runtime.mlx.sampling import Sampling
from tokalign.tokenizer.vocabulary import TargetId


def test_it_is_the_noise_of_every_position_however_far_rounds_go() -> None:
    ahead = Sampling(temperature=0.7, seed=5).noise_ahead(40)
    assert ahead is not None
    position, chance = 3, np.random.default_rng(0)
    for step in [*chance.integers(1, 9, 40).tolist(), 30, 1, 2]:
        for depth, row in enumerate(ahead.rows(position)):
            expected = np.exp(np.array(gumbel(5, TARGET, position + depth, (1, 40))[0]))
            assert np.allclose(row, expected, rtol=1e-5)
        position += step


def test_greedy_choices_have_none() -> None:
    assert Sampling(temperature=0).noise_ahead(40) is None


@pytest.mark.parametrize("error", [0.0, 0.5])
def test_known_noise_tells_more_than_probabilities_do(error: float) -> None:
    """A target samples from six ids, of which three are named, with probabilities that are off."""
    chance = np.random.default_rng(1)
    named, known, plain = range(3), 0.0, 0.0
    for _ in range(2000):
        truth = chance.dirichlet([2.0, 1.0, 0.5, 0.3, 0.2, 0.1])
        noise = chance.gumbel(size=6)
        came = int(np.argmax(np.log(truth) + noise))
        said = truth[:3] * np.exp(chance.normal(0, error, 3))
        said /= max(1.0, said.sum() / 0.95)
        rated = [(TargetId(i), float(said[i]), "it", i) for i in named]
        given = dict(zip(named, given_noise(rated, np.exp(noise)), strict=True))
        assert sum(given.values()) <= 1.0 + 1e-9
        known += max(given, key=lambda i: given[i]) == came
        plain += int(np.argmax(said)) == came
    assert known > 1.2 * plain
