"""Charts and pages: valid, self-contained, escaped, and everything that can be drawn is drawn."""

from __future__ import annotations

import re
import sys
from math import inf, nan

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markup import Document, assert_self_contained

from tokalign.errors import MissingAssetError
from tokalign.report.charts import (
    Axis,
    Bar,
    Series,
    bars,
    columns,
    scatter,
    staircase,
)
from tokalign.report.page import Html, details, figures, grid, page, section, table, tag

values = st.floats(-1e6, 1e6)
X, Y = Axis(label="acceptance", low=0, form="%"), Axis(label="speed-up (×)")


def symbols(markup: str) -> int:
    """How many points are drawn."""
    groups = re.findall(r'<g class="mark-symbol[^>]*>(.*?)</g>', markup)
    return sum(group.count("<path") for group in groups)


@given(st.text(), st.text())
def test_text_is_escaped_wherever_it_stands(content: str, value: str) -> None:
    document = Document(tag("p", content, tag("b", content), title=value))
    assert document.text.replace("\r", "\n") == (content * 2).replace("\r", "\n")
    assert document.elements[0][1]["title"] == value
    assert len(document.elements) == 2


def test_attributes_are_named_as_in_html() -> None:
    assert tag("td", class_="n", aria_label=None, data_note="a b") == (
        '<td class="n" data-note="a b"></td>'
    )


series = st.builds(
    Series,
    name=st.text(max_size=12),
    points=st.lists(st.tuples(values, values | st.sampled_from([nan, inf])), max_size=6),
    style=st.integers(0, 20),
    line=st.sampled_from([(), ((0, 0.5), (1, 2))]),
)


@settings(max_examples=10)
@given(st.lists(series, max_size=5, unique_by=lambda one: one.name), st.text(max_size=10))
def test_charts_are_valid_and_coloured_by_the_page(drawn: list[Series], title: str) -> None:
    for chart in (
        scatter(drawn, x=X, y=Y, title=title, level=(1, "plain")),
        staircase(drawn, x=X, y=Y, title=title, level=(1, title)),
    ):
        assert_self_contained(chart)
        assert not re.search('(fill|stroke)="(#|rgb|black|white)', chart), "not for a dark page"


def test_every_finite_point_is_drawn_once() -> None:
    drawn = [
        Series(name="a", points=[(0, 1), (1, nan), (2, 3)], style=0),
        Series(name="b", points=[(5, 5), (inf, 1)], style=1),
    ]
    assert symbols(scatter(drawn, x=X, y=Y, title="t")) == 3
    assert symbols(scatter(drawn, x=X, y=Y, title="t")) == 3


def test_bars_say_their_values() -> None:
    chart = bars(
        {
            "exact": {"k = 2": Bar(1.25, 1.0, 1.5)},
            "a<b": {"k = 2": Bar(0.5), "k = 4": Bar(0.75)},
        },
        ["k = 2", "k = 4"],
        x=Axis(label="speed-up (×)", form=".2f"),
        title="t",
        level=(1, "plain"),
        band=(0.9, 1.1),
    )
    document = Document(chart)
    for text in ("1.25", "0.50", "0.75", "exact", "a<b", " k = 2", " k = 4", "plain"):
        assert text in document.pieces
    marks = re.findall(r'<g class="mark-rect role-mark[^>]*>(.*?)</g>', chart)
    assert [mark.count("<path") for mark in marks] == [1, 3], "the band, then the bars"


@pytest.mark.parametrize("word", ["if", "constructor", "toString", "hasOwnProperty"])
def test_words_that_vega_knows_are_drawn_as_any_other(word: str) -> None:
    assert word in columns({word: 1}, x=word, y=Axis(label=word), title=word)
    assert word in bars({word: {word: Bar(1)}}, [word], x=Axis(label=word), title=word)


def test_columns_say_their_values() -> None:
    document = Document(columns({"0": 12, "1": 3}, x="accepted", y=Axis(label="rounds"), title="t"))
    assert {"12", "3", "0", "1", "rounds"} <= set(document.pieces)


def test_without_vl_convert_a_chart_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    with pytest.raises(MissingAssetError, match=re.escape("tokalign[report]")) as found:
        columns({"0": 1}, x="x", y=Axis(label="y"), title="t")
    assert "\n" not in str(found.value)


@settings(max_examples=10)
@given(st.text(max_size=20))
def test_a_page_is_valid_and_needs_nothing(text: str) -> None:
    chart = columns({text: 1}, x=text, y=Axis(label=text), title=text)
    made = page(
        text,
        section(text, figures({text: text}), grid({text: chart}), note=text),
        details(text, table([text, text], [[text, Html("<b>1</b>")]])),
        introduction=text,
    )
    assert_self_contained(made)
    assert made.startswith("<!DOCTYPE html>")
