"""The page of one run: its text token by token, and what every source contributed.

The text is coloured as in the appendix of the DictSpec paper; rejected proposals are shown too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from tokalign.report.page import Html, bar, details, figures, page, section, table, tag
from tokalign.report.tokens import (
    OUTCOMES,
    Run,
    ShownToken,
    proposal_in_words,
    quoted,
    shown_tokens,
)
from tokalign.runtime.rounds import Outcome
from tokalign.runtime.statistics import ratio


def run_page(run: Run) -> str:
    """Make one self-contained HTML document. Cost: some microseconds per token."""
    tokens = list(shown_tokens(run))
    text = tag("div", *map(_token, tokens), class_="text")
    return page(
        "How this text was decoded",
        figures(_figures(run, tokens)),
        section("Text", _legend(tokens), text, note=_HOW_TO_READ),
        section("Sources", _sources(run), _own(tokens)),
        section("Accepted tokens per proposal", _histogram(run)),
        details("Every round", _rounds(run)),
        introduction=_introduction(run.figures),
    )


_HOW_TO_READ = (
    "The target chose every token; colour and underline say whether it had been proposed. Point at "
    "a token, or move to it with Tab, to see who proposed it or what was rejected in its place. A "
    "box holds bytes that begin a character which a later token completes."
)


def _introduction(known: Mapping[str, object]) -> str:
    shown = {name: known.get(name.lower()) for name in ("Method", "translation", "seed")}
    return ", ".join(f"{name} {value}" for name, value in shown.items() if value is not None)


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


def _own(tokens: list[ShownToken]) -> Html:
    """Tokens that the target wrote itself, by reason."""
    counts = Counter(token.outcome for token in tokens)
    rows = [
        (name, f"{counts[outcome]:,}", f"{ratio(counts[outcome], len(tokens)):.1%}")
        for outcome, name in OUTCOMES.items()
        if outcome is not Outcome.ACCEPTED
    ]
    return table(("the target's own", "tokens", "of the text"), rows)


def _histogram(run: Run) -> Html:
    found = Counter(one.accepted for one in run.rounds if one.tree)
    longest = max(found.values(), default=1)
    rows = (
        (str(n), bar(found[n] / longest), f"{found[n]:,}")
        for n in range(max(found, default=-1) + 1)
    )
    return table(("tokens accepted of a proposal", "", "rounds"), rows, text_columns=2)


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
