"""Elements of the page of a study: escaped wherever a text stands."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from markup import Document, assert_self_contained

from lab.study.html import Html, details, figures, page, section, table, tag


@given(st.text(), st.text())
def test_text_is_escaped_wherever_it_stands(content: str, value: str) -> None:
    document = Document(tag("p", content, tag("b", content), title=value))
    assert document.text.replace("\r", "\n") == (content * 2).replace("\r", "\n")
    assert document.elements[0][1]["title"] == value
    assert len(document.elements) == 2


@settings(max_examples=10)
@given(st.text(max_size=20))
def test_a_page_is_valid_and_needs_nothing(text: str) -> None:
    made = page(
        text,
        section(text, figures({text: text}), note=text),
        details(text, table([text, text], [[text, Html("<b>1</b>")]])),
        introduction=text,
    )
    assert_self_contained(made)
    assert made.startswith("<!DOCTYPE html>")
