"""The tree of a Markdown text: every piece stands where it says, and nothing of it can run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokalign.serve.page.markdown import blocks

TAGS = {
    *("p", "h1", "h2", "h3", "h4", "h5", "h6", "ul", "ol", "li", "blockquote", "pre", "hr"),
    *("table", "thead", "tbody", "tr", "th", "td", "strong", "em", "s", "code", "a", "span"),
    "input",
}

WORDS = ["Wisła", "🙂", " ", "  ", "\n", "\n\n", "a < b", "2 * 3", "x_y_z", "https://a.b/c", "1"]
MARKS = ["**", "*", "`", "~~", "# ", "- ", "1. ", "> ", "- [x] ", "| a | b |\n|--|--|\n", "|"]
MORE = ["```python\n", "```\n", "[", "](http://a.b)", "![", "$", "$$", "<b>", "---\n", "    ", "\t"]
TEXTS = st.lists(st.sampled_from([*WORDS, *MARKS, *MORE]), max_size=20).map("".join)


def leaves(node: dict[str, Any]) -> Iterator[tuple[int, str]]:
    if "text" in node:
        yield node["at"], node["text"]
        return
    assert node["tag"] in TAGS
    assert node.get("href", "http").startswith(("http", "mailto:"))
    for child in node.get("children", ()):
        yield from leaves(child)


def in_units(text: str, at: int, length: int) -> str:
    data = text.encode("utf-16-le")
    return data[2 * at : 2 * (at + length)].decode("utf-16-le", "replace")


def units(text: str) -> int:
    return len(text.encode("utf-16-le")) // 2


@given(TEXTS)
def test_every_piece_stands_where_it_says(text: str) -> None:
    end = 0
    for block in blocks(text):
        assert end <= block["from"] <= block["to"] <= units(text) + 1
        end = block["to"]
        at = block["from"]
        for place, piece in leaves(block["node"]):
            assert at <= place
            at = place
            found = in_units(text, place, units(piece))
            # A line end that code in a line shows as a space, and a tab as spaces.
            if "\n" not in found and "\t" not in text:
                assert found == piece


@given(TEXTS)
def test_an_answer_that_grows_is_parsed_again_from_its_last_block_on(text: str) -> None:
    """Without definitions of links, which change what came before them."""
    whole = blocks(text)
    for last in whole[-1:]:
        rest = blocks(in_units(text, last["from"], units(text)))
        assert [block["node"]["tag"] for block in rest] == [last["node"]["tag"]]


@pytest.mark.parametrize(
    "text",
    [
        "<script>alert(1)</script>",
        "[a](javascript:alert(1))",
        "![a](data:text/html,x)",
        "<img src=x onerror=alert(1)>",
        "[a](vbscript:x) [b](file:///etc/passwd) <javascript:x>",
    ],
)
def test_nothing_can_run(text: str) -> None:
    shown = [piece for block in blocks(text) for piece in leaves(block["node"])]
    assert shown
    assert "href" not in str(blocks(text))


def test_what_is_escaped_has_its_place() -> None:
    (block,) = blocks(r"2 \* 3 &amp; 4")
    assert [*leaves(block["node"])] == [(0, "2 "), (2, "*"), (4, " 3 "), (7, "&"), (12, " 4")]


def test_words_of_code_have_kinds() -> None:
    (block,) = blocks("~~~py\ndef f():\n    pass\n~~~")
    kinds = {
        child["children"][0]["text"]: child["kind"]
        for child in block["node"]["children"]
        if "kind" in child
    }
    assert kinds == {"def": "keyword", "f": "function", "pass": "keyword"}
    (unknown,) = blocks("```wisła\nx\n```")
    assert [*leaves(unknown["node"])] == [(9, "x\n")]
