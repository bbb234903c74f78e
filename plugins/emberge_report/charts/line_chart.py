"""Line charts over steps or layers, with names at the lines' ends."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from emberge_report.charts.markup import Markup, tag
from emberge_report.charts.svg import (
    LINE,
    NAME_WIDTH,
    MarkerStyle,
    Scale,
    count_lines,
    marker,
    name_text,
    number,
    short,
    text,
    ticks,
)

# Points (x, y) in order of x.
Curve = Sequence[tuple[float, float]]
# Points of a curve at most.
POINTS = 400

WIDTH, HEIGHT = 1040, 300
LEFT, TOP, BOTTOM = 56, 22, 40


@dataclass(frozen=True, slots=True)
class Line:
    """Named line through points (x, y); `faint` are the raw numbers behind a smoothed one.

    `breaks` are indexes in `points` before which the line is interrupted. `end` is the point next to the
    line's name (default: the last point). `bars` are intervals (x, low, high) around points. A `dashed` line
    is a constant level for comparison.
    """

    name: str
    look: MarkerStyle
    points: Curve
    faint: Curve = ()
    breaks: frozenset[int] = frozenset()
    dots: bool = False
    end: int = -1
    bars: Sequence[tuple[float, float, float]] = ()
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class Chart:
    """Labels of the axes. `labels` names the places 0, 1, 2… of the x axis instead of numbers."""

    label: str
    x: str
    y: str
    labels: Sequence[str] = ()
    from_zero: bool = False
    unit: str = ""
    extra: Sequence[float] = field(default=())


def line_chart(lines: Sequence[Line], chart: Chart) -> Markup:
    """Return the chart, `WIDTH` × `HEIGHT` units wide."""
    name_width = min(NAME_WIDTH, max([len(line.name) for line in lines], default=0))
    right = WIDTH - 24 - 6.8 * name_width
    x = Scale(*_find_x_range(lines, chart), LEFT, right)
    y = Scale(*_find_y_range(lines, chart), HEIGHT - BOTTOM, TOP)
    parts = [draw_axes(x, y, chart)]
    for line in lines:
        parts += (
            [_draw_path(thin(line.faint), x, y, f"raw {line.look.style}")] if line.faint else []
        )
    for line in lines:
        points = line.points if line.dots else thin(line.points)
        parts += [_draw_bar(bar, x, y, line.look) for bar in line.bars]
        style = f"{'level' if line.dashed else 'line'} {line.look.style}"
        parts.append(_draw_path(points, x, y, style, line.breaks))
        if line.dots:
            parts.append(tag("g", [marker(x(a), y(b), line.look, 3.6) for a, b in points]))
    parts.append(_draw_names(lines, x, y))
    box = f"0 0 {WIDTH} {HEIGHT}"
    return tag("svg", *parts, viewBox=box, class_="lines", role="img", aria_label=chart.label)


def _find_x_range(lines: Sequence[Line], chart: Chart) -> tuple[float, float]:
    if chart.labels:
        return -0.3, len(chart.labels) - 0.7
    xs = [a for line in lines for a, _ in (*line.points, *line.faint)]
    return (min(xs), max(xs)) if xs else (0.0, 1.0)


def _find_y_range(lines: Sequence[Line], chart: Chart) -> tuple[float, float]:
    ys = [b for line in lines for _, b in (*line.points, *line.faint) if math.isfinite(b)]
    ys += [end for line in lines for _, *ends in line.bars for end in ends]
    low, high = (min(ys), max(ys)) if ys else (0.0, 1.0)
    if chart.from_zero:
        low = min(low, 0.0)
    margin = (high - low) * 0.06 or abs(high) * 0.1 or 1.0
    return (low if chart.from_zero and low == 0 else low - margin), high + margin


def draw_axes(x: Scale, y: Scale, chart: Chart) -> Markup:
    """Return both axes with ticks, grid lines and labels."""
    return tag("g", _draw_y_axis(y, x.end, chart), _draw_x_axis(x, chart))


def _draw_y_axis(y: Scale, right: float, chart: Chart) -> Markup:
    marks = y.ticks(5)
    rows = [
        (
            tag("line", class_="grid", x1=LEFT, x2=right, y1=y(t), y2=y(t)),
            text(LEFT - 8, y(t) + 4, number(t, marks) + chart.unit, "tick", "end"),
        )
        for t in marks
    ]
    return tag("g", rows, text(0, 11, chart.y, "axis"), aria_hidden="true")


def _draw_x_axis(x: Scale, chart: Chart) -> Markup:
    base = HEIGHT - BOTTOM
    if chart.labels:
        label_step = max(1, math.ceil(len(chart.labels) * 46 / (x.end - x.start)))
        shown_labels = [
            (i, name)
            for i, name in enumerate(chart.labels)
            if _is_label_shown(i, label_step, chart)
        ]
        marks = [
            text(x(i), base + 16, short(name, 11), "tick", "middle") for i, name in shown_labels
        ]
    else:
        places = ticks(x.low, x.high, 8)
        marks = [text(x(t), base + 16, number(t, places), "tick", "middle") for t in places]
    line = tag("line", class_="axis-line", x1=x.start, x2=x.end, y1=base, y2=base)
    name = text((x.start + x.end) / 2, HEIGHT - 6, chart.x, "axis", "middle")
    return tag("g", line, marks, name, aria_hidden="true")


def _is_label_shown(position: int, label_step: int, chart: Chart) -> bool:
    """Return whether a label is shown: all words (embeddings, final), and every `label_step`-th number."""
    label = chart.labels[position]
    return not label.isdecimal() or int(label) % label_step == 0


def _draw_path(
    points: Curve, x: Scale, y: Scale, style: str, breaks: frozenset[int] = frozenset()
) -> Markup:
    steps: list[str] = []
    pen_up = True
    for i, (a, b) in enumerate(points):
        if not math.isfinite(b):
            pen_up = True
            continue
        steps.append(f"{'M' if pen_up or i in breaks else 'L'}{x(a):.1f} {y(b):.1f}")
        pen_up = False
    return tag("path", class_=style, d="".join(steps) or "M0 0")


def _draw_bar(bar: tuple[float, float, float], x: Scale, y: Scale, look: MarkerStyle) -> Markup:
    at, low, high = bar
    style = f"whisker {look.style}"
    return tag("line", class_=style, x1=x(at), x2=x(at), y1=y(low), y2=y(high))


def _draw_names(lines: Sequence[Line], x: Scale, y: Scale) -> Markup:
    """Return each line's name at the height of its end, right of the chart, moved apart if they overlap."""
    ends = [(line, last) for line in lines if (last := _find_end(line)) is not None]
    ends.sort(key=lambda end: y(end[1][1]))
    gap = 15 + LINE * (count_lines(line.name for line, _ in ends) - 1)
    heights = _spread_heights([y(b) for _, (_, b) in ends], gap, TOP, HEIGHT - BOTTOM)
    parts = []
    for (line, (a, b)), height in zip(ends, heights, strict=True):
        points = f"M{x(a) + 5:.1f} {y(b):.1f}L{x.end + 6:.1f} {height:.1f}"
        parts += [
            tag("path", class_=f"leader {line.look.style}", d=points),
            marker(x.end + 12, height, line.look, 4),
            tag(
                "g",
                tag("title", line.name),
                name_text(x.end + 22, height + 4, line.name),
            ),
        ]
    return tag("g", parts)


