"""A run as tokens to be shown, with where each came from, and its page: one HTML document.

On the page the text is coloured as in the appendix of the DictSpec paper; rejected proposals are
shown too, and what every source contributed. Elements are escaped by construction. The style for
light, dark and print is `page.css`.
"""

from __future__ import annotations

import codecs
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from tokalign.cli.generation import OUTCOMES
from tokalign.runtime.rounds import Outcome, Round
from tokalign.runtime.statistics import ratio
from tokalign.tokenizer.vocabulary import TargetId, Vocabulary, token_bytes


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
        tag("style", Html(Path(__file__).with_name("page.css").read_text("utf-8"))),
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


# -- a run ----------------------------------------------------------------------------------------

_PICTURES = {code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in "\t\n"}
_VISIBLE = str.maketrans(
    _PICTURES | {0x7F: "\u2421"} | {code: f"\\x{code:x}" for code in range(0x80, 0xA0)}
)
"""Control characters, which HTML does not allow, become pictures or escapes."""


class Run(NamedTuple):
    """The rounds of a generation, the target's vocabulary, and `Generation.summary`."""

    rounds: Sequence[Round]
    vocabulary: Vocabulary[TargetId]
    figures: Mapping[str, Any]

    def bytes_of(self, token: int) -> bytes:
        """The bytes of a token; none for a special one."""
        return token_bytes(self.vocabulary.tokens, token)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownToken:
    """One emitted token of the round number `round`, the first being 1.

    text: the characters that its bytes complete, or a special token's spelling. started: its last
    bytes, if they begin a character that a later token completes. note: where it came from.
    """

    text: str
    started: bytes
    special: bool
    outcome: Outcome
    round: int
    note: str


