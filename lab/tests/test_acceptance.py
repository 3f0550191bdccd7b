"""The exact acceptance of couplings, against drawing."""

from __future__ import annotations

import numpy as np
import pytest

from lab.benchmarks.acceptance import acceptance, softmax


@pytest.mark.parametrize("seed", range(4))
def test_acceptance_is_what_drawing_gives(seed: int) -> None:
    random = np.random.default_rng(seed)
    p, q = (softmax(random.normal(size=12), temperature) for temperature in (0.5, 0.8))
    rejection, noise, bound = acceptance(p, q)
    gumbel = random.gumbel(size=(200_000, 12))
    agreed = (gumbel + np.log(p)).argmax(1) == (gumbel + np.log(q)).argmax(1)
    assert noise == pytest.approx(agreed.mean(), abs=0.01)
    assert rejection == pytest.approx(np.minimum(p, q).sum())
    assert bound <= noise <= rejection


def test_equal_models_always_agree_and_disjoint_ones_never() -> None:
    p, q = np.array([0.5, 0.5, 0.0]), np.array([0.0, 0.0, 1.0])
    assert acceptance(p, p) == pytest.approx((1.0, 1.0, 1.0))
    assert acceptance(p, q) == pytest.approx((0.0, 0.0, 0.0))
