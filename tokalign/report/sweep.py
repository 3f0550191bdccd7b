"""The page of a sweep: what a dictionary saves by its size, one chart per text."""

from __future__ import annotations

from collections.abc import Sequence

from tokalign.evaluate.sweep import SweepResult, by_line
from tokalign.report.charts import COLOURS, Axis, Series, lines
from tokalign.report.page import Html, details, page, section, table

_HEAD = ("kind", "order", "size", "p_min", "entries", "bytes", "speedup", "rows per step")
_DRAWN = len(COLOURS)
"""How many lines can be told apart; the best are drawn."""


def sweep_page(results: Sequence[SweepResult]) -> str:
    """Make one self-contained HTML document; its figures are those of `tokalign emulate`."""
    texts = sorted({result.text for result in results})
    sections = [_section(text, [one for one in results if one.text == text]) for text in texts]
    return page(
        "What a dictionary's size, order and p_min are worth",
        *sections,
        introduction="Tokens per pass of the target, as if verifying a row cost nothing.",
    )


def _section(text: str, results: Sequence[SweepResult]) -> Html:
    ranked = sorted(by_line(results), key=lambda line: -max(one.speedup for one in line[1]))
    chart = lines(
        [
            Series(name=name, points=[(o.bytes / 1e6, o.speedup) for o in line], style=style)
            for style, (name, line) in enumerate(ranked[:_DRAWN])
        ],
        x=Axis(label="size of the file, MB", logarithmic=True),
        y=Axis(label="tokens per pass"),
        title=f"Tokens per pass by size of the dictionary, {text}",
    )
    best = sorted(results, key=lambda result: -result.speedup)
    note = f"The best {_DRAWN} of {len(ranked)} lines." if len(ranked) > _DRAWN else ""
    return section(text, chart, details("All tables", table(_HEAD, map(_row, best))), note=note)


def _row(result: SweepResult) -> tuple[str, ...]:
    return (
        result.kind,
        str(result.order),
        f"{result.size:,}",
        f"{result.p_min:g}",
        f"{result.entries:,}",
        f"{result.bytes:,}",
        f"{result.speedup:.4f}",
        f"{result.rows_per_step:.2f}",
    )
