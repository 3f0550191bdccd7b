"""A comparison as a Markdown table, and as JSON."""

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


def markdown_rows(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a Markdown table, aligned: the first `TEXT_COLUMNS` are text, others numbers."""
    lines = [head, *rows]
    widths = [max(3, *map(len, column)) for column in zip(*lines, strict=True)]
    dashes = ["-" * width for width in widths]
    rule = [*dashes[:TEXT_COLUMNS], *(f"{dash[1:]}:" for dash in dashes[TEXT_COLUMNS:])]
    padded = [
        [
            cell.ljust(width) if column < TEXT_COLUMNS else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        for row in lines
    ]
    return [f"| {' | '.join(row)} |" for row in [padded[0], rule, *padded[1:]]]


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
