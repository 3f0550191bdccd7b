"""The literature's formulas against its own printed figures, and against each other."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokalign.cost.model import (
    _student_t,
    acceptance_buckets,
    approximate_break_even,
    break_even,
    fit_break_even,
    joules_per_token,
    leviathan_speedup,
    unified_memory_speedup,
    unispec_speedup,
)

R, BETA = 0.071, 0.19
"""What the Polish study reports for the M2 Pro."""


@pytest.mark.parametrize(("k", "printed"), [(2, 0.44), (4, 0.81), (6, 1.21)])
def test_the_printed_break_evens_come_from_the_approximation(k: int, printed: float) -> None:
    """Its r and beta are rounded: they give 45.1, 83.1 and 121.1 % for the printed 44, 81, 121."""
    found = approximate_break_even(k, r=R, beta=BETA)
    assert found == pytest.approx(printed, abs=0.022)
    assert abs(found - printed) < abs(break_even(k, r=R, beta=BETA) - printed)


@given(st.integers(1, 12), st.floats(0.001, 0.5), st.floats(0, 0.5))
def test_at_the_break_even_the_speedup_is_one(k: int, r: float, beta: float) -> None:
    at = break_even(k, r=r, beta=beta)
    assert unified_memory_speedup(at, k, r=r, beta=beta) == pytest.approx(1)
    assert at - approximate_break_even(k, r=r, beta=beta) == pytest.approx(r / k)


def test_no_acceptance_saves_k_6_on_the_studys_machine() -> None:
    assert unified_memory_speedup(1.0, 6, r=R, beta=BETA) < 1
    assert unified_memory_speedup(0.5, 2, r=R, beta=BETA) == pytest.approx(2 / 1.973)


@given(st.floats(0, 0.99), st.integers(1, 10), st.floats(0, 1))
def test_leviathan_is_a_geometric_sum(alpha: float, k: int, draft_pass: float) -> None:
    tokens = sum(alpha**i for i in range(k + 1))
    assert leviathan_speedup(alpha, k, draft_pass) == pytest.approx(tokens / (1 + k * draft_pass))


def test_a_perfect_free_draft_is_worth_its_length() -> None:
    assert leviathan_speedup(1.0, 4, 0.0) == 5
    assert leviathan_speedup(0.0, 4, 0.0) == 1


def test_unispec_of_no_draft_is_its_tokens() -> None:
    def tokens(g: float) -> float:
        return 1 + 0.5 * g

    assert unispec_speedup(0, tokens=tokens, time=lambda g: 30 + 3 * g) == 1
    assert unispec_speedup(2, tokens=tokens, time=lambda g: 30 + 3 * g) == pytest.approx(2 / 1.2)


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
    with pytest.raises(ValueError, match="speed-ups"):
        fit_break_even([0.1], [])


def test_students_t_as_tabulated() -> None:
    for degrees, value in ((1, 12.7062), (2, 4.3027), (3, 3.1824), (10, 2.2281), (30, 2.0423)):
        assert _student_t(0.975, degrees) == pytest.approx(value, rel=0.002)


def test_every_measurement_is_in_one_bucket() -> None:
    acceptance = [0.0, 0.1, 0.2, 0.45, 0.999, 1.0]
    buckets = acceptance_buckets(acceptance, [1, 2, 3, 4, 5, 6])
    assert [bucket.count for bucket in buckets] == [2, 1, 1, 0, 2]
    assert [bucket.mean_speedup for bucket in buckets] == [1.5, 3, 4, 0, 5.5]


def test_energy_of_a_token() -> None:
    assert joules_per_token(30.0, 12.0) == 2.5
