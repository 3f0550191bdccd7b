"""Bar charts as inline SVG: a histogram, and groups of lying bars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tokalign.report.axes import Axis, Scale, rows, tick_labels
from tokalign.report.html import Html, join
from tokalign.report.shapes import box, drawing, label, segment, text_width

_WIDTH = 660.0
_THICK, _BETWEEN = 17.0, 14.0


@dataclass(frozen=True, slots=True)
class Bar:
    """A value, and the range around it if there is one."""

    value: float
    low: float | None = None
    high: float | None = None

    @property
    def extent(self) -> list[float]:
        return [v for v in (self.value, self.low, self.high) if v is not None]


def columns(values: Mapping[str, float], *, x: str, y: Axis, title: str, style: int = 1) -> Html:
    """A histogram: an upright bar per name with its value above it. x: what the names are."""
    left, right, top, bottom = 64.0, _WIDTH - 16, 60.0, 236.0
    scale = replace(y, low=0).scale(values.values(), (bottom, top), 4)
    step = (right - left) / max(len(values), 1)
    width = min(step * 0.7, 64)
    drawn = [label(y.label, left - 7, top - 32, kind="name"), rows(scale, left, right)]
    for place, (name, value) in enumerate(values.items()):
        middle, height = left + (place + 0.5) * step, bottom - scale(value)
        drawn.append(box(style, middle - width / 2, scale(value), width, height))
        drawn.append(label(y.form(value), middle, scale(value) - 6, anchor="middle", kind="value"))
        drawn.append(label(name, middle, bottom + 18, anchor="middle"))
    drawn.append(label(x, right, bottom + 38, anchor="end", kind="name"))
    return drawing(title, drawn, width=_WIDTH, height=bottom + 48)


def bars(
    groups: Mapping[str, Sequence[Bar | None]],
    names: Sequence[str],
    *,
    x: Axis,
    title: str,
    level: tuple[float, str] | None = None,
) -> Html:
    """Lying bars: a group per condition and in it one bar per name, each with its value.

    groups: bars in the order of `names`, None where there is none. level: a value that means
    something, such as a speed-up of 1, and what it means.
    """
    left = 20 + max((text_width(group) for group in groups), default=0)
    top, block = 52.0, _THICK * len(names) + _BETWEEN
    bottom = top + block * len(groups)
    found = [value for row in groups.values() for bar in row if bar for value in bar.extent]
    scale = replace(x, low=0).scale(found, (left, _WIDTH - 56), 7)
    drawn = [_behind(scale, top, bottom, level), *_key(names, left)]
    for place, (group, row) in enumerate(groups.items()):
        above = top + place * block + _BETWEEN / 2
        middle = above + _THICK * len(names) / 2
        drawn.append(label(group, left - 10, middle + 4, anchor="end", kind="value"))
        for index, bar in enumerate(row):
            if bar is not None:
                drawn.append(_lying(scale, bar, above + index * _THICK, index + 1))
    return drawing(title, drawn, width=_WIDTH, height=bottom + 46)


def _lying(scale: Scale, bar: Bar, y: float, style: int) -> Html:
    """One bar, its range as a whisker, its value behind both."""
    start, end, middle = scale(0), scale(bar.value), y + (_THICK - 3) / 2
    drawn = [box(style, start, y, end - start, _THICK - 3)]
    if bar.low is not None and bar.high is not None:
        drawn.append(segment("whisker", scale(bar.low), middle, scale(bar.high), middle))
    far = scale(max(bar.extent)) + 6
    drawn.append(label(scale.axis.form(bar.value), far, middle + 4, kind="value"))
    return join(drawn)


def _behind(scale: Scale, top: float, bottom: float, level: tuple[float, str] | None) -> Html:
    """The grid, its values and its meaning, and the level."""
    grid = [segment("grid", scale(v), top, scale(v), bottom) for v in scale.ticks]
    name = label(scale.axis.label, scale.pixels[1], bottom + 36, anchor="end", kind="name")
    drawn = [*grid, tick_labels(scale, bottom + 17), name]
    if level is not None and scale.holds(level[0]):
        at = scale(level[0])
        drawn.append(segment("level", at, top - 12, at, bottom))
        drawn.append(label(level[1], at + 5, top - 5, kind="quiet"))
    return join(drawn)


def _key(names: Sequence[str], left: float) -> list[Html]:
    """What the colours mean, above the bars; nothing where there is one kind."""
    drawn, x = [], left
    for style, name in enumerate(names if len(names) > 1 else (), start=1):
        drawn += [box(style, x, 8, 12, 12), label(name, x + 18, 18, kind="value")]
        x += 36 + text_width(name)
    return drawn
