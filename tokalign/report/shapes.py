"""The few shapes that charts are made of; colours are classes, `s1` to `s8`, defined by `page`."""

from __future__ import annotations

from collections.abc import Sequence

from tokalign.report.html import Html, tag

STYLES = 8
"""Colours and markers there are."""

_MARKERS = (
    "M-4,0a4,4 0 1,0 8,0a4,4 0 1,0 -8,0Z",
    "M0,-5L5,4H-5Z",
    "M-3.5,-3.5H3.5V3.5H-3.5Z",
    "M0,-5.2L5.2,0L0,5.2L-5.2,0Z",
    "M0,5L5,-4H-5Z",
    "M-1.6,-5H1.6V-1.6H5V1.6H1.6V5H-1.6V1.6H-5V-1.6H-1.6Z",
    "M-5,-2.5L0,-5.5L5,-2.5V3L0,5.5L-5,3Z",
    "M-5,-3H5V3H-5Z",
)


def drawing(title: str, content: Sequence[Html], *, width: float, height: float) -> Html:
    """An inline SVG. title: what it says, for those who cannot see it."""
    return tag(
        "svg",
        tag("title", title),
        *content,
        class_="plot",
        viewBox=f"0 0 {width:g} {height:g}",
        style=f"max-width: {width:g}px",
        role="img",
    )


def label(
    text: str, x: float, y: float, *, anchor: str | None = None, kind: str | None = None
) -> Html:
    """Text in a chart; anchor: start (the default), middle or end."""
    return tag("text", text, x=x, y=y, text_anchor=anchor, class_=kind)


def segment(kind: str, x1: float, y1: float, x2: float, y2: float) -> Html:
    """A straight line."""
    return tag("line", class_=kind, x1=x1, y1=y1, x2=x2, y2=y2)


def box(style: int, x: float, y: float, width: float, height: float) -> Html:
    """A filled rectangle."""
    return tag("rect", class_=f"s{style}", x=x, y=y, width=max(width, 1), height=max(height, 0))


def marker(style: int, x: float, y: float) -> Html:
    """A mark of about 8 pixels; each style has a shape of its own, not only a colour."""
    at = f"translate({x:.1f},{y:.1f})"
    return tag("path", class_=f"dot s{style}", d=_MARKERS[style - 1], transform=at)


def polyline(kind: str, pixels: Sequence[tuple[float, float]]) -> Html:
    """A line through points."""
    return tag("polyline", class_=kind, points=" ".join(f"{x:.1f},{y:.1f}" for x, y in pixels))


def text_width(text: str) -> float:
    """About how wide a label is, in pixels: no font is at hand to ask."""
    return 7.2 * len(text)
