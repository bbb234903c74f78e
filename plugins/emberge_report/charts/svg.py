"""SVG marks and scales: a colour and a shape for each model, axes with round ticks.

Models also differ in shape, so that charts can be read without colour.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from emberge_report.charts.markup import Child, Markup, tag

# The style sheet has as many colours.
COLOURS = 8
_SHAPES = ("circle", "square", "diamond", "up", "down", "cross", "hexagon")


@dataclass(frozen=True, slots=True)
class MarkerStyle:
    """Style class of the page and shape of a marker."""

    style: str
    shape: str


# Look of a model that is compared with but was not made here.
NEUTRAL = MarkerStyle("neutral", "circle")


def looks(names: Iterable[str]) -> Mapping[str, MarkerStyle]:
    """Return a marker style for each name; colour and shape repeat with different periods."""
    return {
        name: MarkerStyle(f"c{i % COLOURS}", _SHAPES[i % len(_SHAPES)])
        for i, name in enumerate(dict.fromkeys(names))
    }


def marker(x: float, y: float, look: MarkerStyle, size: float = 4.5) -> Markup:
    """Return the marker's shape, centred on a point; `size` is about its radius."""
    style = f"mark {look.style}"
    if look.shape == "circle":
        return tag("circle", class_=style, cx=x, cy=y, r=size)
    if look.shape == "square":
        side = size * 0.88
        return tag("rect", class_=style, x=x - side, y=y - side, width=2 * side, height=2 * side)
    points = " ".join(f"{x + size * a:.1f},{y + size * b:.1f}" for a, b in _POLYGONS[look.shape])
    return tag("polygon", class_=style, points=points)


_POLYGONS: dict[str, tuple[tuple[float, float], ...]] = {
    "diamond": ((0, -1.2), (1.2, 0), (0, 1.2), (-1.2, 0)),
    "up": ((0, -1.15), (1.15, 0.9), (-1.15, 0.9)),
    "down": ((0, 1.15), (1.15, -0.9), (-1.15, -0.9)),
    "hexagon": ((0.6, -1), (1.15, 0), (0.6, 1), (-0.6, 1), (-1.15, 0), (-0.6, -1)),
    "cross": (
        *((-0.4, -1.1), (0.4, -1.1), (0.4, -0.4), (1.1, -0.4), (1.1, 0.4), (0.4, 0.4)),
        *((0.4, 1.1), (-0.4, 1.1), (-0.4, 0.4), (-1.1, 0.4), (-1.1, -0.4), (-0.4, -0.4)),
    ),
}


def text(x: float, y: float, words: str, style: str = "", anchor: str = "start") -> Markup:
    """Return words at a baseline; `anchor` is start, middle or end."""
    text_anchor = None if anchor == "start" else anchor
    return tag("text", words, class_=style or None, x=x, y=y, text_anchor=text_anchor)


# Characters of a name in one line, where a chart can spare as much; distance of two lines.
NAME_WIDTH, LINE = 40, 13.0


def name_lines(name: str, width: int = NAME_WIDTH) -> list[str]:
    """Return a whole name in lines of at most `width` characters, broken after a separator if one is near."""
    lines = []
    while len(name) > width:
        end = max(name.rfind(mark, width // 2, width) for mark in "/-_.=+@ ") + 1 or width
        lines.append(name[:end])
        name = name[end:]
    return [*lines, name]


def count_lines(names: Iterable[str], width: int = NAME_WIDTH) -> int:
    """Return the number of lines of the name that needs most; 1 without names."""
    return max((len(name_lines(name, width)) for name in names), default=1)


def name_text(
    x: float,
    y: float,
    name: str,
    *,
    width: int = NAME_WIDTH,
    style: str = "",
    anchor: str = "start",
    transform: str | None = None,
) -> Markup:
    """Return a whole name in as many lines as it needs, their middle at a baseline."""
    lines = name_lines(name, width)
    top = y - LINE * (len(lines) - 1) / 2
    words: list[Child] = [name]
    if len(lines) > 1:
        words = [tag("tspan", line, x=x, y=top + LINE * i) for i, line in enumerate(lines)]
    text_anchor = None if anchor == "start" else anchor
    return tag(
        "text",
        words,
        class_=style or None,
        x=x,
        y=y,
        text_anchor=text_anchor,
        transform=transform,
    )


def short(name: str, width: int) -> str:
    """Return the name of a place of an axis, shortened in its middle to `width` characters."""
    if len(name) <= width:
        return name
    head = (width - 1) // 2
    return f"{name[:head]}…{name[len(name) - (width - 1 - head) :]}"


@dataclass(frozen=True, slots=True)
class Scale:
    """Linear scale that maps numbers from `low` to `high` to pixels from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """Return the pixel of a number."""
        span = (self.high - self.low) or 1.0
        return self.start + (value - self.low) / span * (self.end - self.start)

    def ticks(self, count: int = 5) -> tuple[float, ...]:
        """Return about `count` round numbers inside."""
        return ticks(self.low, self.high, count)

    def labels(self, places: Sequence[float]) -> list[str]:
        """Return the labels of ticks, all with equally many digits."""
        return [number(place, places) for place in places]


def ticks(low: float, high: float, count: int = 5) -> tuple[float, ...]:
    """Return about `count` round numbers (1, 2 or 5 times a power of ten apart) from `low` to `high`."""
    span = high - low
    if not span > 0 or not math.isfinite(span):
        return (low,)
    rough_step = span / max(count, 1)
    power = 10.0 ** math.floor(math.log10(rough_step))
    step = power * next(m for m in (1, 2, 5, 10) if m * power >= rough_step * 0.999)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return tuple(round(i * step, 12) for i in range(first, last + 1))


def number(value: float, neighbours: Sequence[float] = ()) -> str:
    """Return a tick's label: as many digits as its neighbours need to differ, a true minus sign."""
    gaps = [abs(b - a) for a, b in pairwise(neighbours) if b != a]
    gap = min(gaps, default=abs(value) or 1.0)
    digits = max(0, -math.floor(math.log10(gap) + 1e-9)) if gap < 1 else 0
    if digits > 5 or abs(value) >= 1e6:
        return f"{value:.1e}".replace("-", "\N{MINUS SIGN}")
    return f"{value:,.{digits}f}".replace("-", "\N{MINUS SIGN}")
