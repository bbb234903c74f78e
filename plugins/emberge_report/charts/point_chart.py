"""Scatter charts of named series with words next to points."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from emberge_report.charts.markup import Markup, tag
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
    number,
    text,
)

# A point: x, y, and words beside it or "".
Point = tuple[float, float, str]

WIDTH, HEIGHT = 1040, 400
_LEFT, _TOP, _BOTTOM = 64, 24, 44
_WORDS = 24  # characters of a line of words beside a point
_LETTER_WIDTH = 6.8
_SERIES = 20  # height of a name of one line


def point_chart(
    x: str,
    y: str,
    series: Mapping[str, Sequence[Point]],
    *,
    chosen: Mapping[str, MarkerStyle] | None = None,
    line: Sequence[tuple[float, float]] = (),
    logarithmic: bool = False,
) -> Markup:
    """Return the chart of points by series, `WIDTH` units wide; `x` and `y` are the labels of the axes.

    If words do not fit next to their point, they are only in the point's title (tooltip). Series are named on
    the right, unless their only point has the same words. `chosen` are the series' marker styles, and `line`
    is drawn through some points. With `logarithmic`, numbers of the x axis must be above 0.
    """
    style_by_name = {
        name
        for name, points_of_series in series.items()
        if [words for *_, words in points_of_series] != [name]
    }
    names = min(NAME_WIDTH, max(map(len, style_by_name), default=0))
    right = WIDTH - 24 - (_LETTER_WIDTH * names + 16 if names else 0)
    points = [point for points_of_series in series.values() for point in points_of_series]
    places = [point[0] for point in points]
    x_scale: Scale = Scale(*_find_range(places), _LEFT, right)
    if logarithmic:
        x_scale = LogScale(0.85 * min(places), max(places) / 0.85, _LEFT, right)
    height = max(HEIGHT, _TOP + _BOTTOM + measure_series(style_by_name))
    y_scale = Scale(*_find_range([p[1] for p in points]), height - _BOTTOM, _TOP)
    chosen = looks(series) if chosen is None else chosen
    marks = [
        _draw_point(name, point, x_scale, y_scale, chosen[name])
        for name, points_of_series in series.items()
        for point in points_of_series
    ]
    label = f"{y} over {x}, {len(points)} points: {', '.join(name for name in series if name)}"
    return tag(
        "svg",
        *(
            _draw_axes(x_scale, y_scale, x, y),
            _draw_line(line, x_scale, y_scale) if line else None,
            tag("g", marks),
            _draw_words(points, x_scale, y_scale),
            draw_series_names(
                {name: look for name, look in chosen.items() if name in style_by_name}, right
            ),
        ),
        viewBox=f"0 0 {WIDTH} {height:g}",
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
            text(x_scale(t), base + 16, number(t, columns), "tick", "middle"),
        )
        for t in columns
    ]
    lines += [
        (
            tag("line", class_="grid", x1=low, x2=high, y1=y_scale(t), y2=y_scale(t)),
            text(low - 8, y_scale(t) + 4, number(t, rows), "tick", "end"),
        )
        for t in rows
    ]
    axis_names = (
        text(0, 11, y, "axis"),
        text((low + high) / 2, base + _BOTTOM - 6, x, "axis", "middle"),
    )
    return tag("g", lines, axis_names, aria_hidden="true")


def _draw_line(points: Sequence[tuple[float, float]], x_scale: Scale, y_scale: Scale) -> Markup:
    corners = "L".join(f"{x_scale(x):.1f} {y_scale(y):.1f}" for x, y in points)
    return tag("path", class_="level neutral", d=f"M{corners}")


def _draw_point(
    name: str, point: Point, x_scale: Scale, y_scale: Scale, look: MarkerStyle
) -> Markup:
    x, y, words = point
    titles = dict.fromkeys(filter(None, (name, words)))
    title = ": ".join((*titles, f"{x:.6g}, {y:.6g}"))
    return tag("g", tag("title", title), marker(x_scale(x), y_scale(y), look, 5))


def _draw_words(points: Sequence[Point], x_scale: Scale, y_scale: Scale) -> Markup:
    """Return the words of points, right or left of them, where they overlap no other point or words."""
    occupied_boxes = [
        _Box(x_scale(x) - 6, y_scale(y) - 6, x_scale(x) + 6, y_scale(y) + 6) for x, y, _ in points
    ]
    words_drawn = []
    for i, (x, y, words) in enumerate(points):
        lines = name_lines(words, _WORDS)
        for anchor, at in (("start", x_scale(x) + 9), ("end", x_scale(x) - 9)):
            size = max(map(len, lines)) * _LETTER_WIDTH, len(lines) * LINE
            box = _Box.of((at, y_scale(y)), size, anchor)
            other_boxes = [*occupied_boxes[:i], *occupied_boxes[i + 1 :]]
            if (
                words
                and box.left > _LEFT
                and box.right < x_scale.end
                and not any(map(box.meets, other_boxes))
            ):
                occupied_boxes.append(box)
                words_drawn.append(
                    name_text(at, y_scale(y) + 4, words, width=_WORDS, style="tick", anchor=anchor)
                )
                break
    return tag("g", words_drawn)


@dataclass(frozen=True, slots=True)
class _Box:
    """Rectangle of words or of a marker."""

    left: float
    top: float
    right: float
    bottom: float

    @classmethod
    def of(cls, at: tuple[float, float], size: tuple[float, float], anchor: str) -> _Box:
        (x, y), (width, height) = at, size
        left = x if anchor == "start" else x - width
        return cls(left, y - height / 2, left + width, y + height / 2)

    def meets(self, other: _Box) -> bool:
        beside_each_other = self.right <= other.left or other.right <= self.left
        return not (beside_each_other or self.bottom <= other.top or other.bottom <= self.top)


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
