"""Scatter charts of named series with words next to points."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType

from emberge_report.charts.markup import Markup, tag
from emberge_report.charts.point_words import LETTER_WIDTH, Box, place_words
from emberge_report.charts.svg import (
    LINE,
    NAME_WIDTH,
    LogScale,
    MarkerStyle,
    Scale,
    looks,
    marker,
    name_lines,
    name_text,
    text,
)

# A point: x, y, and words beside it or "".
Point = tuple[float, float, str]
Intervals = Mapping[str, tuple[float, float]]

WIDTH, HEIGHT = 1040, 400
_LEFT, _TOP, _BOTTOM = 64, 24, 44
_SERIES = 20  # height of a name of one line


def point_chart(
    x: str,
    y: str,
    series: Mapping[str, Sequence[Point]],
    *,
    chosen: Mapping[str, MarkerStyle] | None = None,
    line: Sequence[tuple[float, float]] = (),
    intervals: Intervals = MappingProxyType({}),
    logarithmic: bool = False,
    width: int = WIDTH,
) -> Markup:
    """Return the chart of points by series, `width` units wide; `x` and `y` are the labels of the axes.

    If words do not fit next to their point, they are only in the point's title (tooltip). Series are named on
    the right, unless their only point has the same words; if this holds for all series, words without room
    next to their point are further away, at the end of a line. `chosen` are the series' marker styles, `line`
    is drawn through some points, and `intervals` (low, high) of y are drawn at the points of a series. With
    `logarithmic`, numbers of the x axis must be above 0.
    """
    style_by_name = {
        name
        for name, points_of_series in series.items()
        if [words for *_, words in points_of_series] != [name]
    }
    names = min(NAME_WIDTH, max(map(len, style_by_name), default=0))
    right = width - 24 - (LETTER_WIDTH * names + 16 if names else 0)
    points = [point for points_of_series in series.values() for point in points_of_series]
    places = [point[0] for point in points]
    x_scale: Scale = Scale(*_find_range(places), _LEFT, right)
    if logarithmic:
        x_scale = LogScale(0.85 * min(places), max(places) / 0.85, _LEFT, right)
    height = max(HEIGHT, _TOP + _BOTTOM + measure_series(style_by_name))
    heights = [*(p[1] for p in points), *(end for ends in intervals.values() for end in ends)]
    y_scale = Scale(*_find_range(heights), height - _BOTTOM, _TOP)
    whiskers = {
        name: Box(
            x_scale(at) - 2,
            y_scale(intervals[name][1]),
            x_scale(at) + 2,
            y_scale(intervals[name][0]),
        )
        for name, points_of_series in series.items()
        for at, *_ in points_of_series
        if name in intervals
    }
    chosen = looks(series) if chosen is None else chosen
    marks = [
        _draw_point(name, point, x_scale, y_scale, chosen[name])
        for name, points_of_series in series.items()
        for point in points_of_series
    ]
    placed = place_words(
        [(x_scale(at), y_scale(value), words) for at, value, words in points],
        Box(_LEFT, 0, x_scale.end, y_scale.start),
        [*whiskers.values(), *_cover_line(line, x_scale, y_scale)],
        further=not style_by_name,
    )
    label = f"{y} over {x}, {len(points)} points: {', '.join(name for name in series if name)}"
    return tag(
        "svg",
        *(
            _draw_axes(x_scale, y_scale, x, y),
            _draw_line(line, x_scale, y_scale) if line else None,
            tag("g", [_draw_whisker(box, chosen[name]) for name, box in whiskers.items()]),
            tag("g", marks),
            tag("g", [words.draw() for words in placed]),
            draw_series_names(
                {name: look for name, look in chosen.items() if name in style_by_name}, right
            ),
        ),
        viewBox=f"0 0 {width} {height:g}",
        class_="points",
        role="img",
        aria_label=label,
    )


def _find_range(numbers: Sequence[float]) -> tuple[float, float]:
    low, high = min(numbers, default=0.0), max(numbers, default=1.0)
    margin = (high - low) * 0.06 or abs(high) * 0.1 or 1.0
    return low - margin, high + margin


def _draw_axes(x_scale: Scale, y_scale: Scale, x: str, y: str) -> Markup:
    low, high, base = x_scale.start, x_scale.end, y_scale.start
    columns, rows = x_scale.ticks(8), y_scale.ticks(6)
    lines = [
        (
            tag("line", class_="grid", x1=x_scale(t), x2=x_scale(t), y1=y_scale.end, y2=base),
            text(x_scale(t), base + 16, label, "tick", "middle"),
        )
        for t, label in zip(columns, x_scale.labels(columns), strict=True)
    ]
    lines += [
        (
            tag("line", class_="grid", x1=low, x2=high, y1=y_scale(t), y2=y_scale(t)),
            text(low - 8, y_scale(t) + 4, label, "tick", "end"),
        )
        for t, label in zip(rows, y_scale.labels(rows), strict=True)
    ]
    axis_names = (
        text(0, 11, y, "axis"),
        text((low + high) / 2, base + _BOTTOM - 6, x, "axis", "middle"),
    )
    return tag("g", lines, axis_names, aria_hidden="true")


def _draw_line(points: Sequence[tuple[float, float]], x_scale: Scale, y_scale: Scale) -> Markup:
    corners = "L".join(f"{x_scale(x):.1f} {y_scale(y):.1f}" for x, y in points)
    return tag("path", class_="level neutral", d=f"M{corners}")


def _cover_line(
    line: Sequence[tuple[float, float]], x_scale: Scale, y_scale: Scale
) -> Iterator[Box]:
    """Yield small boxes that cover a line, so that no words are on it."""
    for (x, y), (next_x, next_y) in pairwise((x_scale(x), y_scale(y)) for x, y in line):
        count = math.ceil(max(abs(next_x - x), abs(next_y - y)) / 4) or 1
        for step in range(count + 1):
            across, down = x + (next_x - x) * step / count, y + (next_y - y) * step / count
            yield Box(across - 3, down - 3, across + 3, down + 3)


def _draw_whisker(box: Box, look: MarkerStyle) -> Markup:
    x = (box.left + box.right) / 2
    return tag(
        "line",
        class_=f"whisker {look.style}",
        x1=x,
        x2=x,
        y1=box.top,
        y2=box.bottom,
    )


def _draw_point(
    name: str, point: Point, x_scale: Scale, y_scale: Scale, look: MarkerStyle
) -> Markup:
    x, y, words = point
    titles = dict.fromkeys(filter(None, (name, words)))
    title = ": ".join((*titles, f"{x:.6g}, {y:.6g}"))
    return tag("g", tag("title", title), marker(x_scale(x), y_scale(y), look, 5))


def draw_series_names(looks_by_name: Mapping[str, MarkerStyle], right: float) -> Markup:
    """Return the names of the series, each with its marker, right of the chart."""
    drawn, top = [], float(_TOP)
    for name, look in looks_by_name.items():
        if not name:
            continue
        height = measure_series([name])
        middle = top + 8 + (height - _SERIES) / 2
        drawn.append(
            tag(
                "g",
                tag("title", name),
                marker(right + 18, middle, look, 4.6),
                name_text(right + 29, middle + 4, name),
            )
        )
        top += height
    return tag("g", drawn)


def measure_series(names: Iterable[str]) -> float:
    """Return the height of the names of series."""
    return sum(_SERIES + LINE * (len(name_lines(name)) - 1) for name in names if name)
