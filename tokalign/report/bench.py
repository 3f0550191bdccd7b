"""The page of `tokalign bench`: what was measured, in charts and tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tokalign.cost.curve import CostCurve
from tokalign.evaluate.comparison import ENOUGH_PROMPTS, Comparison, Row
from tokalign.evaluate.measurements import CONTROL
from tokalign.report.charts import Axis, Bar, Series, bars, key, scatter, staircase
from tokalign.report.page import Html, details, figures, grid, join, page, section, table
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
        section("What acceptance is worth", _scatters(rows), note=_SCATTER),
        *([section("What a pass costs", _staircase(curve), note=curve.source)] if curve else []),
        section("All prompts", _table(rows), note=_TABLE),
        *(details(f"Only {name}", _table(rows)) for name, rows in comparison.sets.items()),
        details("Settings", table(("setting", "value"), settings, text_columns=2)),
        introduction=_verdict(rows),
    )


_SPEEDUP = (
    "Tokens per second relative to plain decoding of the same prompt in the same run: the median "
    "over prompts, and the quartiles as a line. The band holds the quartiles of plain decoding "
    "measured a second time: a condition counts as faster only if its quartiles lie beyond it."
)
_TOKENS = "Tokens that one pass of the target yields. They do not depend on the machine."
_SCATTER = (
    "Each mark is a prompt. Where the fitted line crosses 1, drafting begins to pay: this is the "
    "break-even acceptance of that condition on this machine."
)
_TABLE = (
    "Acceptance: share of the proposed tokens that were accepted. Host ms: time of a round outside "
    "model passes, the median. Break-even: by ordinary least squares, its interval by the delta "
    "method."
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


def _grouped(rows: Sequence[Row]) -> tuple[dict[str, dict[str, Row]], list[str]]:
    """Rows with drafting by name and k; all k."""
    groups: dict[str, dict[str, Row]] = {}
    for row in rows:
        if row.condition.drafts:
            groups.setdefault(row.condition.name, {})[f"k = {row.condition.k}"] = row
    return groups, list(dict.fromkeys(k for by_k in groups.values() for k in by_k))


def _speedups(rows: Sequence[Row]) -> Html:
    groups, lengths = _grouped(rows)
    control = next((row for row in rows if row.condition.name == CONTROL and row.points), None)
    return bars(
        {
            name: {k: Bar(row.speedup, row.low, row.high) for k, row in by_k.items() if row.points}
            for name, by_k in groups.items()
        },
        lengths,
        x=Axis(label="speed-up (×)", form=".2f"),
        title="Median speed-up of every condition",
        level=(1, "plain decoding"),
        band=(control.low, control.high) if control else None,
    )


def _tokens_per_round(rows: Sequence[Row]) -> Html:
    groups, lengths = _grouped(rows)
    return bars(
        {
            name: {k: Bar(row.tokens_per_round) for k, row in by_k.items()}
            for name, by_k in groups.items()
        },
        lengths,
        x=Axis(label="tokens per round", form=".2f"),
        title="Tokens per round of every condition",
        level=(1, "plain decoding"),
    )


def _scatters(rows: Sequence[Row]) -> Html:
    """A small chart per condition on common axes."""
    groups, lengths = _grouped(rows)
    series = {
        name: [_series(k, row, lengths.index(k)) for k, row in by_k.items()]
        for name, by_k in groups.items()
    }
    drawn = [p for of in series.values() for one in of for p in (*one.points, *one.line)]
    x = Axis(label="acceptance", low=0, high=max((x for x, _ in drawn), default=1), form="%")
    heights = [y for _, y in drawn]
    y = Axis(label="speed-up (×)", low=min(heights, default=0), high=max(heights, default=1))
    title, level = "Speed-up against acceptance", (1, "plain")
    charts = {
        name: scatter(of, x=x, y=y, title=f"{title}, {name}", level=level)
        for name, of in series.items()
    }
    return join([key(lengths), grid(charts)])


def _series(name: str, row: Row, style: int) -> Series:
    points = [(point.acceptance, point.speedup) for point in row.points]
    fit, line = row.break_even, list[tuple[float, float]]()
    if fit is not None:
        accepted = [x for x, _ in points]
        line = [(x, fit.intercept + fit.slope * x) for x in (min(accepted), max(accepted))]
    return Series(name=name, points=points, style=style, line=line)


def _staircase(curve: CostCurve) -> Html:
    series = []
    for style, costs in enumerate(curve.contexts):
        rows = curve.rows_at(costs.tokens)
        points = [(m, time / rows[0]) for m, time in enumerate(rows, start=1)]
        series.append(Series(name=f"after {costs.tokens:,} ids", points=points, style=style))
    return staircase(
        series,
        x=Axis(label="rows of a pass", low=0),
        y=Axis(label="time (passes over one row)", low=0),
        title="Time of a pass of the target by its rows",
        level=(1, "one row"),
    )


def _table(rows: Sequence[Row]) -> Html:
    return table(HEAD, map(cells, rows), text_columns=TEXT_COLUMNS)
