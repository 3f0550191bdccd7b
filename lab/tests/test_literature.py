"""The formulas of the literature against its printed figures, as lab/literature.md gives them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from places import ROOT

from tokalign.runtime.cost import read_curve

R, BETA = 0.071, 0.19
"""What the Polish study reports for the M2 Pro."""


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


def test_the_table_of_mlx_rs() -> None:
    rows = list(table("| acceptance | formula | printed |"))
    assert [row[0] for row in rows] == [100, 80, 60, 40, 20]
    for acceptance, formula, printed in rows:
        assert mlx_rs(acceptance / 100, 4, 0.1) == pytest.approx(formula, abs=0.005)
        assert formula == pytest.approx(printed, abs=0.08)


def test_the_break_evens_of_the_polish_study() -> None:
    for number, exact, rounded, slope, printed in table("| k | exact"):
        k = round(number)
        assert exact == pytest.approx(100 * (R * (k + 1) / k + BETA * k), abs=0.051)
        assert rounded == pytest.approx(100 * (R + BETA * k), abs=0.051)
        assert slope == pytest.approx(100 * (R + (0.77 - 0.40) / 2 * k), abs=0.051)
        assert printed == round(rounded if k == 6 else slope)


def test_the_shipped_curve_is_equation_5() -> None:
    curve = read_curve("m2-pro")
    draft_pass = curve.draft_pass
    assert draft_pass is not None
    for k in range(1, 13):
        round_of_k = curve.row_times[k] + k * draft_pass.median
        assert (1 + 0.5 * k) / round_of_k == pytest.approx(unified_memory(0.5, k))
