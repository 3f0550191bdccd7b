"""Charts of points, as inline SVG: scatter with a fitted line, lines, staircases.

Every series has a marker of its own and is named at its right end, so that colour is never the only
difference. Points with a coordinate that is no number are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isfinite

from tokalign.report.axes import Axis, Frame
from tokalign.report.html import Html
from tokalign.report.shapes import STYLES, drawing, label, marker, polyline, text_width

Point = tuple[float, float]
Level = tuple[float, str]
"""A height that means something, and what it means."""

_SIZE = (660.0, 340.0)
_SMALL = (310.0, 230.0)
_LINE_HEIGHT = 15


@dataclass(frozen=True, slots=True)
class Line:
    """y = intercept + slope * x, drawn over x from `low` to `high`."""

    intercept: float
    slope: float
    low: float
    high: float

    @property
    def ends(self) -> list[Point]:
        return [(x, self.intercept + self.slope * x) for x in (self.low, self.high)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Named points. style: number of its colour and marker, 1 to 8; None for the next one.

    fit: a line through the points, drawn by `scatter`.
    """

    name: str
    points: Sequence[Point]
    style: int | None = None
    fit: Line | None = None

    def finite(self) -> list[Point]:
        """The points that can be drawn."""
        return [point for point in self.points if all(map(isfinite, point))]


def scatter(
    series: Sequence[Series],
    *,
    x: Axis,
    y: Axis,
    title: str,
    level: Level | None = None,
    small: bool = False,
) -> Html:
    """Points, and the lines fitted to them.

    title: what the chart says, for those who cannot see it. small: without names, for many charts
    beside one another under one legend.
    """
    ends = [end for one in series if one.fit for end in one.fit.ends]
    chart = _Chart.around(series, x, y, small=small, more=ends)
    drawn = [chart.frame.draw(), *chart.level(level)]
    for style, one in _styled(series):
        drawn += chart.path(f"line s{style}", one.fit.ends if one.fit else [])
        drawn += chart.dots(style, one)
    return chart.finish(title, drawn if small else [*drawn, *chart.names(series)])


def lines(
    series: Sequence[Series], *, x: Axis, y: Axis, title: str, level: Level | None = None
) -> Html:
    """Points joined in the order given."""
    chart = _Chart.around(series, x, y)
    drawn = [chart.frame.draw(), *chart.level(level)]
    for style, one in _styled(series):
        drawn += [*chart.path(f"line s{style}", one.finite()), *chart.dots(style, one)]
    return chart.finish(title, [*drawn, *chart.names(series)])


def staircase(
    series: Sequence[Series], *, x: Axis, y: Axis, title: str, level: Level | None = None
) -> Html:
    """A value per whole number (time by rows of a pass): treads of width 1 around each."""
    treads = [
        replace(one, points=[(at, py) for px, py in one.finite() for at in (px - 0.5, px + 0.5)])
        for one in series
    ]
    chart = _Chart.around(treads, x, y)
    drawn = [chart.frame.draw(), *chart.level(level)]
    for style, one in _styled(treads):
        drawn += chart.path(f"line s{style}", one.finite())
    return chart.finish(title, [*drawn, *chart.names(treads)])


def key(names: Sequence[str]) -> Html:
    """What the markers of small charts stand for, series by series."""
    x, drawn = 8.0, []
    for style, name in enumerate(names, start=1):
        drawn += [marker(style, x, 12), label(name, x + 12, 16, kind="value")]
        x += 40 + text_width(name)
    return drawing(", ".join(names), drawn, width=_SIZE[0], height=24)


@dataclass(frozen=True, slots=True)
class _Chart:
    """A frame of one of two sizes, and what is drawn in it."""

    frame: Frame
    size: tuple[float, float]

    @classmethod
    def around(
        cls,
        series: Sequence[Series],
        x: Axis,
        y: Axis,
        *,
        small: bool = False,
        more: Sequence[Point] = (),
    ) -> _Chart:
        """A chart that holds all points; room at its right for the names, unless small."""
        width, height = _SMALL if small else _SIZE
        points = [*(point for one in series for point in one.finite()), *more]
        room = 16 if small else 30 + max((text_width(one.name) for one in series), default=0)
        across = x.scale([p[0] for p in points], (56, width - room), 4 if small else 7)
        up = y.scale([p[1] for p in points], (height - 46, 36), 4 if small else 6)
        return cls(Frame(across, up), (width, height))

    def dots(self, style: int, one: Series) -> list[Html]:
        return [marker(style, self.frame.x(x), self.frame.y(y)) for x, y in one.finite()]

    def path(self, kind: str, points: Sequence[Point]) -> list[Html]:
        pixels = [(self.frame.x(x), self.frame.y(y)) for x, y in points]
        return [polyline(kind, pixels)] if pixels else []

    def level(self, level: Level | None) -> list[Html]:
        return [self.frame.level(*level)] if level else []

    def names(self, series: Sequence[Series]) -> list[Html]:
        """Names at the series' right ends, pushed apart where they would overlap."""
        ends = [
            (self.frame.y(max(one.finite())[1]), style, one.name)
            for style, one in _styled(series)
            if one.finite()
        ]
        x, y, heights = self.frame.x.pixels[1] + 12, 0.0, []
        for wanted, _, _ in sorted(ends):
            heights.append(y := max(wanted, y + _LINE_HEIGHT))
        below = max(0.0, y - self.frame.y.pixels[0])
        drawn: list[Html] = []
        for height, (_, style, name) in zip(heights, sorted(ends), strict=True):
            drawn.append(marker(style, x, height - below))
            drawn.append(label(name, x + 10, height - below + 4, kind="value"))
        return drawn

    def finish(self, title: str, drawn: Sequence[Html]) -> Html:
        return drawing(title, drawn, width=self.size[0], height=self.size[1])


def _styled(series: Sequence[Series]) -> list[tuple[int, Series]]:
    """Every series with the number of its style; behind the last one they begin again."""
    return [
        ((one.style or place) % STYLES or STYLES, one) for place, one in enumerate(series, start=1)
    ]
