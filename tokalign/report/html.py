"""Elements of HTML, escaped by construction."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape


class Html(str):
    """Markup; any other string is text, and is escaped when it becomes part of markup."""

    __slots__ = ()


def tag(name: str, /, *content: str, **attributes: str | float | bool | None) -> Html:
    """Make an element: `tag("p", "a < b", class_="note")` is `<p class="note">a &lt; b</p>`.

    content: `Html` stays as it is, other strings are escaped. attributes: underscores become
    hyphens, and one at the end is dropped; None and False leave an attribute out, True gives it no
    value, and numbers are rounded to two places.
    """
    opening = name + "".join(_attribute(key, value) for key, value in attributes.items())
    if name == "meta":
        return Html(f"<{opening}>")
    return Html(f"<{opening}>{join(content)}</{name}>")


def join(content: Iterable[str]) -> Html:
    """Join pieces; those that are text are escaped."""
    return Html("".join(c if isinstance(c, Html) else escape(c, quote=False) for c in content))


def table(
    head: Sequence[str], rows: Iterable[Sequence[str]], *, text_columns: int = 1, caption: str = ""
) -> Html:
    """Make a table whose first `text_columns` columns are text and whose others are numbers.

    The table scrolls by itself if the page is narrower.
    """
    kinds = [None if column < text_columns else "n" for column in range(len(head))]
    top = [
        tag("th", cell, scope="col", class_=kind) for cell, kind in zip(head, kinds, strict=True)
    ]
    body = [
        tag("tr", *(tag("td", cell, class_=kind) for cell, kind in zip(row, kinds, strict=True)))
        for row in rows
    ]
    content = tag("thead", tag("tr", *top)), tag("tbody", *body)
    title = [tag("caption", caption)] if caption else []
    return tag(
        "div",
        tag("table", *title, *content),
        class_="scroll",
        tabindex="0",
        role="region",
        aria_label=caption or head[0],
    )


def _attribute(key: str, value: str | float | bool | None) -> str:
    if value is None or value is False:
        return ""
    name = key.removesuffix("_").replace("_", "-")
    if value is True:
        return f" {name}"
    text = value if isinstance(value, str) else f"{value:.2f}".rstrip("0").rstrip(".")
    return f' {name}="{escape(text)}"'
