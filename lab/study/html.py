"""HTML elements of the page of a study. They are escaped by construction.

The style for light, dark and print is that of the product's own page, `tokalign/cli/page.css`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path

import tokalign.cli

STYLE = Path(tokalign.cli.__file__).with_name("page.css")


class Html(str):
    """Markup; any other string is text, and is escaped when it becomes part of markup."""

    __slots__ = ()


def tag(name: str, /, *content: str, **attributes: str | None) -> Html:
    """Make an element: `tag("p", "a < b", class_="note")` is `<p class="note">a &lt; b</p>`.

    content: `Html` stays as it is, other strings are escaped. attributes: underscores become
    hyphens, and one at the end is dropped; None leaves an attribute out.
    """
    given = {key.removesuffix("_"): value for key, value in attributes.items() if value is not None}
    named = (f' {key.replace("_", "-")}="{escape(value)}"' for key, value in given.items())
    opening = name + "".join(named)
    if name == "meta":
        return Html(f"<{opening}>")
    inner = "".join(c if isinstance(c, Html) else escape(c, quote=False) for c in content)
    return Html(f"<{opening}>{inner}</{name}>")


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, text_columns: int = 1) -> Html:
    """Make a table whose first `text_columns` columns are text and whose others are numbers.

    The table scrolls by itself if the page is narrower.
    """
    kinds = [None if column < text_columns else "n" for column in range(len(head))]
    top = [tag("th", c, scope="col", class_=kind) for c, kind in zip(head, kinds, strict=True)]
    body = [
        tag("tr", *(tag("td", c, class_=kind) for c, kind in zip(row, kinds, strict=True)))
        for row in rows
    ]
    content = tag("table", tag("thead", tag("tr", *top)), tag("tbody", *body))
    return tag("div", content, class_="scroll", tabindex="0", role="region", aria_label=head[0])


def page(title: str, *content: str, introduction: str = "") -> str:
    """Make a document that needs no scripts, fonts, images or network.

    content: sections. introduction: a sentence under the title.
    """
    head = [
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
        tag("style", Html(STYLE.read_text("utf-8"))),
    ]
    opening = tag("header", tag("h1", title), tag("p", introduction) if introduction else "")
    body = tag("body", tag("main", opening, *content))
    made = f"<!DOCTYPE html>\n{tag('html', tag('head', *head), body, lang='en')}\n"
    return made.encode("utf-8", "replace").decode()  # of half a character a question mark is left


def section(title: str, *content: str, note: str = "") -> Html:
    """Make a part of a page with its own heading. note: how to read it."""
    return tag("section", tag("h2", title), tag("p", note, class_="note") if note else "", *content)


def figures(named: Mapping[str, str]) -> Html:
    """Make a row of figures, each with its name under it."""
    items = (tag("div", tag("dt", name), tag("dd", value)) for name, value in named.items())
    return tag("dl", *items, class_="figures")


def details(summary: str, *content: str) -> Html:
    """Make a part that stays folded until it is opened."""
    return tag("details", tag("summary", summary), *content)
