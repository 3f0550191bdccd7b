"""The page of `tokalign bench`: what was measured, in bars and tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tokalign.cost.curve import CostCurve
from tokalign.evaluate.comparison import ENOUGH_PROMPTS, Comparison, Row
from tokalign.report.page import Html, bar, details, figures, page, section, table
from tokalign.report.tables import HEAD, TEXT_COLUMNS, cells


def bench_page(
    comparison: Comparison, about: Mapping[str, object], *, curve: CostCurve | None = None
) -> str:
    """Make one self-contained HTML document. curve: of this machine, if it is known."""
    rows = comparison.overall
    settings = [(name.replace("_", " "), str(value)) for name, value in about.items()]
    return page(
        "Speculative decoding, measured",
        figures(_figures(comparison)),
        section("Speed-up", _speedups(rows), note=_SPEEDUP),
        section("Tokens per round", _tokens_per_round(rows), note=_TOKENS),
        *([section("What a pass costs", _passes(curve), note=curve.source)] if curve else []),
        section("All prompts", _table(rows), note=_TABLE),
        *(details(f"Only {name}", _table(rows)) for name, rows in comparison.sets.items()),
        details("Settings", table(("setting", "value"), settings, text_columns=2)),
        introduction=_verdict(rows),
    )


_SPEEDUP = (
    "Tokens per second relative to plain decoding of the same prompt in the same run: the median "
    "over prompts, and the quartiles. A condition counts as faster only if its quartiles lie "
    "beyond those of the control, plain decoding measured a second time."
)
_TOKENS = "Tokens that one pass of the target yields. They do not depend on the machine."
_TABLE = (
    "Acceptance: share of the proposed tokens that were accepted. Host ms: time of a round outside "
    "model passes, the median."
)


def _verdict(rows: Sequence[Row]) -> str:
    """Name the fastest condition that clears the control, if there is one."""
    drafted = [row for row in rows if row.condition.drafts and row.points]
    if not drafted:
        return "Nothing was drafted for long enough to be timed."
    faster = [row for row in drafted if row.against_plain == "faster"]
    if faster:
        best = max(faster, key=lambda row: row.speedup)
        return f"Here {best.condition} is fastest: {best.speedup:.2f} times plain decoding."
    if any(row.against_plain for row in drafted):
        return "Here nothing is faster than plain decoding by more than the noise of this machine."
    return (
        f"Whether anything is faster than plain decoding is not known: that takes {ENOUGH_PROMPTS} "
        "timed prompts, and plain decoding measured twice."
    )


def _figures(comparison: Comparison) -> dict[str, str]:
    rows = comparison.overall
    drafted = [row for row in rows if row.condition.drafts]
    return {
        "prompts": str(max((row.prompts for row in rows), default=0)),
        "conditions with drafting": str(len(drafted)),
        "faster than plain": str(sum(row.against_plain == "faster" for row in drafted)),
        "most tokens per round": f"{max((r.tokens_per_round for r in drafted), default=0):.2f}",
        "ids that differ from plain decoding": str(comparison.ids_that_differ),
    }


def _speedups(rows: Sequence[Row]) -> Html:
    timed = [row for row in rows if row.points]
    longest = max((row.speedup for row in timed), default=1.0)
    shown = (
        (
            str(row.condition),
            bar(row.speedup / longest),
            f"{row.speedup:.2f}",
            f"{row.low:.2f}–{row.high:.2f}",
            row.against_plain or "–",
        )
        for row in timed
    )
    head = ("condition", "", "speed-up", "quartiles", "than plain")
    return table(head, shown, text_columns=2)


def _tokens_per_round(rows: Sequence[Row]) -> Html:
    longest = max((row.tokens_per_round for row in rows), default=1.0)
    shown = (
        (str(row.condition), bar(row.tokens_per_round / longest), f"{row.tokens_per_round:.2f}")
        for row in rows
    )
    return table(("condition", "", "tokens per round"), shown, text_columns=2)


def _passes(curve: CostCurve) -> Html:
    """The time of a pass by its rows, in passes over one row, after every context measured."""
    times = {costs.tokens: curve.rows_at(costs.tokens) for costs in curve.contexts}
    most = max(map(len, times.values()))
    head = ("rows of a pass", *(f"after {tokens:,} ids" for tokens in times))
    rows = (
        (
            str(number + 1),
            *(f"{of[number] / of[0]:.2f}" if number < len(of) else "–" for of in times.values()),
        )
        for number in range(most)
    )
    return table(head, rows, text_columns=0)


def _table(rows: Sequence[Row]) -> Html:
    return table(HEAD, map(cells, rows), text_columns=TEXT_COLUMNS)
