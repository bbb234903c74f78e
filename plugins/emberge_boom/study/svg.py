"""SVG drawings that work alone as files and take a page's colours inside of one."""

from __future__ import annotations

import math
from html import escape

__all__ = ["STYLE", "drawing", "element", "short", "text", "ticks"]

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
        f' {key.rstrip("_").replace("_", "-")}="{escape(_text(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return f"<{name}{given}>{''.join(children)}</{name}>" if children else f"<{name}{given}/>"


def text(x: float, y: float, words: str, kind: str = "", **more: str | float | None) -> str:
    """Return words at a baseline; `kind` is a class of the style sheet."""
    return element("text", escape(words, quote=False), x=x, y=y, class_=kind or None, **more)


def drawing(width: float, height: float, label: str, *parts: str) -> str:
    """Return a whole SVG file; `label` describes it in words."""
    view = {"viewBox": f"0 0 {_text(width)} {_text(height)}", "role": "img", "aria_label": label}
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


def _text(value: str | float) -> str:
    if isinstance(value, float):
        return f"{value:.2f}".rstrip("0").rstrip(".")
    return str(value)