def shown_tokens(run: Run) -> Iterator[ShownToken]:
    """Yield every emitted token once, in order."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    for number, one in enumerate(run.rounds, start=1):
        for index, token in enumerate(one.emitted):
            data = run.bytes_of(token)
            if not data:  # an unfinished character stays unfinished
                decoder.reset()
            text = decoder.decode(data) if data else spelling(run, token)
            waiting = len(decoder.getstate()[0])
            yield ShownToken(
                text=text.translate(_VISIBLE),
                started=data[-waiting:] if waiting else b"",
                special=not data,
                outcome=one.outcome(index),
                round=number,
                note=_note(run, one, index),
            )


def spelling(run: Run, token: int) -> str:
    """A token on its own; bytes that are no character as \\xNN."""
    data = run.bytes_of(token)
    if not data:
        return run.vocabulary.specials.get(TargetId(token)) or f"<id {token}>"
    return data.decode("utf-8", "backslashreplace").translate(_VISIBLE)


def quoted(run: Run, tokens: Iterable[int]) -> str:
    """Write tokens on one line, each in quotation marks, so that spaces show."""
    spelled = (spelling(run, token).replace("\n", "↵").replace("\t", "⇥") for token in tokens)
    return " ".join(f"“{text}”" for text in spelled)


def proposal_in_words(run: Run, one: Round) -> str:
    """Say what a round proposed; in a tree, a vertical bar precedes each further branch."""
    words = []
    for index, (token, parent) in enumerate(zip(one.tree.ids, one.tree.parents, strict=True)):
        words += [*(["|"] if parent != index - 1 else []), quoted(run, [token])]
    return " ".join(words)


def _note(run: Run, one: Round, index: int) -> str:
    match one.outcome(index):
        case Outcome.ACCEPTED:
            return f"accepted, from {_origin(one, one.path[index])}"
        case Outcome.CORRECTED:
            rejected = (
                f"{quoted(run, [one.tree.ids[i]])} from {_origin(one, i)}" for i in one.rejected
            )
            return "instead of " + ", ".join(rejected)
        case Outcome.BONUS:
            return f"bonus, after {one.accepted} accepted"
        case Outcome.UNDRAFTED:
            return "no draft"


def _origin(one: Round, index: int) -> str:
    """Who proposed the id at an index, and with what probability."""
    tree = one.tree
    sure = f" (p = {tree.probabilities[index]:.2f})" if tree.probabilities else ""
    return tree.sources[index] + sure


def run_page(run: Run) -> str:
    """Make one self-contained HTML document. Cost: some microseconds per token."""
    tokens = list(shown_tokens(run))
    about = {name: run.figures.get(name.lower()) for name in ("Method", "translation", "seed")}
    text = tag("div", *map(_token, tokens), class_="text")
    return page(
        "How this text was decoded",
        figures(_figures(run, tokens)),
        section("Text", _legend(tokens), text, note=_HOW_TO_READ),
        section("Sources", _sources(run)),
        details("Every round", _rounds(run)),
        introduction=", ".join(f"{name} {one}" for name, one in about.items() if one is not None),
    )


_HOW_TO_READ = (
    "The target chose every token; colour and underline say whether it had been proposed. Point at "
    "a token, or move to it with Tab, to see who proposed it or what was rejected in its place. A "
    "box holds bytes that begin a character which a later token completes."
)


def _figures(run: Run, tokens: list[ShownToken]) -> dict[str, str]:
    proposed = sum(len(one.tree) for one in run.rounds)
    accepted = sum(one.accepted for one in run.rounds)
    shown = {
        "tokens": f"{len(tokens):,}",
        "rounds": f"{len(run.rounds):,}",
        "tokens per round": f"{ratio(len(tokens), len(run.rounds)):.2f}",
        "of the proposed accepted": f"{ratio(accepted, proposed):.1%}",
    }
    speed = run.figures.get("tokens_per_second")
    if isinstance(speed, float | int) and speed > 0:
        shown["tokens per second"] = f"{speed:.1f}"
    return shown


def _legend(tokens: list[ShownToken]) -> Html:
    counts = Counter(token.outcome for token in tokens)
    items = (
        tag("li", tag("span", name, class_=f"t {outcome}"), f" {counts[outcome]:,}")
        for outcome, name in OUTCOMES.items()
    )
    return tag("ul", *items, class_="legend")


def _token(token: ShownToken) -> Html:
    """A token in the style of its outcome; a line break gets a mark, which carries the style."""
    lines = token.text.split("\n")
    content = [tag("i", lines[0]) if token.special else lines[0]]
    for line in lines[1:]:
        content += [tag("span", "↵", class_="break", aria_hidden="true"), "\n", line]
    if token.started:
        content.append(tag("span", token.started.hex(" ").upper(), class_="bytes"))
    note = f"{token.note} · round {token.round}"
    return tag("span", *content, class_=f"t {token.outcome}", data_note=note, tabindex="0")


def _sources(run: Run) -> Html:
    proposed = Counter(source for one in run.rounds for source in one.tree.sources)
    accepted = Counter(one.tree.sources[index] for one in run.rounds for index in one.path)
    emitted = sum(len(one.emitted) for one in run.rounds)
    rows = [
        (
            source,
            f"{count:,}",
            f"{accepted[source]:,}",
            f"{ratio(accepted[source], count):.1%}",
            f"{ratio(accepted[source], emitted):.1%}",
        )
        for source, count in sorted(proposed.items())
    ]
    return table(("source", "proposed", "accepted", "acceptance", "of the text"), rows)


def _rounds(run: Run) -> Html:
    """The same without colours: the accessible form of the text."""
    head = ("round", "ms", "accepted", "outcome", "source", "emitted", "proposed")
    return table(head, _round_rows(run), text_columns=len(head))


def _round_rows(run: Run) -> Iterator[tuple[str, ...]]:
    for number, one in enumerate(run.rounds, start=1):
        yield (
            str(number),
            f"{one.seconds * 1e3:.1f}",
            str(one.accepted),
            OUTCOMES[one.outcome(len(one.emitted) - 1)],
            ", ".join(dict.fromkeys(one.tree.sources)),
            quoted(run, one.emitted),
            proposal_in_words(run, one),
        )
