"""A comparison as text (aligned columns, Markdown, CSV, JSON), and the page of `tokalign bench`."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from math import isfinite
from typing import Any

from tokalign.cost.curve import CostCurve
from tokalign.evaluate.comparison import ENOUGH_PROMPTS, Comparison, Row
from tokalign.evaluate.measurements import PLAIN
from tokalign.report.page import Html, bar, details, figures, page, section, table

HEAD = (
    "condition", "k", "acceptance", "tokens/round", "passes/round", "host ms", "tokens/s",
    "speed-up (quartiles)", "than plain", "ids that differ",
)  # fmt: skip
"""The columns that `cells` fills; `docs/metrics.md` says what they mean."""

TEXT_COLUMNS = 2


def cells(row: Row) -> tuple[str, ...]:
    """One condition as text, one cell per column of `HEAD`; an en dash if there is no figure."""
    drafts, timed = row.condition.drafts, bool(row.points)
    compared = timed and row.condition.name != PLAIN
    return (
        row.condition.name,
        "" if row.condition.k is None else str(row.condition.k),
        f"{row.acceptance:.3f}" if drafts else "–",
        f"{row.tokens_per_round:.3f}",
        f"{row.draft_passes_per_round:.2f}",
        f"{row.host_ms:.2f}",
        f"{row.tokens_per_second:.1f}" if timed else "–",
        f"{row.speedup:.2f} ({row.low:.2f}–{row.high:.2f})" if compared else "–",
        row.against_plain or "–",
        str(row.ids_that_differ),
    )


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Align columns for a terminal; the first `TEXT_COLUMNS` are text, the others numbers."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "".join(
        "  ".join(
            cell.ljust(width) if column < TEXT_COLUMNS else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        + "\n"
        for row in rows
    )


def markdown(comparison: Comparison, about: Mapping[str, Any]) -> str:
    """List the settings, then a table over all prompts and one per set."""
    parts = ["".join(f"* {name}: {value}\n" for name, value in about.items())]
    for name, rows in {"all": comparison.overall, **comparison.sets}.items():
        parts.append(f"\n## {name}: {rows[0].prompts if rows else 0} prompts\n\n")
        parts.append(_markdown_table(rows))
    return "".join(parts)


def _markdown_table(rows: Sequence[Row]) -> str:
    return "".join(line + "\n" for line in markdown_rows(HEAD, map(cells, rows)))


def markdown_rows(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a Markdown table; the first `TEXT_COLUMNS` are text, the others numbers."""
    rule = ["---"] * TEXT_COLUMNS + ["--:"] * (len(head) - TEXT_COLUMNS)
    return [f"| {' | '.join(row)} |" for row in [head, rule, *rows]]


def comma_separated(comparison: Comparison) -> str:
    """Write a line per prompt and condition, for programs that plot."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("set", "prompt", "condition", "k", "acceptance", "speedup"))
    for row in comparison.overall:
        for point in row.points:
            what = (point.prompt_set, point.number, row.condition.name, row.condition.k)
            writer.writerow((*what, round(point.acceptance, 4), round(point.speedup, 4)))
    return text.getvalue()


def as_object(comparison: Comparison, about: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings and every figure of every row, ready for JSON: no infinite numbers."""
    return {
        "about": dict(about),
        "ids_that_differ": comparison.ids_that_differ,
        "overall": [_row(row) for row in comparison.overall],
        "sets": {name: [_row(row) for row in rows] for name, rows in comparison.sets.items()},
    }


def _row(row: Row) -> dict[str, Any]:
    values = asdict(row)
    del values["points"]
    return {**values.pop("condition"), **{name: _finite(v) for name, v in values.items()}}


def _finite(value: Any) -> Any:
    """Round floats to six places; infinite ones become None."""
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, float):
        return round(value, 6) if isfinite(value) else None
    return value


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
