"""The best draft length is the best of all lengths, whatever shape the costs have."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokalign.cost.expected_gain import Costs, best_ids, best_length

PROBABILITIES = st.lists(st.floats(0, 1), max_size=12)
ROWS = st.lists(st.floats(0.1, 10), min_size=1, max_size=14).map(tuple)


def rate(probabilities: list[float], costs: Costs, length: int, spent: float) -> float:
    expected, all_right = 1.0, 1.0
    for probability in probabilities[:length]:
        all_right *= probability
        expected += all_right
    return expected / (costs.verify(length + 1) + (costs.host if length else 0.0) + spent)


@given(PROBABILITIES, ROWS, st.floats(0, 1), st.floats(0, 1))
def test_no_other_length_has_a_higher_rate(
    probabilities: list[float], rows: tuple[float, ...], host: float, spent: float
) -> None:
    costs = Costs(rows=rows, host=host)
    plan = best_length(probabilities, costs, spent=spent)
    rates = [rate(probabilities, costs, n, spent) for n in range(len(probabilities) + 1)]
    assert plan.rate == pytest.approx(max(rates))
    assert rates[plan.length] == pytest.approx(max(rates))
    time = costs.verify(plan.length + 1) + (host if plan.length else 0.0) + spent
    assert plan.tokens == pytest.approx(plan.rate * time)


@given(PROBABILITIES, ROWS, st.floats(0, 1))
def test_a_chain_is_a_tree_of_one_branch(
    probabilities: list[float], rows: tuple[float, ...], spent: float
) -> None:
    costs, parents = Costs(rows=rows), range(-1, len(probabilities) - 1)
    length = best_length(probabilities, costs, spent=spent).length
    assert best_ids(probabilities, parents, costs, spent=spent) == list(range(length))


@st.composite
def trees(draw: st.DrawFn) -> tuple[list[float], list[int]]:
    probabilities = draw(st.lists(st.floats(0, 1), min_size=1, max_size=7))
    return probabilities, [draw(st.integers(-1, i - 1)) for i in range(len(probabilities))]


@given(trees(), ROWS)
def test_no_other_part_of_a_tree_has_a_higher_rate(
    tree: tuple[list[float], list[int]], rows: tuple[float, ...]
) -> None:
    probabilities, parents = tree
    costs = Costs(rows=rows)
    reached: list[float] = []
    for probability, parent in zip(probabilities, parents, strict=True):
        reached.append(probability * (reached[parent] if parent >= 0 else 1.0))

    def rate_of(kept: Sequence[int]) -> float:
        return (1 + sum(reached[i] for i in kept)) / costs.verify(len(kept) + 1)

    def whole(kept: Sequence[int]) -> bool:
        return all(parents[i] == -1 or parents[i] in kept for i in kept)

    chosen = best_ids(probabilities, parents, costs)
    every = chain.from_iterable(
        combinations(range(len(parents)), n) for n in range(len(parents) + 1)
    )
    assert whole(chosen)
    assert rate_of(chosen) == pytest.approx(max(rate_of(kept) for kept in every if whole(kept)))


def test_a_staircase_has_more_than_one_summit() -> None:
    cheap_pairs = Costs(rows=(1.0, 1.9, 1.9, 1.9, 1.9))
    assert best_length([0.8] * 4, cheap_pairs).length == 4
    assert best_length([0.8], cheap_pairs).length == 0


def test_where_rows_are_dear_nothing_is_proposed() -> None:
    assert best_length([0.9, 0.9], Costs(rows=(1.0, 2.0, 3.0))).length == 0


def test_after_the_measured_rows_the_last_step_goes_on() -> None:
    costs = Costs(rows=(1.0, 1.5, 2.5))
    assert costs.verify(5) == pytest.approx(4.5)
    assert Costs(rows=(2.0,)).verify(9) == 2.0
    assert Costs(rows=(1.0, 2.0, 1.5)).verify(9) == 1.5  # more rows are never taken to cost less


@given(ROWS, st.integers(1, 16), st.floats(0, 1))
def test_an_expected_number_of_rows_lies_between_its_neighbours(
    rows: tuple[float, ...], whole: int, part: float
) -> None:
    costs = Costs(rows=rows)
    ends = costs.verify(whole), costs.verify(whole + 1)
    assert costs.expected_verify(whole) == ends[0]
    assert min(ends) - 1e-9 <= costs.expected_verify(whole + part) <= max(ends) + 1e-9
