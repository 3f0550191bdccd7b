"""A comparison as text: aligned columns, Markdown or JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from math import isfinite
from typing import Any

from tokalign.evaluate.comparison import Comparison, Row
from tokalign.evaluate.measurements import PLAIN

HEAD = (
    "condition", "k", "acceptance", "tokens/round", "passes/round", "host ms", "tokens/s",
    "speed-up (quartiles)", "than plain", "ids that differ",
)  # fmt: skip
"""The columns that `cells` fills; `docs/metrics.md` says what they mean."""

TEXT_COLUMNS = 2


def cells(row: Row) -> tuple[str, ...]:
    """One condition as text, one cell per column of `HEAD`; an en dash if there is no figure."""
    drafts, timed = row.condition.drafts, row.timed
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
    del values["timed"]
    return {**values.pop("condition"), **{name: _finite(v) for name, v in values.items()}}


def _finite(value: Any) -> Any:
    """Round floats to six places; infinite ones become None."""
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, float):
        return round(value, 6) if isfinite(value) else None
    return value
