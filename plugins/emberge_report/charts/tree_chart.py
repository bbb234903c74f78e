"""Tree chart of clusters with the distance at which each pair joins."""

from __future__ import annotations

from collections.abc import Sequence

from emberge_report.charts.markup import Markup, tag
from emberge_report.charts.svg import LINE, NAME_WIDTH, Scale, count_lines, name_text

# Two nodes and the distance at which they unite; a node below the number of names is a leaf, else a union.
Union = tuple[int, int, float]

WIDTH = 1040.0
_LETTER_WIDTH = 7.0
_ROW = 26.0
_TOP = 8.0
_LINE = "fill:none;stroke:var(--c1);stroke-width:2;stroke-linejoin:round"


def tree_chart(x: str, names: Sequence[str], unions: Sequence[Union], label: str) -> Markup:
    """Return the tree, names on the left in their order and distances to the right; `label` describes it."""
    left = min(NAME_WIDTH, max(map(len, names))) * _LETTER_WIDTH + 18
    row = max(_ROW, LINE * count_lines(names) + 6)
    x_scale = Scale(*_find_span([height for *_, height in unions]), left, WIDTH - 60)
    bottom = _TOP + row * len(names)
    # Where the line of each node begins: (x, y).
    at = [(left, _TOP + row * (i + 0.5)) for i in range(len(names))]
    parts = [_draw_axis(x_scale, bottom)]
    parts += [
        name_text(left - 8, y + 4, name, anchor="end")
        for name, (_, y) in zip(names, at, strict=True)
    ]
    for first, second, height in unions:
        (x1, y1), (x2, y2), end = at[first], at[second], x_scale(height)
        middle = (y1 + y2) / 2
        at.append((end, middle))
        path = f"M{x1:.1f} {y1:.1f}H{end:.1f}V{y2:.1f}H{x2:.1f}"
        parts.append(tag("path", d=path, style=_LINE))
        parts.append(_draw_text(end + 5, middle - 5, f"{height:.3g}", "tick"))
    axis = _draw_text((left + WIDTH - 60) / 2, bottom + 34, x, "axis", "middle")
    box = f"0 0 {WIDTH:g} {bottom + 44:g}"
    return tag("svg", *parts, axis, viewBox=box, role="img", aria_label=label)


def _find_span(heights: Sequence[float]) -> tuple[float, float]:
    """Return the ends of the axis: from 0, unless all distances are far from it."""
    low, high = min(heights), max(heights)
    if low > 0.5 * high:
        pad = max(high - low, 0.02 * high)
        return low - 0.25 * pad, high + 0.05 * pad
    return min(0.0, low), high * 1.04 if high > 0 else 1.0


def _draw_axis(x_scale: Scale, bottom: float) -> Markup:
    lines = [
        (
            tag("line", class_="grid", x1=x_scale(mark), x2=x_scale(mark), y1=_TOP, y2=bottom),
            _draw_text(x_scale(mark), bottom + 16, f"{mark:g}", "tick", "middle"),
        )
        for mark in x_scale.ticks(6)
    ]
    return tag("g", lines, aria_hidden="true")


def _draw_text(x: float, y: float, words: str, style: str = "", anchor: str = "") -> Markup:
    return tag("text", words, x=x, y=y, class_=style or None, text_anchor=anchor or None)
