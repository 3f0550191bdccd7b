"""Every form of a comparison has all of its rows."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st
from measured import block, measured

from tokalign.cli.bench_tables import (
    HEAD,
    as_object,
    cells,
    markdown_rows,
)
from tokalign.evaluate.comparison import Comparison, compare
from tokalign.evaluate.measurements import BASELINES, Condition

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


@given(comparisons())
def test_tables_have_all_rows_and_columns(comparison: Comparison) -> None:
    lines = markdown_rows(HEAD, map(cells, comparison.overall))
    assert len(lines) == 2 + len(comparison.overall)
    assert {line.count("|") for line in lines} == {len(HEAD) + 1}
    assert len(set(map(len, lines))) == 1, "aligned"
    assert json.loads(json.dumps(as_object(comparison, ABOUT), allow_nan=False))["about"] == ABOUT
