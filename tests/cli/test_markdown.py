"""Markdown and line breaks on a terminal, as they stream."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from polish import texts
from rich.cells import cell_len

from tokalign.cli.markdown import Markdown

BOLD, CODE, END = "\x1b[1m", "\x1b[36m", "\x1b[0m"


def rendered(*pieces: str, width: int = 40) -> str:
    """What a terminal gets. A style may end and begin again between two words."""
    markdown = Markdown(lambda: width)
    shown = "".join([*map(markdown.push, pieces), markdown.finish()])
    for style in (BOLD, CODE):
        shown = shown.replace(END + style, "")
    return shown


def without_styles(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("**Wisła** is **long**.", f"{BOLD}Wisła{END} is {BOLD}long{END}."),
        ("**bold and more**", f"{BOLD}bold{END} {BOLD}and{END} {BOLD}more{END}"),
        ("# Rzeki\nText", f"{BOLD}Rzeki{END}\nText"),
        ("### A `b`\n", f"{BOLD}A{END} {CODE}b{END}\n"),
        ("- one\n* two\n  + three\n10. four\n", "• one\n• two\n  • three\n10. four\n"),
        ("- 1. **x**", f"• 1. {BOLD}x{END}"),
        ("`a*b*` and ``x`y``", f"{CODE}a*b*{END} and {CODE}x`y{END}"),
        ("```\na = 2**3\n\n  *b*\n```\nok", f"{CODE}a = 2**3{END}\n\n{CODE}  *b*{END}\nok"),
        ("~~~\n```\n~~~\n", f"{CODE}```{END}\n"),
        # what is no mark stays as it is
        ("2 * 3 * 4, 2**3, a*b*c, *i*, a ** b", "2 * 3 * 4, 2**3, a*b*c, *i*, a ** b"),
        ("#hashtag\n-5\n1.5\n> quote\n---\n**", "#hashtag\n-5\n1.5\n> quote\n---\n**"),
        ("**open\nnext", f"{BOLD}open{END}\nnext"),
        ("这是**重点**内容", f"这是{BOLD}重点{END}内容"),
        ("```\nunclosed", f"{CODE}unclosed{END}"),
    ],
)  # fmt: skip
def test_what_a_mark_becomes(text: str, shown: str) -> None:
    assert rendered(text) == shown
    assert rendered(*text) == shown, "one character at a time"


MARKS = [*"*`#-~ \n\n", "**", "```", "\n- ", "1. "]
PIECES = st.lists(st.sampled_from([*MARKS, "żółw", "a", "語", "👩‍💻"]), max_size=40)


@given(PIECES, st.integers(1, 60))
def test_how_the_stream_is_cut_changes_nothing(pieces: list[str], width: int) -> None:
    text = "".join(pieces)
    assert (
        rendered(*pieces, width=width)
        == rendered(text, width=width)
        == rendered(*text, width=width)
    )


@given(PIECES, st.integers(1, 60))
def test_no_letter_is_lost(pieces: list[str], width: int) -> None:
    """Only the language of a block of code, which stands beside its fence, is not shown."""
    text = re.sub("([`~]){2,}", r"\1", "".join(pieces))
    shown = without_styles(rendered(text, width=width))
    assert [c for c in shown if c.isalnum()] == [c for c in text if c.isalnum()]


@given(texts, st.integers(20, 60))
def test_lines_fit(text: str, width: int) -> None:
    shown = without_styles(rendered(text, width=width))
    words = {word for line in text.split("\n") for word in line.split(" ")}
    longest = max((cell_len(word) for word in words), default=0)
    if longest <= width and text.isprintable() and text.isascii():
        assert all(cell_len(line) <= width for line in shown.split("\n"))


def test_words_stay_whole_and_the_first_that_does_not_fit_begins_a_line() -> None:
    text = "Zażółć gęślą jaźń, a potem idź do domu i śpij spokojnie aż do samego rana."
    lines = rendered(text, width=24).split("\n")
    assert " ".join(lines) == text
    for line, following in pairwise(lines):
        assert cell_len(line) <= 24 < cell_len(f"{line} {following.split()[0]}")


def test_wide_characters_break_anywhere_and_count_twice() -> None:
    lines = rendered("語" * 30, width=24).split("\n")
    assert [cell_len(line) for line in lines] == [24, 24, 12]


def test_a_list_item_goes_on_under_its_text_and_code_is_not_broken() -> None:
    assert rendered("- " + "word " * 8, width=24) == (
        "• word word word word\n  word word word word"
    )
    after_code = rendered("1. ```\n   x\n   ```\n" + "word " * 8, width=24)
    assert without_styles(after_code) == "1. \n   x\nword word word word word\nword word word"
    code = "x = " + "1 + " * 20 + "1"
    assert without_styles(rendered(f"```\n{code}\n```\n", width=24)) == code + "\n"


def test_words_of_code_are_set_apart_and_none_is_lost() -> None:
    code = 'def f(x):\n    """Two\n    lines"""\n\n    return 1  # Wisła\n'
    shown = rendered(f"```python\n{code}```\nok")
    assert without_styles(shown) == code + "ok"
    styles = [re.match(r"(\x1b\[[0-9;]*m)*", line)[0] for line in shown.split("\n")]  # type: ignore[index]
    assert styles[0] not in ("", CODE)
    assert styles[1] == ""  # an indent, then a text that goes on in the next line
    assert "\x1b[" in shown.split("\n")[2]


TABLE = "| river | km |\n|:--|--:|\n| **Wisła** | 1047 |\n| Odra | 854 |\n"


def test_a_table_is_drawn_when_it_ends() -> None:
    markdown = Markdown(lambda: 40)
    assert markdown.push(f"Rivers:\n\n{TABLE}") == "Rivers:\n\n"
    shown = without_styles(markdown.push("\nThat is all.") + markdown.finish())
    lines = [line.split() for line in shown.split("\n") if any(map(str.isalnum, line))]
    assert lines == [["river", "km"], ["Wisła", "1047"], ["Odra", "854"], ["That", "is", "all."]]
    assert "|" not in shown
    assert without_styles(rendered(TABLE)) == without_styles(rendered(*TABLE))


def test_a_window_may_be_resized() -> None:
    width = 40
    markdown = Markdown(lambda: width)
    text = "aaaa bbbb cccc dddd eeee ffff "
    shown = markdown.push(text)
    width = 20
    lines = (shown + markdown.push(text * 2) + markdown.finish()).split("\n")
    assert max(map(len, lines[1:])) <= 20
    assert " ".join(lines).split() == (text * 3).split()
