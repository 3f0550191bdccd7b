"""The page of a sweep: saving by size, a chart for each text."""

from __future__ import annotations

from collections.abc import Sequence

from tokalign.evaluate.sweep import Outcome, by_line
from tokalign.report.axes import Axis
from tokalign.report.html import Html, table
from tokalign.report.page import details, page, section
from tokalign.report.plots import Series, lines

_HEAD = ("kind", "order", "size", "p_min", "entries", "bytes", "speedup", "rows per step")
_DRAWN = 8
"""Lines that can be told apart; the best are drawn."""


def sweep_page(outcomes: Sequence[Outcome]) -> str:
    """One self-contained HTML document; every figure is one of `tokalign emulate`."""
    texts = sorted({outcome.text for outcome in outcomes})
    sections = [_section(text, [o for o in outcomes if o.text == text]) for text in texts]
    return page(
        "What a dictionary's size, order and p_min are worth",
        *sections,
        introduction="Tokens per pass of the target, as if verifying a row cost nothing.",
    )


def _section(text: str, outcomes: Sequence[Outcome]) -> Html:
    ranked = sorted(by_line(outcomes), key=lambda line: -max(o.speedup for o in line[1]))
    chart = lines(
        [
            Series(name=name, points=[(o.bytes / 1e6, o.speedup) for o in line])
            for name, line in ranked[:_DRAWN]
        ],
        x=Axis(label="size of the file, MB", logarithmic=True),
        y=Axis(label="tokens per pass"),
        title=f"Tokens per pass by size of the dictionary, {text}",
    )
    best = sorted(outcomes, key=lambda outcome: -outcome.speedup)
    note = f"The best {_DRAWN} of {len(ranked)} lines." if len(ranked) > _DRAWN else ""
    return section(text, chart, details("All tables", table(_HEAD, map(_row, best))), note=note)


def _row(outcome: Outcome) -> tuple[str, ...]:
    return (
        outcome.kind,
        str(outcome.order),
        f"{outcome.size:,}",
        f"{outcome.p_min:g}",
        f"{outcome.entries:,}",
        f"{outcome.bytes:,}",
        f"{outcome.speedup:.4f}",
        f"{outcome.rows_per_step:.2f}",
    )
