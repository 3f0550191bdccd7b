"""Markdown on a terminal, as it streams."""

from __future__ import annotations

import re
from os import terminal_size

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from tokalign.cli.markdown import Markdown

PART = re.compile(r"\x1b\[\d*A|\x1b\[J|\x1b\[[\d;]*m|.|\n|\r")


class Screen:
    """What a terminal of unlimited height shows; styles are left out."""

    def __init__(self, width: int) -> None:
        self.width, self.lines, self.row = width, [""], 0

    def write(self, text: str) -> None:
        for part in PART.findall(text):
            if part == "\x1b[J":
                self.lines[self.row :] = [""]
            elif part.endswith("A") and len(part) > 1:
                self.row -= int(part[2:-1])
            elif part == "\n":
                self._go_down()
            elif part != "\r" and part[0] != "\x1b":
                if cell_len(self.lines[self.row] + part) > self.width:
                    self._go_down()
                self.lines[self.row] += part

    def _go_down(self) -> None:
        self.row += 1
        self.lines[self.row :] = self.lines[self.row :] or [""]


def shown(*pieces: str, width: int = 40, height: int = 1000) -> list[str]:
    markdown, screen = Markdown(lambda: terminal_size((width, height))), Screen(width)
    for piece in pieces:
        screen.write(markdown.push(piece))
    screen.write(markdown.finish())
    return [line.rstrip() for line in screen.lines]


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("**Wisła** is **long**.", ["Wisła is long."]),
        ("- one\n* two\n", [" • one", "", " • two"]),
        ("### A `b`\ntext", ["A b", "", "text"]),
        ("one\ntwo  \nthree", ["one", "two", "three"]),
        ("```python\ndef f():\n\n    x\n```\nok", [" def f():", "", "     x", "", "ok"]),
        ("| a | b |\n|--|--|\n| 1 | 2 |\n", [" a  b", " ────", " 1  2"]),
        # what is no mark stays as it is
        ("2 * 3, 2**3, \\(x\\) &amp; <b>", ["2 * 3, 2**3, \\(x\\) &amp; <b>"]),
        ("#hashtag\n-5\n1.5\n**", ["#hashtag", "-5", "1.5", "**"]),
        ("这是**重点**内容", ["这是重点内容"]),
    ],
)
def test_what_marks_become(text: str, lines: list[str]) -> None:
    assert shown(text) == lines
    assert shown(*text) == lines, "one character at a time"


def test_wide_letters_that_leave_a_cell_free_are_drawn_once() -> None:
    assert shown(*("語" * 9), "\n\nab", width=9) == ["語語語語", "語語語語", "語", "", "ab"]


MARKS = [*"*`#-~ \n\n", "**", "```", "\n- ", "1. ", "\n> "]
PIECES = st.lists(st.sampled_from([*MARKS, "żółw", "a", "語"]), max_size=40)


@given(PIECES, st.integers(8, 60))
def test_how_the_stream_is_cut_changes_nothing(pieces: list[str], width: int) -> None:
    assert shown(*pieces, width=width) == shown("".join(pieces), width=width)


@given(PIECES, st.integers(8, 60), st.integers(1, 6))
def test_no_letter_is_lost(pieces: list[str], width: int, height: int) -> None:
    """On a low terminal blocks stay as they came, with their marks. Only the language of a block of
    code, which stands beside its fence, is not shown."""
    text = re.sub("([`~]){2,}", r"\1", "".join(pieces))
    for rows in (height, 1000):
        lines = shown(*text, width=width, height=rows)
        assert [c for c in "".join(lines) if c.isalpha()] == [c for c in text if c.isalpha()]


def test_words_are_written_as_they_come_and_styled_when_their_block_has_ended() -> None:
    markdown = Markdown(lambda: terminal_size((40, 24)))
    assert markdown.push("**Wisła") == "**Wisła"
    assert markdown.push("**\n") == "**\n"
    assert markdown.push("\n- ") == "\n- "  # may still become a rule
    assert markdown.push("a\n") == "\x1b[2A\r\x1b[J\x1b[1mWisła\x1b[0m\n\n- a\n"


def test_what_is_higher_than_the_terminal_or_from_before_it_changed_stays_as_it_came() -> None:
    assert shown(*"**a**\n**b**\n**c**\n\nd", height=3) == ["**a**", "**b**", "**c**", "", "d"]
    sizes = iter([(40, 24), (20, 24)])
    markdown = Markdown(lambda: terminal_size(next(sizes)))
    assert markdown.push("**a**\n\nb\n") == "**a**\n\nb\n"


@pytest.mark.parametrize("height", [0, 24])
def test_a_terminal_that_does_not_tell_its_size_gets_the_text_as_it_came(height: int) -> None:
    markdown = Markdown(lambda: terminal_size((0, height)))
    assert [markdown.push("**a**\n\nb"), markdown.finish()] == ["**a**\n\nb", ""]
