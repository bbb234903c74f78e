"""A drawing of a study's tree: at which distance its clusters unite."""

from __future__ import annotations

import math
from html import escape

from emberge_boom.study.study import Study
from emberge_boom.study.tree import leaves

WIDTH = 1040.0
_NAME = 22
_LETTER = 7.0
_ROW = 26.0
_TOP = 8.0
_LINE = "fill:none;stroke:var(--c1);stroke-width:2;stroke-linejoin:round"


def dendrogram(study: Study) -> str:
    """Draw the tree as SVG, leaves on the left, distances to the right."""
    order = leaves(study.tree)
    names = [study.names[leaf] for leaf in order]
    left = min(_NAME, max(map(len, names))) * _LETTER + 18
    low, high = _span(study.heights)
    bottom = _TOP + _ROW * len(names)

    def across(height: float) -> float:
        return left + (height - low) / (high - low) * (WIDTH - left - 60)

    # Where each cluster's line begins: (x, y).
    at = {leaf: (left, _TOP + _ROW * (i + 0.5)) for i, leaf in enumerate(order)}
    parts = [_axis(low, high, bottom, across(low), across(high))]
    parts += [
        text(left - 8, y + 4, short(name, _NAME), text_anchor="end")
        for name, (_, y) in zip(names, (at[leaf] for leaf in order), strict=True)
    ]
    for number, (first, second, height, _) in enumerate(study.tree):
        (x1, y1), (x2, y2), x = at[first], at[second], across(height)
        at[len(names) + number] = (x, (y1 + y2) / 2)
        path = f"M{x1:.1f} {y1:.1f}H{x:.1f}V{y2:.1f}H{x2:.1f}"
        parts.append(element("path", d=path, style=_LINE))
        parts.append(text(x + 5, (y1 + y2) / 2 - 5, f"{height:.3g}", "tick"))
    heights = ", ".join(f"{height:.3g}" for height in study.heights)
    label = f"Tree of {len(names)} datasets, whose clusters unite at the distances {heights}"
    words = f"distance ({study.distance}, {study.linkage} linkage)"
    axis = text((left + WIDTH - 60) / 2, bottom + 34, words, "axis", text_anchor="middle")
    return drawing(WIDTH, bottom + 44, label, *parts, axis)


def _span(heights: tuple[float, ...]) -> tuple[float, float]:
    """Return the ends of the axis: from 0, unless all distances are far from it."""
    low, high = min(heights), max(heights)
    if low > 0.5 * high:
        pad = max(high - low, 0.02 * high)
        return low - 0.25 * pad, high + 0.05 * pad
    return min(0.0, low), high * 1.04 if high > 0 else 1.0


def _axis(low: float, high: float, bottom: float, start: float, end: float) -> str:
    marks = ticks(low, high, 6)
    places = [start + (mark - low) / (high - low) * (end - start) for mark in marks]
    lines = [
        element("line", class_="grid", x1=x, x2=x, y1=_TOP, y2=bottom)
        + text(x, bottom + 16, f"{mark:g}", "tick", text_anchor="middle")
        for mark, x in zip(marks, places, strict=True)
    ]
    return element("g", *lines, aria_hidden="true")


# For a file that is opened by itself. A page that takes the drawing in has these names of its own.
STYLE = """
svg { color-scheme: light dark; background: var(--paper); font: 12px system-ui, sans-serif;
  --paper: #fff; --ink: #1b1f24; --soft: #57606a; --grid: #e7ebef; --c1: #0067ac; }
@media (prefers-color-scheme: dark) { svg {
  --paper: #14171b; --ink: #e8ebef; --soft: #9aa5b1; --grid: #282e36; --c1: #5aaef0; } }
svg text { fill: var(--ink); font-variant-numeric: tabular-nums; }
svg .tick, svg .axis { fill: var(--soft); font-size: 11.5px; }
.grid { stroke: var(--grid); stroke-width: 1; }
"""


def element(name: str, *children: str, **attributes: str | float | None) -> str:
    """Return one element; children are markup already, and attribute names change `_` to `-`."""
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(_attribute_text(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return f"<{name}{given}>{''.join(children)}</{name}>" if children else f"<{name}{given}/>"


def text(x: float, y: float, words: str, kind: str = "", **more: str | float | None) -> str:
    """Return words at a baseline; `kind` is a class of the style sheet."""
    return element("text", escape(words, quote=False), x=x, y=y, class_=kind or None, **more)


def drawing(width: float, height: float, label: str, *parts: str) -> str:
    """Return a whole SVG file; `label` describes it in words."""
    view = {
        "viewBox": f"0 0 {_attribute_text(width)} {_attribute_text(height)}",
        "role": "img",
        "aria_label": label,
    }
    xmlns = "http://www.w3.org/2000/svg"
    return element("svg", element("style", STYLE), *parts, xmlns=xmlns, **view) + "\n"


def short(name: str, room: int) -> str:
    """Return a name cut in its middle to `room` characters: names differ at their ends."""
    if len(name) <= room:
        return name
    head = (room - 1) // 2
    return f"{name[:head]}…{name[len(name) - (room - 1 - head) :]}"


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Return round numbers, 1, 2 or 5 times a power of ten apart, from `low` to `high`, about `count`."""
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = power * next(m for m in (1, 2, 5, 10) if m * power >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(i * step, 12) for i in range(first, last + 1)]


def _attribute_text(value: str | float) -> str:
    if isinstance(value, float):
        return f"{value:.2f}".rstrip("0").rstrip(".")
    return str(value)
