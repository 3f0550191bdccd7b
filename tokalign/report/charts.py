"""Charts as inline SVG: Vega-Lite descriptions that vl-convert draws (the extra `report`).

Colours are the variables of the page's style (`page.STYLE`), so one drawing serves light and dark.
Every series has a marker of its own, so that colour is never the only difference; a legend in HTML
above the chart names them, because text in HTML keeps its size on a phone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from math import isfinite
from typing import Any

from tokalign.errors import MissingAssetError
from tokalign.report.page import Html, join, tag

Point = tuple[float, float]
Level = tuple[float, str]
"""A value that means something, such as a speed-up of 1, and what it means."""

Spec = dict[str, Any]
"""A part of a Vega-Lite description."""

COLOURS = tuple(f"var(--c{number})" for number in range(1, 9))
_MARKERS = "●▲■◆▼✚⬢▬"
_SHAPES = (
    "circle", "triangle-up", "square", "diamond", "triangle-down", "cross",
    "M-1,-.5L0,-1L1,-.5V.5L0,1L-1,.5Z", "M-1,-.5H1V.5H-1Z",
)  # fmt: skip
_CONFIG: Spec = {
    "background": None,
    "font": 'system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif',
    "view": {"stroke": None},
    "axis": {
        "aria": False,
        "labelColor": "var(--quiet)",
        "titleColor": "var(--ink)",
        "gridColor": "var(--rule)",
        "domainColor": "var(--quiet)",
        "tickColor": "var(--quiet)",
        "labelFontSize": 12,
        "titleFontSize": 12,
        "labelLimit": 0,
    },
    "axisX": {"grid": False, "titleAnchor": "end", "labelFlush": False},
    "axisY": {"grid": True, "titleAngle": 0, "titleAlign": "left", "titleX": -28, "titleY": -12},
    "mark": {"aria": False},
    "text": {"color": "var(--ink)", "fontSize": 12},
    "line": {"strokeWidth": 2},
    "point": {"filled": True, "opacity": 1, "size": 45},
    "rule": {"color": "var(--quiet)"},
}
_PADDING: Spec = {"left": 24, "top": 12, "right": 12, "bottom": 12}
"""Wide on the left, where names stand: the font of a reader may be wider than the one here."""

_ONCE: Spec = {"values": [{}]}
"""Data of a layer that is drawn once, whatever the chart shows."""


def require_charts() -> None:
    """Check that charts can be drawn, before long work. Raises: MissingAssetError if not."""
    if find_spec("vl_convert") is None:
        raise MissingAssetError(
            "a page with charts needs vl-convert; install it with: pip install 'tokalign[report]'"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """What an axis says. label: with the unit. low, high: values that it reaches in any case.

    form: of the numbers, as in d3-format. logarithmic: for positive values.
    """

    label: str
    low: float | None = None
    high: float | None = None
    form: str = ",.6~g"
    logarithmic: bool = False

    def encode(self, name: str) -> Spec:
        """Return the Vega-Lite encoding of the field `name` on this axis."""
        scale: Spec = {"type": "log"} if self.logarithmic else {"zero": False}
        ends = {"domainMin": self.low, "domainMax": self.high}
        scale |= {end: value for end, value in ends.items() if value is not None}
        axis: Spec = {"title": self.label, "format": self.form, "tickCount": 5}
        return {"field": name, "type": "quantitative", "scale": scale, "axis": axis}


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Named points; those with a coordinate that is not a finite number are not drawn.

    style: number of its colour and marker, from 0. line: the ends of a line fitted to the points,
    drawn by `scatter`.
    """

    name: str
    points: Sequence[Point]
    style: int
    line: Sequence[Point] = ()


@dataclass(frozen=True, slots=True)
class Bar:
    """A value, and the range around it if there is one."""

    value: float
    low: float | None = None
    high: float | None = None


def columns(values: Mapping[str, float], *, x: str, y: Axis, title: str) -> Html:
    """A histogram: an upright bar per name with its value above it. x: what the names are."""
    rows = [{"name": name, "y": value} for name, value in values.items()]
    axis = {"title": x, "labelAngle": 0}
    place = {
        "x": {"field": "name", "type": "ordinal", "sort": None, "axis": axis},
        "y": replace(y, low=0, high=1.1 * max(values.values(), default=1)).encode("y"),
    }
    layers = [
        {"mark": {"type": "bar", "color": COLOURS[0]}, "encoding": place},
        _text({"dy": -8}, place, "y", y.form),
    ]
    return _draw(title, layers, rows, width={"step": 60}, height=180)


def bars(
    groups: Mapping[str, Mapping[str, Bar]],
    names: Sequence[str],
    *,
    x: Axis,
    title: str,
    level: Level | None = None,
    band: tuple[float, float] | None = None,
) -> Html:
    """Lying bars: groups one below the other, each under its name, and in it its bars by name.

    names: all names in the order of their styles. band: a range to shade.
    """
    rows: list[Spec] = []
    heads: list[Spec] = []
    for group, found in groups.items():
        heads.append({"at": len(rows) + len(heads), "group": group})
        for name in names:
            if name in found:
                bar, at = found[name], len(rows) + len(heads)
                ends = {"low": bar.low, "high": bar.high}
                end = bar.value if bar.high is None else bar.high
                rows.append({"at": at, "name": name, "x": bar.value, "end": end, **ends})
    across = replace(x, low=0).encode("x")
    across["axis"] |= {"grid": True}
    lines = {"domain": list(range(len(rows) + len(heads))), "paddingInner": 0.1}
    place = {"x": across, "y": {"field": "at", "type": "ordinal", "scale": lines, "axis": None}}
    whisker = place | {"x": across | {"field": "low"}, "x2": {"field": "high"}}
    styles = {name: place for place, name in enumerate(names)}
    layers = [
        *([_band(*band)] if band else []),
        {"mark": "bar", "encoding": place | {"color": _style(COLOURS, styles)}},
        {"mark": {"type": "rule", "color": "var(--ink)", "strokeWidth": 1.5}, "encoding": whisker},
        _text({"align": "left", "dx": 5}, place | {"x": across | {"field": "end"}}, "x", x.form),
        {
            "data": {"values": heads},
            "mark": {"type": "text", "align": "left", "dy": 2},
            "encoding": {
                "x": {"value": 0},
                "y": place["y"],
                "text": {"field": "group", "type": "nominal"},
            },
        },
        *_level("x", level),
    ]
    return join([key(names), _draw(title, layers, rows, width=400, height={"step": 18})])


