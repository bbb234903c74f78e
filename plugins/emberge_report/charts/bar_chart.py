"""Bar charts of numbers at named places, such as a histogram; series stand side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from emberge_report.charts.heat_map import digits_of, formatted
from emberge_report.charts.line_chart import BOTTOM, HEIGHT, LEFT, TOP, WIDTH, Chart, draw_axes
from emberge_report.charts.markup import Markup, tag
from emberge_report.charts.point_chart import draw_series_names, measure_series
from emberge_report.charts.svg import NAME_WIDTH, MarkerStyle, Scale, looks

_LETTER_WIDTH = 6.8
_FILLED = 0.8  # share of a place that its bars fill
_WIDEST = 64.0  # of a bar, where there are few places


def bar_chart(
    x: str, y: str, labels: Sequence[str], series: Mapping[str, Sequence[float | None]]
) -> Markup:
    """Return a chart with a group of bars at each label, `WIDTH` units wide; bars begin at 0."""
    right = WIDTH - 24 - 16 - _LETTER_WIDTH * min(NAME_WIDTH, max(map(len, series)))
    numbers = [value for values in series.values() for value in values if value is not None]
    low, high = min([0.0, *numbers]), max([0.0, *numbers])
    top = high + 0.06 * (high - low) or 1.0
    x_scale = Scale(-0.5, len(labels) - 0.5, LEFT, right)
    up = Scale(low, top, HEIGHT - BOTTOM, TOP)
    styles, scales, digits = looks(series), (x_scale, up), digits_of(max(high, -low))
    filled = min(_FILLED, _WIDEST * len(series) * len(labels) / (right - LEFT))
    bars = [
        _draw_bar(
            f"{name}, {labels[place]}: {formatted(value, digits)}",
            value,
            _find_sides(place, i, filled, len(series)),
            scales,
            look,
        )
        for i, (name, look) in enumerate(styles.items())
        for place, value in enumerate(series[name])
        if value is not None
    ]
    height = max(HEIGHT, TOP + measure_series(series))
    label = f"Bars of {y} over {x}: {', '.join(series)}"
    return tag(
        "svg",
        draw_axes(x_scale, up, Chart(label=label, x=x, y=y, labels=labels)),
        tag("g", bars),
        draw_series_names(styles, right),
        viewBox=f"0 0 {WIDTH} {height:g}",
        class_="lines",
        role="img",
        aria_label=label,
    )


def _find_sides(place: int, series: int, filled: float, count: int) -> tuple[float, float]:
    """Return the left and right side of a series' bar, in units of places; `filled` is all bars' share."""
    left = place - filled / 2 + series * filled / count
    return left, left + filled / count


def _draw_bar(
    title: str,
    value: float,
    sides: tuple[float, float],
    scales: tuple[Scale, Scale],
    look: MarkerStyle,
) -> Markup:
    x_scale, y_scale = scales
    left, right = map(x_scale, sides)
    upper, lower = sorted((y_scale(value), y_scale(0.0)))
    box = {"x": left, "y": upper, "width": right - left, "height": lower - upper}
    return tag("g", tag("title", title), tag("rect", class_=f"mark {look.style}", **box))
