"""What a comparison looks like: a valid page, and tables that say the same."""

from __future__ import annotations

import csv
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markup import Document, assert_self_contained
from measured import block, measured

from tokalign.cost.curve import ContextCosts, CostCurve, Timing
from tokalign.evaluate.comparison import ENOUGH_PROMPTS, Comparison, compare
from tokalign.evaluate.measurements import BASELINES, CONTROL, PLAIN, Condition
from tokalign.report.tables import (
    HEAD,
    aligned,
    as_object,
    bench_page,
    cells,
    comma_separated,
    markdown,
)

CONDITIONS = [*BASELINES, Condition("exact", 2), Condition("exact", 4), Condition("copy", 2)]
ABOUT = {"target": "a <model>", "draft": None}


@st.composite
def comparisons(draw: st.DrawFn) -> Comparison:
    """Some prompts in two sets, measured under all conditions, at any speed."""
    speeds = st.floats(0.5, 500) | st.just(0.0)
    where = [block(n, prompt_set=s) for s in "ab" for n in range(1, draw(st.integers(0, 4)) + 1)]
    return compare(
        measured(
            condition,
            one,
            tokens_per_second=draw(speeds),
            accepted=draw(st.integers(0, 4)) if condition.drafts else 0,
        )
        for one in where
        for condition in CONDITIONS
    )


SOME = compare(
    measured(c, block(n), tokens_per_second=10.0 + n * i, accepted=n)
    for n in range(1, 5)
    for i, c in enumerate(CONDITIONS)
)


@settings(max_examples=5)
@given(comparisons())
def test_a_page_is_valid_whatever_was_measured(comparison: Comparison) -> None:
    assert_self_contained(bench_page(comparison, ABOUT))


def test_the_page_shows_every_row() -> None:
    document = Document(bench_page(SOME, ABOUT))
    assert len(document.of_class("bar")) == 2 * len(SOME.overall)
    for row in SOME.overall:
        assert set(cells(row)) <= set(document.pieces) | {""}
    assert "a <model>" in document.pieces


@pytest.mark.parametrize(
    ("control", "speeds", "says"),
    [
        (1.0, (1.1, 1.2, 1.3), "exact, k = 2 is fastest: 1.20 times"),
        (1.25, (1.1, 1.2, 1.3), "nothing is faster than plain decoding by more than the noise"),
        (1.0, (0.8, 1.1, 3.0), "nothing is faster"),
        (1.0, (0.8, 0.9, 0.95), "nothing is faster"),
        (None, (1.1, 1.2, 1.3), "is not known"),
    ],
)
def test_the_verdict_claims_only_what_clears_the_control(
    control: float | None, speeds: tuple[float, ...], says: str
) -> None:
    """The control runs at one speed on all prompts, the condition at three in turn."""
    relative = {PLAIN: [1.0], CONTROL: [control], "exact": speeds}
    found = compare(
        measured(condition, block(n), tokens_per_second=10 * speed)
        for n in range(3 * ENOUGH_PROMPTS)
        for condition in (*BASELINES, Condition("exact", 2))
        if (speed := relative[condition.name][n % len(relative[condition.name])]) is not None
    )
    assert says in Document(bench_page(found, ABOUT)).text


def test_costs_are_there_where_the_curve_is_known() -> None:
    rows = {m: Timing(m / 10, m / 10, m / 10) for m in (1, 2, 4)}
    curve = CostCurve(
        name="this machine", source="measured", contexts=(ContextCosts(tokens=64, rows=rows),)
    )
    document = Document(bench_page(SOME, ABOUT, curve=curve))
    assert "What a pass costs" in document.pieces
    assert "measured" in document.pieces
    assert "What a pass costs" not in Document(bench_page(SOME, ABOUT)).pieces


@given(comparisons())
def test_tables_have_all_rows_and_columns(comparison: Comparison) -> None:
    lines = aligned([HEAD, *map(cells, comparison.overall)]).splitlines()
    assert len(lines) == 1 + len(comparison.overall)
    tables = [line for line in markdown(comparison, ABOUT).splitlines() if line.startswith("|")]
    assert all(line.count("|") == len(HEAD) + 1 for line in tables)
    assert json.loads(json.dumps(as_object(comparison, ABOUT), allow_nan=False))["about"] == ABOUT


def test_csv_has_a_line_per_prompt_and_condition() -> None:
    rows = list(csv.DictReader(comma_separated(SOME).splitlines()))
    assert len(rows) == 20
    assert {row["condition"] for row in rows} == {PLAIN, CONTROL, "exact", "copy"}
    exact = [
        float(row["speedup"]) for row in rows if (row["condition"], row["k"]) == ("exact", "2")
    ]
    assert exact == [1.2, 1.4, 1.6, 1.8]
