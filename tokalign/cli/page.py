"""One self-contained HTML document: elements, escaped by construction, its parts, and its style for
light, dark and print."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape


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
    return Html(f"<{opening}>{join(content)}</{name}>")


def join(content: Iterable[str]) -> Html:
    """Join pieces; those that are text are escaped."""
    return Html("".join(c if isinstance(c, Html) else escape(c, quote=False) for c in content))


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
        tag("style", Html(STYLE)),
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
    return tag("details", tag("summary", summary), join(content))


# Colours after Okabe and Ito, which the colour-blind can tell apart; lighter on a dark ground.
STYLE = """
:root { color-scheme: light dark;
  --paper: #fff; --ink: #1c2128; --quiet: #5d6673; --rule: #d9dee5;
  --bar: #0b6bb0;
  --accepted: #cdeed6; --accepted-rule: #14803c; --corrected: #fdf0e3; --corrected-rule: #b54708;
  --bonus: #d7e8fb; --bonus-rule: #175cd3; }
@media (prefers-color-scheme: dark) { :root {
  --paper: #14181d; --ink: #e6e9ee; --quiet: #9aa5b3; --rule: #343b45;
  --bar: #63b3ed;
  --accepted: #12402a; --accepted-rule: #4ade80; --corrected: #35251a; --corrected-rule: #fb923c;
  --bonus: #173459; --bonus-rule: #79b8ff; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; }
main { max-width: 68rem; margin: 0 auto; padding: 2.5rem 1.25rem 4rem; }
h1 { font-size: 1.7rem; line-height: 1.25; margin: 0 0 .35rem; letter-spacing: -.01em; }
h2 { font-size: 1.15rem; margin: 2.75rem 0 .35rem; }
p { margin: 0 0 .75rem; max-width: 46rem; }
header p, .note { color: var(--quiet); }
.note { font-size: .92rem; }
.figures { display: flex; flex-wrap: wrap; gap: .75rem 2.5rem; margin: 1.5rem 0 0; }
.figures div { display: flex; flex-direction: column-reverse; }
.figures dt { color: var(--quiet); font-size: .85rem; }
.figures dd { margin: 0; font-size: 1.5rem; font-weight: 600; line-height: 1.25;
  font-variant-numeric: tabular-nums; }
.scroll { overflow-x: auto; margin: .75rem 0 1rem; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .9rem .3rem 0; text-align: left; vertical-align: top;
  border-bottom: 1px solid var(--rule); white-space: nowrap; }
th { font-weight: 600; color: var(--quiet); white-space: normal; vertical-align: bottom; }
th.n, td.n { text-align: right; }
.bar { height: .8rem; margin-top: .35rem; border-radius: 2px; background: var(--bar); }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: .35rem 1.5rem; margin: 1rem 0;
  padding: 0; font-size: .9rem; }
.text { white-space: pre-wrap; overflow-wrap: anywhere; font-size: 1.06rem; line-height: 2;
  max-width: 46rem; padding: .75rem 0; border: solid var(--rule); border-width: 1px 0; }
.t { position: relative; padding: .1em 0; unicode-bidi: isolate; border-radius: 2px; }
.t.accepted { background: var(--accepted); }
.t.corrected { background: var(--corrected); border-bottom: 2px dashed var(--corrected-rule); }
.t.bonus { background: var(--bonus); border-bottom: 3px double var(--bonus-rule); }
.t .break, .t i { color: var(--quiet); font-size: .8em; }
.t .bytes { font: .62em ui-monospace, SFMono-Regular, Menlo, Consolas, monospace;
  border: 1px solid var(--quiet); border-radius: 3px; padding: 0 .25em; margin: 0 .1em; }
.t[data-note]:is(:hover, :focus) { outline: 1.5px solid var(--ink); }
.t[data-note]:is(:hover, :focus)::after { content: attr(data-note); position: absolute;
  z-index: 1; left: 0; top: 1.75em; width: max-content; max-width: 22rem; padding: .3rem .6rem;
  border-radius: 4px; background: var(--ink); color: var(--paper); font-size: .82rem;
  line-height: 1.4; white-space: normal; pointer-events: none; }
@media (max-width: 60rem) { .t[data-note]:is(:hover, :focus)::after { position: fixed;
  left: 1rem; right: 1rem; top: auto; bottom: 1rem; width: auto; max-width: none; } }
details { margin-top: 2rem; }
details + details { margin-top: .75rem; }
details td:last-child:not(.n) { white-space: normal; min-width: 18rem; }
summary { cursor: pointer; font-weight: 600; }
@media (max-width: 40rem) { td:first-child, th:first-child { position: sticky; left: 0;
  background: var(--paper); white-space: normal; min-width: 7rem; max-width: 9rem; } }
@media print { main { padding: 0; max-width: none; } .scroll { overflow: visible; } }
"""
