"""Dot charts with intervals, one row per model: scores on a task, or differences from a model."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from emberge_report.charts.markup import Markup, tag
from emberge_report.charts.svg import (
    LINE,
    MarkerStyle,
    Scale,
    marker,
    name_lines,
    name_text,
    number,
    text,
)

WIDTH = 344
_ROW = 22
_TOP = 6
_AXIS = 24
# Characters of a name beside its dot; of longer names all are above their dots, in lines of so many.
_BESIDE, _ABOVE = 19, 50


@dataclass(frozen=True, slots=True)
class Dot:
    """Row of a chart: its label, its value (None if missing) and its interval if known."""

    name: str
    look: MarkerStyle
    value: float | None
    low: float | None = None
    high: float | None = None
    label: str = ""
    strong: bool = False

    @property
    def numbers(self) -> tuple[float, ...]:
        """Finite numbers of the row, which the axis must cover."""
        values = (self.value, self.low, self.high)
        return tuple(n for n in values if n is not None and math.isfinite(n))


def range_of(rows: Sequence[Dot], *more: float) -> tuple[float, float]:
    """Return the lowest and highest number of the rows; (0, 1) without numbers."""
    numbers = [n for row in rows for n in row.numbers] + list(more)
    return (min(numbers), max(numbers)) if numbers else (0.0, 1.0)


def dot_chart(
    rows: Sequence[Dot], *, label: str, span: float, reference: float | None = None
) -> Markup:
    """Return one panel; `span` is the width of its axis, so that neighbouring panels can be compared.

    `reference` draws a dashed line: the score of the model compared with, or 0 for differences.
    """
    names = max([len(row.name) for row in rows], default=0)
    values = max([len(row.label) for row in rows], default=0)
    above = names > _BESIDE
    left, right = 4.0 if above else 14 + 6.6 * names, WIDTH - 10 - 6.8 * values
    more_numbers = () if reference is None else (reference,)
    low, high = range_of(rows, *more_numbers)
    middle, half_span = (low + high) / 2, max(span, high - low, 1e-9) * 0.54
    scale = Scale(middle - half_span, middle + half_span, left, right)
    heights = [_ROW + (LINE * len(name_lines(row.name, _ABOVE)) if above else 0) for row in rows]
    bottom = _TOP + sum(heights)
    parts = [_draw_axis(scale, bottom)]
    if reference is not None:
        x = scale(reference)
        parts.append(tag("line", class_="reference", x1=x, x2=x, y1=_TOP, y2=bottom))
    ends = itertools.accumulate(heights, initial=_TOP)
    next(ends)
    parts += [
        _draw_row(row, scale, end - _ROW / 2, above=above)
        for row, end in zip(rows, ends, strict=True)
    ]
    box = f"0 0 {WIDTH} {bottom + _AXIS:g}"
    return tag("svg", *parts, viewBox=box, class_="dots", role="img", aria_label=label)


def _draw_axis(scale: Scale, bottom: float) -> Markup:
    marks = scale.ticks(4)
    lines = [
        (
            tag("line", class_="grid", x1=scale(t), x2=scale(t), y1=_TOP, y2=bottom),
            text(scale(t), bottom + 15, number(t, marks), "tick", "middle"),
        )
        for t in marks
    ]
    return tag("g", lines, aria_hidden="true")


def _draw_row(row: Dot, scale: Scale, y: float, *, above: bool) -> Markup:
    style = "strong" if row.strong else ""
    name_y = y + 4
    if above:
        name_y = y - _ROW / 2 + 1 - LINE * (len(name_lines(row.name, _ABOVE)) - 1) / 2
    parts: list[Markup] = [
        tag("title", f"{row.name}: {row.label or 'not scored'}"),
        name_text(0, name_y, row.name, width=_ABOVE, style=style),
        text(WIDTH, y + 4, row.label or "–", f"value {style}".strip(), "end"),
    ]
    if row.low is not None and row.high is not None:
        style = f"whisker {row.look.style}"
        parts.append(tag("line", class_=style, x1=scale(row.low), x2=scale(row.high), y1=y, y2=y))
    if row.value is not None and math.isfinite(row.value):
        parts.append(marker(scale(row.value), y, row.look))
    return tag("g", parts)