def _find_end(line: Line) -> tuple[float, float] | None:
    """Return the point next to which the name is written: `end`, or the last finite point."""
    if line.points and math.isfinite(line.points[line.end][1]):
        return line.points[line.end]
    return next(((a, b) for a, b in reversed(line.points) if math.isfinite(b)), None)


def _spread_heights(heights: Sequence[float], gap: float, top: float, bottom: float) -> list[float]:
    """Return sorted heights, moved as little as two sweeps need for `gap` between neighbours."""
    spread_heights: list[float] = []
    for height in heights:
        spread_heights.append(
            max(height, spread_heights[-1] + gap) if spread_heights else max(height, top)
        )
    limit = max(bottom, top + gap * (len(spread_heights) - 1))
    for i in range(len(spread_heights) - 1, -1, -1):
        spread_heights[i] = min(spread_heights[i], limit)
        limit = spread_heights[i] - gap
    return spread_heights


def smooth(curve: Curve, share: float = 1 / 3) -> Curve:
    """Return a smoothed line through noisy numbers, by local linear regression (Cleveland, 1979).

    A `share` of the curve's points, at least nine, are neighbours of each point, and nearer neighbours weigh
    more. Points at the ends of the curve have equally many neighbours, on one side. Numbers that are not
    finite are omitted, and long curves are thinned first.
    """
    points = thin([(a, b) for a, b in curve if math.isfinite(b)])
    neighbour_count = max(9, round(len(points) * share))
    last = max(0, len(points) - neighbour_count)
    return [
        (at, _fit_line(points[start : start + neighbour_count], at))
        for i, (at, _) in enumerate(points)
        for start in [min(max(0, i - neighbour_count // 2), last)]
    ]


def _fit_line(neighbours: Curve, at: float) -> float:
    """Return the weighted least-squares line through neighbours, at `at`; weights are tricube."""
    reach = 1.001 * max(abs(a - at) for a, _ in neighbours) or 1.0
    weights = [(1 - (abs(a - at) / reach) ** 3) ** 3 for a, _ in neighbours]
    total = sum(weights)
    x = sum(w * a for w, (a, _) in zip(weights, neighbours, strict=True)) / total
    y = sum(w * b for w, (_, b) in zip(weights, neighbours, strict=True)) / total
    spread = sum(w * (a - x) ** 2 for w, (a, _) in zip(weights, neighbours, strict=True))
    if spread == 0:
        return y
    slope = (
        sum(w * (a - x) * (b - y) for w, (a, b) in zip(weights, neighbours, strict=True)) / spread
    )
    return y + slope * (at - x)


def thin(points: Curve) -> Curve:
    """Return at most `POINTS` points, each the mean of its neighbours, so that long trainings stay light."""
    if len(points) <= POINTS:
        return points
    cuts = [round(i * len(points) / POINTS) for i in range(POINTS + 1)]
    parts = [points[a:b] for a, b in pairwise(cuts)]
    return [(sum(a for a, _ in p) / len(p), sum(b for _, b in p) / len(p)) for p in parts]
