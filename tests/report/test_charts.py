"""Charts and pages: valid, self-contained, escaped, and everything drawn lies inside."""

from __future__ import annotations

import re
from itertools import pairwise
from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markup import Document, assert_self_contained

from tokalign.report.axes import Axis, percent
from tokalign.report.bars import Bar, bars, columns
from tokalign.report.html import Html, table, tag
from tokalign.report.page import details, figures, grid, page, section
from tokalign.report.plots import Line, Series, lines, scatter, staircase

values = st.floats(-1e6, 1e6)
X, Y = Axis(label="acceptance", low=0, form=percent), Axis(label="speed-up (×)")


@given(st.text(), st.text())
def test_text_is_escaped_wherever_it_stands(content: str, value: str) -> None:
    document = Document(tag("p", content, tag("b", content), title=value))
    assert document.text.replace("\r", "\n") == (content * 2).replace("\r", "\n")
    assert document.elements[0][1]["title"] == value
    assert len(document.elements) == 2


def test_attributes_by_type() -> None:
    assert tag("td", class_=None, hidden=True, open=False, x1=1.0, y=2.345) == (
        '<td hidden x1="1" y="2.35"></td>'
    )


@given(st.lists(values, min_size=1, max_size=8), st.integers(2, 9))
def test_ticks_enclose_what_is_shown_and_are_few(shown: list[float], count: int) -> None:
    scale = Axis(label="x").scale(shown, (0, 100), count)
    assert all(a < b for a, b in pairwise(scale.ticks))
    assert len(scale.ticks) <= count + 3
    assert all(-0.01 <= scale(value) <= 100.01 for value in shown)


@given(st.lists(st.floats(1e-3, 1e7), min_size=1, max_size=8))
def test_logarithmic_ticks_enclose_too(shown: list[float]) -> None:
    scale = Axis(label="x", logarithmic=True).scale(shown, (0, 100), 5)
    assert all(-0.01 <= scale(value) <= 100.01 for value in shown)
    assert all(a < b for a, b in pairwise(scale.ticks))


def test_a_logarithmic_axis_refuses_zero() -> None:
    with pytest.raises(ValueError, match="positive"):
        Axis(label="x", logarithmic=True).scale([0, 1], (0, 100), 5)


series = st.builds(
    Series,
    fit=st.none() | st.just(Line(0.5, 2, 0, 1)),
    name=st.text(max_size=12),
    points=st.lists(st.tuples(values, values | st.sampled_from([nan, inf])), max_size=6),
)


@given(st.lists(series, max_size=10), st.text(max_size=10))
def test_whatever_is_plotted_lies_inside(drawn: list[Series], title: str) -> None:
    for chart in (
        scatter(drawn, x=X, y=Y, title=title, level=(1, "plain")),
        scatter(drawn, x=X, y=Y, title=title, small=True),
        lines(drawn, x=X, y=Y, title=title),
        staircase(drawn, x=X, y=Y, title=title),
    ):
        document = Document(chart)
        box = document.elements[0][1]["viewbox"]
        assert box is not None
        _, _, width, height = map(float, box.split())
        for mark in document.of_class("dot"):
            x, y = map(float, re.findall(r"-?[\d.]+", mark["transform"] or ""))
            assert 0 <= x <= width
            assert y <= height + 1


def test_every_finite_point_is_drawn_once() -> None:
    drawn = [Series(name="a", points=[(0, 1), (1, nan), (2, 3)]), Series(name="b", points=[(5, 5)])]
    assert len(Document(scatter(drawn, x=X, y=Y, title="t", small=True)).of_class("dot")) == 3


def test_bars_say_their_values() -> None:
    chart = bars(
        {"exact": [Bar(1.25, 1.0, 1.5), None], "a<b": [Bar(0.5), Bar(0.75)]},
        ["k = 2", "k = 4"],
        x=Axis(label="speed-up (×)", form="{:.2f}×".format),
        title="t",
        level=(1, "plain"),
    )
    document = Document(chart)
    for text in ("1.25×", "0.50×", "0.75×", "exact", "a<b", "k = 2", "k = 4", "plain"):
        assert text in document.pieces
    assert len(document.of_class("whisker")) == 1
    assert len([1 for tag, _ in document.elements if tag == "rect"]) == 3 + 2  # and the key


def test_columns_say_their_values() -> None:
    document = Document(columns({"0": 12, "1": 3}, x="accepted", y=Axis(label="rounds"), title="t"))
    assert {"12", "3", "0", "1", "rounds"} <= set(document.pieces)


@given(st.text(max_size=20))
def test_a_page_is_valid_and_needs_nothing(text: str) -> None:
    chart = columns({text: 1}, x=text, y=Axis(label=text), title=text)
    made = page(
        text,
        section(text, figures({text: text}), grid({text: chart}), note=text),
        details(text, table([text, text], [[text, Html("<b>1</b>")]], caption=text)),
        introduction=text,
    )
    assert_self_contained(made)
    assert made.startswith("<!DOCTYPE html>")