def scatter(
    series: Sequence[Series], *, x: Axis, y: Axis, title: str, level: Level | None = None
) -> Html:
    """A small chart of points and the lines fitted to them, without a legend."""
    fits = [replace(one, points=one.line) for one in series]
    layers = [*_level("y", level), _layer("point", series, x, y), _layer("line", fits, x, y)]
    return _draw(title, layers, width=230, height=140)


def staircase(
    series: Sequence[Series], *, x: Axis, y: Axis, title: str, level: Level | None = None
) -> Html:
    """A value per whole number, such as time by rows of a pass: a step around each number."""
    ends = [replace(one, points=one.points[-1:]) for one in series]
    layers = [
        *_level("y", level),
        _layer({"type": "line", "interpolate": "step"}, series, x, y),
        _layer("point", ends, x, y),
    ]
    return join([key([one.name for one in series]), _draw(title, layers)])


def key(names: Sequence[str]) -> Html:
    """A legend: the names of the styles 0, 1, ...; nothing if there is only one."""
    shown = zip(_MARKERS, COLOURS, names if len(names) > 1 else (), strict=False)
    items = (
        tag("li", tag("span", mark, style=f"color: {colour}", aria_hidden="true"), f" {name}")
        for mark, colour, name in shown
    )
    return tag("ul", *items, class_="legend") if len(names) > 1 else Html()


def _layer(mark: str | Spec, series: Sequence[Series], x: Axis, y: Axis) -> Spec:
    """One layer with every finite point of the series, in their colours and markers."""
    rows = [
        {"name": one.name, "x": px, "y": py}
        for one in series
        for px, py in one.points
        if isfinite(px) and isfinite(py)
    ]
    styles = {one.name: one.style for one in series}
    encoding = {"x": x.encode("x"), "y": y.encode("y"), "color": _style(COLOURS, styles)}
    if mark == "point":
        encoding["shape"] = _style(_SHAPES, styles)
    return {"data": {"values": rows}, "mark": mark, "encoding": encoding}


def _style(known: Sequence[str], styles: Mapping[str, int]) -> Spec:
    """The encoding of a name by its style: a colour or a shape."""
    chosen = [known[style % len(known)] for style in styles.values()]
    return {"field": "name", "scale": {"domain": list(styles), "range": chosen}, "legend": None}


def _text(mark: Spec, place: Spec, name: str, form: str) -> Spec:
    """A layer with the values of a field as text."""
    text = {"text": {"field": name, "format": form}}
    return {"mark": {"type": "text", **mark}, "encoding": place | text}


def _band(low: float, high: float) -> Spec:
    """The area between two values of the x axis."""
    ends = {"x": {"datum": low, "type": "quantitative"}, "x2": {"datum": high}}
    return {"data": _ONCE, "mark": {"type": "rect", "color": "var(--rule)"}, "encoding": ends}


def _level(along: str, level: Level | None) -> list[Spec]:
    """A dashed line at a value of the x or y axis, and what it means."""
    if level is None:
        return []
    where = {along: {"datum": level[0], "type": "quantitative"}}
    place = {"align": "left", "dx": 4, "y": -8} if along == "x" else {"align": "right", "dy": -7}
    if along == "y":
        place |= {"x": "width"}
    text = {"type": "text", "color": "var(--quiet)", "fontStyle": "italic", **place}
    return [
        {"data": _ONCE, "mark": {"type": "rule", "strokeDash": [5, 4]}, "encoding": where},
        {"data": _ONCE, "mark": text, "encoding": where | {"text": {"value": level[1]}}},
    ]


def _draw(title: str, layers: list[Spec], rows: Sequence[Spec] = (), **size: Any) -> Html:
    """Draw layers; those without data of their own show `rows`.

    title: what the chart says, for those who cannot see it.
    Raises: MissingAssetError without vl-convert.
    """
    require_charts()
    from vl_convert import vegalite_to_svg

    whole = {"data": {"values": list(rows)}, "layer": layers, "config": _CONFIG}
    spec = _printable(whole | {"width": 440, "height": 250, "padding": _PADDING} | size)
    svg = Html(vegalite_to_svg(spec, allowed_base_urls=[]))
    return tag("div", svg, class_="plot", role="img", aria_label=title)


_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


_TAKEN = ("if", "constructor", "toString", "valueOf", "hasOwnProperty", "isPrototypeOf",
          "toLocaleString", "propertyIsEnumerable")  # fmt: skip
"""Texts that Vega takes for something of its own where they are a title or a name."""


def _printable(value: Any) -> Any:
    """Replace characters that SVG does not allow: vl-convert ends the process at one.

    A zero-width space is added to texts that Vega would not draw.
    """
    if isinstance(value, dict):
        return {name: _printable(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_printable(item) for item in value]
    if value in _TAKEN:
        return f"{value}\u200b"
    return _NOT_XML.sub("\ufffd", value) if isinstance(value, str) else value
