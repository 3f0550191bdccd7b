"""The formulas of the literature against its printed figures, as lab/literature.md gives them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from places import ROOT

from tokalign.cost.curve import read_curve

R, BETA = 0.071, 0.19
"""What the Polish study reports for the M2 Pro."""

MEASURED = {
    2: "44.6 1.06 42.0 1.06 31.1 0.87 41.0 0.98 36.0 0.97 23.9 0.81 42.7 1.00 36.5 0.98 22.2 0.75",
    4: "53.8 0.70 49.7 0.66 38.5 0.59 49.7 0.59 43.7 0.59 29.5 0.51 51.6 0.61 44.5 0.61 29.1 0.46",
    6: "45.0 0.40 41.7 0.35 20.6 0.28",
}
"""Its Tables 4 and 11: acceptance in percent and speed-up, by k."""

BREAK_EVENS = {
    2: (44.0, 38.3, 40.8, 40.2, 38.1, 42.2, 52.8, 38.0, 42.5),
    4: (90.1, 81.2, 77.7, 89.9, 82.0, 81.3, 139.4, 85.2, 92.3),
}
"""Its Table 5, by k."""


def leviathan(alpha: float, k: int, draft_pass: float) -> float:
    """Theorem 3.8."""
    tokens = k + 1 if alpha == 1 else (1 - alpha ** (k + 1)) / (1 - alpha)
    return tokens / (k * draft_pass + 1)


def mlx_rs(alpha: float, k: int, draft_pass: float, target_pass: float = 1.0) -> float:
    """As the page prints it."""
    return 1 / ((k * draft_pass + target_pass) / (1 + k * alpha))


def unified_memory(alpha: float, k: int, r: float = R, beta: float = BETA) -> float:
    """Equation 5 of the Polish study."""
    return (1 + alpha * k) / ((k + 1) * r + 1 + beta * k * k)


def table(heading: str) -> Iterator[list[float]]:
    """The numbers of the table whose heading begins so, row by row."""
    lines = (ROOT / "lab" / "literature.md").read_text("utf-8").splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(heading))
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            return
        yield [float(cell.strip(" %")) for cell in line.strip("|").split("|")]


@given(st.floats(0, 0.99), st.integers(1, 10), st.floats(0, 1))
def test_leviathan_is_a_geometric_sum(alpha: float, k: int, draft_pass: float) -> None:
    tokens = sum(alpha**i for i in range(k + 1))
    assert leviathan(alpha, k, draft_pass) == pytest.approx(tokens / (1 + k * draft_pass))
    assert leviathan(1.0, k, 0.0) == k + 1


def test_the_table_of_mlx_rs() -> None:
    rows = list(table("| acceptance | formula | printed |"))
    assert [row[0] for row in rows] == [100, 80, 60, 40, 20]
    for acceptance, formula, printed in rows:
        assert mlx_rs(acceptance / 100, 4, 0.1) == pytest.approx(formula, abs=0.005)
        assert formula == pytest.approx(printed, abs=0.08)


def test_the_examples_of_mlx_rs() -> None:
    assert mlx_rs(0.7, 4, 0.1) == pytest.approx(2.71, abs=0.005)
    four_tokens, four_steps = 4 * 200, 4 * 20 + 200  # milliseconds
    assert four_tokens / four_steps == pytest.approx(2.86, abs=0.005)
    assert mlx_rs(1.0, 3, 0.1) == pytest.approx(3.08, abs=0.005)
    three_tokens, three_steps = 3 * 200, 3 * 20 + 200
    assert three_tokens / three_steps == pytest.approx(2.3, abs=0.01)


@given(st.integers(1, 12), st.floats(0.001, 0.5), st.floats(0, 0.5))
def test_at_the_break_even_equation_5_is_one(k: int, r: float, beta: float) -> None:
    assert unified_memory(r * (k + 1) / k + beta * k, k, r, beta) == pytest.approx(1)


def test_the_break_evens_of_the_polish_study() -> None:
    for number, exact, rounded, slope, printed in table("| k | exact"):
        k = round(number)
        assert exact == pytest.approx(100 * (R * (k + 1) / k + BETA * k), abs=0.051)
        assert rounded == pytest.approx(100 * (R + BETA * k), abs=0.051)
        assert slope == pytest.approx(100 * (R + (0.77 - 0.40) / 2 * k), abs=0.051)
        assert printed == round(rounded if k == 6 else slope)


def test_the_means_of_its_table_5() -> None:
    assert sum(BREAK_EVENS[2]) / 9 == pytest.approx(41.9, abs=0.051)
    assert sum(BREAK_EVENS[4]) / 9 == pytest.approx(91.0, abs=0.051)
    assert (sum(BREAK_EVENS[4]) - 139.4) / 8 == pytest.approx(85.0, abs=0.051)
    assert min(BREAK_EVENS[4]) == 77.7


def test_equation_5_against_its_measured_speedups() -> None:
    errors = {}
    for k, figures in MEASURED.items():
        numbers = list(map(float, figures.split()))
        pairs = zip(numbers[::2], numbers[1::2], strict=True)
        errors[k] = [round(unified_memory(a / 100, k) - speedup, 2) for a, speedup in pairs]
    assert (min(errors[2]), max(errors[2])) == (-0.13, -0.02)
    assert (min(errors[4] + errors[6]), max(errors[4] + errors[6])) == (-0.01, 0.09)


def test_its_joules_per_token() -> None:
    """Table 12: watts, tokens per second and joules."""
    for watts, per_second, joules in (
        (30, 15, 2.0), (40, 15, 2.7), (72, 22, 3.3), (250, 110, 2.3), (450, 80, 5.6), (600, 80, 7.5)
    ):  # fmt: skip
        assert watts / per_second == pytest.approx(joules, abs=0.051)


def test_the_shipped_curve_is_equation_5() -> None:
    curve = read_curve("m2-pro")
    draft_pass = curve.draft_pass_at(0)
    assert draft_pass is not None
    for k in range(1, 13):
        round_of_k = curve.rows_at(0)[k] + k * draft_pass
        assert (1 + 0.5 * k) / round_of_k == pytest.approx(unified_memory(0.5, k))
