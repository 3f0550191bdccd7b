"""Where a fitted line crosses a speed-up of 1, and how sure that is."""

from __future__ import annotations

import random
from math import inf

import numpy as np
import pytest

from lab.study.break_even import fit_break_even


def test_a_line_is_found_exactly() -> None:
    xs = [0.1, 0.3, 0.5, 0.9]
    fit = fit_break_even(xs, [0.6 + 0.8 * x for x in xs])
    assert fit is not None
    assert fit.acceptance == pytest.approx(0.5)
    assert fit.r_squared == pytest.approx(1)
    assert fit.high - fit.low == pytest.approx(0, abs=1e-6)


def test_the_interval_covers_the_true_crossing_as_often_as_it_says() -> None:
    """2,000 noisy lines that cross 1 at 0.5: 95 % intervals cover it 93 to 97 % of the time."""
    chance = random.Random(7)
    covered = 0
    for _ in range(2000):
        xs = [chance.uniform(0.1, 0.9) for _ in range(12)]
        ys = [0.6 + 0.8 * x + chance.gauss(0, 0.03) for x in xs]
        fit = fit_break_even(xs, ys)
        assert fit is not None
        covered += fit.low <= 0.5 <= fit.high
    assert 0.93 < covered / 2000 < 0.97


def test_nothing_can_be_said_of_too_few_points_or_no_spread() -> None:
    assert fit_break_even([0.1, 0.2], [1, 1.1]) is None
    assert fit_break_even([0.3] * 5, [1, 1.1, 1.2, 1, 1]) is None


def test_the_interval_is_the_delta_methods() -> None:
    """Against the textbook: gradient (-1 / b, -(1 - a) / b²) and the covariance of a and b."""
    xs, ys = np.array([0.1, 0.3, 0.5, 0.9, 0.7]), np.array([0.7, 0.8, 1.1, 1.2, 1.3])
    (slope, intercept), covariance = np.polyfit(xs, ys, 1, cov=True)
    gradient = np.array([-(1 - intercept) / slope**2, -1 / slope])
    fit = fit_break_even(xs.tolist(), ys.tolist())
    assert fit is not None
    assert fit.acceptance == pytest.approx((1 - intercept) / slope)
    assert fit.r_squared == pytest.approx(np.corrcoef(xs, ys)[0, 1] ** 2)
    assert fit.deviation == pytest.approx(np.sqrt(gradient @ covariance @ gradient))
    assert fit.high - fit.acceptance == pytest.approx(3.1824 * fit.deviation, rel=1e-4)


def test_a_flat_line_crosses_nowhere() -> None:
    fit = fit_break_even([0.1, 0.5, 0.9], [0.8, 0.8, 0.8])
    assert fit is not None
    assert (fit.low, fit.acceptance, fit.high) == (-inf, inf, inf)
