"""Costs of rows beyond and between those that were measured."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokalign.cost.expected_gain import Costs


def test_after_the_measured_rows_the_last_step_goes_on() -> None:
    costs = Costs(rows=(1.0, 1.5, 2.5))
    assert costs.verify(5) == pytest.approx(4.5)
    assert Costs(rows=(2.0,)).verify(9) == 2.0
    assert Costs(rows=(1.0, 2.0, 1.5)).verify(9) == 1.5  # more rows are never taken to cost less


@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=8), st.integers(1, 16), st.floats(0, 1))
def test_an_expected_number_of_rows_lies_between_its_neighbours(
    rows: list[float], whole: int, part: float
) -> None:
    costs = Costs(rows=tuple(rows))
    ends = costs.verify(whole), costs.verify(whole + 1)
    assert costs.expected_verify(whole) == ends[0]
    assert min(ends) - 1e-9 <= costs.expected_verify(whole + part) <= max(ends) + 1e-9
