"""The page that `check`, `bench` and `calibrate` write with --html: a verdict, plots, figures."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokalign.errors import MissingAssetError
from tokalign.installation import install_line
from tokalign.storage import write_file

if TYPE_CHECKING:
    from tokalign.runtime.cost import CostCurve
    from tokalign.runtime.rounds import Round

_COLOURS = (
    *("var(--bar)", "var(--accepted-rule)", "var(--corrected-rule)", "var(--quiet)"),
    *("#9a6fd8", "#b8860b"),
)
_SHOWN_ROWS = 9


@dataclass(frozen=True, slots=True)
class Plot:
    """A drawing and what it shows."""

    caption: str
    svg: str


def require_plots() -> None:
    """Check before long work that a page with plots can be made. Raises: MissingAssetError."""
    for name in ("pygal", "jinja2"):
        if find_spec(name) is None:
            raise MissingAssetError(
                f"pages take {name}, which is not installed; install it with: {install_line(name)}"
            )


def render(template: str, **values: Any) -> str:
    """The page that a template beside this module makes of these values, all escaped."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    files = FileSystemLoader(Path(__file__).parent)
    pages = Environment(loader=files, autoescape=True, trim_blocks=True, undefined=StrictUndefined)
    return pages.get_template(template).render(**values)


def write_report(
    path: Path,
    *,
    title: str,
    about: str,
    verdict: Sequence[str],
    plots: Sequence[Plot],
    head: Sequence[str] = ("figure", "value"),
    rows: Iterable[Sequence[object]],
) -> None:
    """Write a page. about: what was measured. verdict: its sentences. Raises: as `write_file`."""
    report = {"about": about, "verdict": verdict, "plots": plots, "head": head, "rows": rows}
    write_file(path, render("report.html", title=title, **report))


def curve_plot(curve: CostCurve | None) -> Plot:
    """What passes cost by rows: of a curve with its quartiles, and of chips that were published."""
    from tokalign.runtime.cost import PUBLISHED, read_curve

    series: dict[str, Sequence[tuple[int, float]]] = {}
    if curve is not None:
        timed, plain = curve.rows, curve.rows[1].median
        shown = sorted(count for count in timed if count <= _SHOWN_ROWS)
        for name, part in ((curve.name, 0), ("lower quartile", 1), ("upper quartile", 2)):
            series[name] = [(count, timed[count][part] / plain) for count in shown]
    for device, by_bits in PUBLISHED.items():
        for bits, name in by_bits.items():
            times = read_curve(name).row_times[:_SHOWN_ROWS]
            series[f"{device}, {bits} bits"] = [
                (count, time / times[0]) for count, time in enumerate(times, 1)
            ]
    titles = {"x_title": "rows verified in a pass", "y_title": "plain passes"}
    chart = _chart("XY", series=len(series), dots_size=2, **titles)
    for name, points in series.items():
        dashes = {"dasharray": "2, 5"} if "quartile" in name else {}
        chart.add(name, points, show_dots=not dashes, stroke_style=dashes)
    return Plot("What a pass over several rows takes, in plain passes.", _svg(chart))


def bar_plot(
    caption: str, labels: Sequence[str], bars: Mapping[str, Sequence[float | tuple[float, ...]]]
) -> Plot:
    """Bars by label. bars: values by series; a triple is a value with its interval's ends."""
    ends = [max(bar) if isinstance(bar, tuple) else bar for of in bars.values() for bar in of]
    top = 1.05 * max([1.0, *ends])
    chart = _chart("Bar", series=len(bars), x_label_rotation=20, range=(0, top))
    chart.x_labels = list(labels)
    for name, values in bars.items():
        chart.add(name, [_with_interval(value) for value in values])
    return Plot(caption, _svg(chart))


def timeline_plot(rounds: Sequence[Round]) -> Plot | None:
    """Tokens over the seconds since the first round, which reads the prompt; None without more."""
    if len(rounds) < 2:
        return None
    ends = [0.0, *accumulate(round_.seconds for round_ in rounds[1:])]
    chart = _chart("XY", series=2, show_dots=False, x_title="seconds", y_title="tokens")
    for name, counts in (
        ("written", [len(round_.emitted) for round_ in rounds]),
        ("of them drafted", [round_.accepted for round_ in rounds]),
    ):
        chart.add(name, [*zip(ends, accumulate(counts), strict=True)])
    return Plot("How the text grew after the prompt had been read.", _svg(chart))


def waterfall_plot(caption: str, causes: Sequence[str], levels: Sequence[float]) -> Plot:
    """A figure that falls from cause to cause. levels: one before each cause, and the last one."""
    steps = [(cause, *pair) for cause, pair in zip(causes, pairwise(levels), strict=True)]
    bars = [
        ("tokens per pass", 0.0, levels[0]),
        *((f"{cause}: {after - before:+.2f}", before, after) for cause, before, after in steps),
        ("speed by the clock", 0.0, levels[-1]),
    ]
    chart = _chart("StackedBar", series=2, x_label_rotation=20, show_legend=False)
    chart.x_labels = [name for name, _, _ in bars]
    # A step stands on what is left below it, which is not drawn.
    below = [min(start, end) for _, start, end in bars]
    chart.add("", [{"value": level, "style": "opacity: 0"} for level in below])
    chart.add("", [round(abs(end - start), 3) for _, start, end in bars])
    return Plot(caption, _svg(chart))


def _with_interval(value: float | tuple[float, ...]) -> object:
    if not isinstance(value, tuple):
        return round(value, 3)
    middle, low, high = value
    return {"value": round(middle, 3), "ci": {"low": low, "high": high}}


def _chart(kind: str, *, series: int, **settings: Any) -> Any:
    import pygal
    from pygal.style import Style

    style = Style(
        background="transparent",
        plot_background="transparent",
        foreground="var(--ink)",
        foreground_strong="var(--ink)",
        foreground_subtle="var(--quiet)",
        colors=_COLOURS * 3,
        font_family="system-ui, sans-serif",
        label_font_size=13,
        major_label_font_size=13,
    )
    return getattr(pygal, kind)(
        style=style,
        js=[],
        width=760,
        height=400 + 30 * ((series + 1) // 2),
        margin_bottom=24,
        legend_at_bottom=True,
        legend_at_bottom_columns=2,
        truncate_legend=-1,
        **settings,
    )


def _svg(chart: Any) -> str:
    """The drawing alone: no declaration, and no script, which pygal adds for tooltips."""
    drawn: str = chart.render(is_unicode=True, disable_xml_declaration=True)
    return re.sub(r"<script.*?</script>", "", drawn, flags=re.DOTALL)
