"""The page of `tokalign bench`: what was measured, in charts and tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tokalign.cost.curve import CostCurve
from tokalign.evaluate.comparison import Comparison, Row
from tokalign.evaluate.measurements import PLAIN
from tokalign.report.axes import Axis, percent
from tokalign.report.bars import Bar, bars
from tokalign.report.html import Html, join, table
from tokalign.report.page import details, figures, grid, page, section
from tokalign.report.plots import Line, Series, key, scatter, staircase
from tokalign.report.tables import HEAD, TEXT_COLUMNS, cells


def bench_page(
    comparison: Comparison, about: Mapping[str, object], *, curve: CostCurve | None = None
) -> str:
    """One self-contained HTML document. curve: of this machine, where it is known."""
    rows = comparison.overall
    return page(
        "Speculative decoding, measured",
        figures(_figures(comparison)),
        section("Speed-up", _speedups(rows), note=_SPEEDUP),
        section("Tokens per round", _tokens_per_round(rows), note=_TOKENS),
        section("What acceptance is worth", _scatters(rows), note=_SCATTER),
        *([section("What a pass costs", _staircase(curve), note=curve.source)] if curve else []),
        section("All prompts", _table(rows), note=_TABLE),
        *(details(f"Only {name}", _table(rows)) for name, rows in comparison.sets.items()),
        details("Settings", table(("setting", "value"), _settings(about), text_columns=2)),
        introduction=_verdict(rows),
    )


_SPEEDUP = (
    "Tokens per second against plain decoding of the same prompt in the same run: the median over "
    "prompts, and the quartiles as a line."
)
_TOKENS = "What a round of the target gives. It does not depend on the machine."
_SCATTER = (
    "A mark is a prompt. Where the fitted line crosses 1, drafting begins to pay: the break-even "
    "acceptance of that condition on this machine."
)
_TABLE = (
    "Acceptance: accepted of the proposed tokens. Host ms: of a round outside model passes, the "
    "median. Break-even: by ordinary least squares, its interval by the delta method."
)


def _verdict(rows: Sequence[Row]) -> str:
    timed = [row for row in rows if row.points and row.condition.name != PLAIN]
    if not timed:
        return "Nothing was drafted for long enough to be timed."
    best = max(timed, key=lambda row: row.speedup)
    if best.low <= 1:  # a quarter of the prompts or more is not faster
        return (
            "Here nothing is clearly faster than plain decoding; the best median is "
            f"{best.speedup:.2f}, of {best.condition}."
        )
    return f"Here {best.condition} is fastest: {best.speedup:.2f} times plain decoding."


def _figures(comparison: Comparison) -> dict[str, str]:
    rows = comparison.overall
    drafted = [row for row in rows if row.condition.name != PLAIN]
    return {
        "prompts": str(max((row.prompts for row in rows), default=0)),
        "conditions": str(len(drafted)),
        "best speed-up": f"{max((row.speedup for row in drafted), default=0):.2f}×",
        "most tokens per round": f"{max((r.tokens_per_round for r in drafted), default=0):.2f}",
        "ids that differ from plain decoding": str(comparison.ids_that_differ),
    }


def _grouped(rows: Sequence[Row]) -> tuple[dict[str, dict[str, Row]], list[str]]:
    """Rows with drafting by name and k; all k."""
    drafted = [row for row in rows if row.condition.name != PLAIN]
    groups: dict[str, dict[str, Row]] = {}
    for row in drafted:
        groups.setdefault(row.condition.name, {})[f"k = {row.condition.k}"] = row
    return groups, list(dict.fromkeys(f"k = {row.condition.k}" for row in drafted))


def _speedups(rows: Sequence[Row]) -> Html:
    groups, lengths = _grouped(rows)
    return bars(
        {
            name: [
                Bar(row.speedup, row.low, row.high) if (row := by_k.get(k)) and row.points else None
                for k in lengths
            ]
            for name, by_k in groups.items()
        },
        lengths,
        x=Axis(label="speed-up (×)", form="{:.2f}".format),
        title="Median speed-up of every condition",
        level=(1, "plain decoding"),
    )


def _tokens_per_round(rows: Sequence[Row]) -> Html:
    groups, lengths = _grouped(rows)
    return bars(
        {
            name: [Bar(row.tokens_per_round) if (row := by_k.get(k)) else None for k in lengths]
            for name, by_k in groups.items()
        },
        lengths,
        x=Axis(label="tokens per round", form="{:.2f}".format),
        title="Tokens per round of every condition",
        level=(1, "plain decoding"),
    )


def _scatters(rows: Sequence[Row]) -> Html:
    """A small chart per condition on common axes."""
    groups, lengths = _grouped(rows)
    points = [point for by_k in groups.values() for row in by_k.values() for point in row.points]
    speedups, accepted = [p.speedup for p in points], [p.acceptance for p in points]
    x = Axis(label="acceptance", low=0, high=max(accepted, default=1), form=percent)
    y = Axis(label="speed-up (×)", low=min(speedups, default=0), high=max(speedups, default=1))
    charts = grid(
        {
            name: scatter(
                [_series(k, by_k[k], lengths.index(k) + 1) for k in lengths if k in by_k],
                x=x,
                y=y,
                title=f"Speed-up against acceptance, {name}",
                level=(1, "plain"),
                small=True,
            )
            for name, by_k in groups.items()
        }
    )
    return join([key(lengths), charts])


def _series(name: str, row: Row, style: int) -> Series:
    points = [(point.acceptance, point.speedup) for point in row.points]
    fit, line = row.break_even, None
    if fit is not None:
        accepted = [x for x, _ in points]
        line = Line(fit.intercept, fit.slope, min(accepted), max(accepted))
    return Series(name=name, points=points, style=style, fit=line)


def _staircase(curve: CostCurve) -> Html:
    series = []
    for costs in curve.contexts:
        rows = curve.rows_at(costs.tokens)
        series.append(
            Series(
                name=f"{costs.tokens:,} ids" if len(curve.contexts) > 1 else curve.name,
                points=[(m, time / rows[0]) for m, time in enumerate(rows, start=1)],
            )
        )
    return staircase(
        series,
        x=Axis(label="rows of a pass", low=0),
        y=Axis(label="time (passes over one row)", low=0),
        title="Time of a pass of the target by its rows",
        level=(1, "one row"),
    )


def _table(rows: Sequence[Row]) -> Html:
    return table(HEAD, map(cells, rows), text_columns=TEXT_COLUMNS)


def _settings(about: Mapping[str, object]) -> list[tuple[str, str]]:
    return [(name.replace("_", " "), str(value)) for name, value in about.items()]
