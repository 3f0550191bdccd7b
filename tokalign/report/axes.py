"""Axes: from values to pixels, with round ticks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import ceil, floor, isfinite, log10

from tokalign.report.html import Html, join
from tokalign.report.shapes import label, segment

Format = Callable[[float], str]


def plain(value: float) -> str:
    """As few digits as tell ticks apart: 0.5, 12, 1,000."""
    return f"{value:,.6g}" if abs(value) < 1000 else f"{value:,.0f}"


def percent(value: float) -> str:
    """A share: 0.25 is 25%."""
    return f"{value * 100:.6g}%"


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """What an axis says. label: with the unit. low, high: as far as it goes at least.

    logarithmic: for positive values.
    """

    label: str
    low: float | None = None
    high: float | None = None
    form: Format = plain
    logarithmic: bool = False

    def scale(self, values: Iterable[float], pixels: tuple[float, float], ticks: int) -> Scale:
        """A scale over `values` (and low and high) with about that many ticks, its ends on ticks.

        pixels: where its low and high ends lie. Values that are no numbers are left out.
        """
        ends = [v for v in (*values, self.low, self.high) if v is not None and isfinite(v)]
        low, high = (min(ends), max(ends)) if ends else (1.0, 2.0)
        marks = _log_ticks(low, high) if self.logarithmic else _ticks(low, high, ticks)
        return Scale(axis=self, ticks=marks, pixels=pixels)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """An axis in place: a value in, a pixel out."""

    axis: Axis
    ticks: Sequence[float]
    pixels: tuple[float, float]

    def __call__(self, value: float) -> float:
        low, high = self.ticks[0], self.ticks[-1]
        if self.axis.logarithmic:
            low, high, value = log10(low), log10(high), log10(value)
        start, end = self.pixels
        return start + (value - low) / (high - low) * (end - start)

    def holds(self, value: float) -> bool:
        """Whether a value lies on the axis."""
        return self.ticks[0] <= value <= self.ticks[-1]


@dataclass(frozen=True, slots=True)
class Frame:
    """The area of a chart between two scales."""

    x: Scale
    y: Scale

    def draw(self) -> Html:
        """Grid, tick labels, and what the axes mean; the y axis is named above its end."""
        (left, right), (bottom, top) = self.x.pixels, self.y.pixels
        return join(
            [
                rows(self.y, left, right),
                *(segment("mark", self.x(v), bottom, self.x(v), bottom + 4) for v in self.x.ticks),
                tick_labels(self.x, bottom + 18),
                label(self.y.axis.label, left - 7, top - 12, kind="name"),
                label(self.x.axis.label, right, bottom + 37, anchor="end", kind="name"),
                segment("axis", left, bottom, right, bottom),
            ]
        )

    def level(self, value: float, text: str) -> Html:
        """A dashed line at a height that means something, such as a speed-up of 1."""
        if not self.y.holds(value):
            return Html()
        (left, right), y = self.x.pixels, self.y(value)
        line = segment("level", left, y, right, y)
        return join([line, label(text, right - 2, y - 5, anchor="end", kind="quiet")])


def rows(scale: Scale, left: float, right: float) -> Html:
    """The grid of an upright scale, its values to the left."""
    drawn = []
    for value in scale.ticks:
        drawn.append(segment("grid", left, scale(value), right, scale(value)))
        drawn.append(label(scale.axis.form(value), left - 7, scale(value) + 4, anchor="end"))
    return join(drawn)


def tick_labels(scale: Scale, y: float) -> Html:
    """The values of a lying scale."""
    return join(label(scale.axis.form(v), scale(v), y, anchor="middle") for v in scale.ticks)


def _ticks(low: float, high: float, count: int) -> list[float]:
    """Multiples of 1, 2, 2.5 or 5 times a power of ten that enclose low and high."""
    size = max(abs(low), abs(high))
    if size < 1e-12:
        low, high = 0, 1
    elif high - low < 1e-9 * size:
        low, high = low - size / 2, high + size / 2
    rough = (high - low) / count
    power = 10.0 ** floor(log10(rough))
    step = next(s for s in (1, 2, 2.5, 5, 10) if s * power >= rough * (1 - 1e-9)) * power
    first, last = floor(low / step + 1e-9), ceil(high / step - 1e-9)
    return [float(f"{i * step:.12g}") for i in range(first, last + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten that enclose low and high, and their 2 and 5 folds if those are few."""
    if low <= 0:
        raise ValueError(f"a logarithmic axis needs positive values, not {low}")
    powers = range(floor(log10(low)) - 1, ceil(log10(high)) + 2)
    folds = (1, 2, 5) if high < 200 * low else (1,)
    marks = [float(f"{fold}e{power}") for power in powers for fold in folds]
    first = max(i for i, mark in enumerate(marks) if mark <= low * (1 + 1e-9))
    last = min(i for i, mark in enumerate(marks) if mark >= high * (1 - 1e-9))
    return marks[first : max(last, first + 1) + 1]
