"""Tables and small elements that several sections of a page share."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from emberge_report.charts.markup import Child, Markup, tag
from emberge_report.charts.svg import MarkerStyle, marker

MINUS = "\N{MINUS SIGN}"


def table(
    head: Sequence[Child], rows: Iterable[Sequence[Markup]], caption: str | None = None
) -> Markup:
    """Return a table with horizontal scrolling; `rows` contain finished cells."""
    headings = [cell if _is_cell(cell) else tag("th", cell, scope="col") for cell in head]
    return tag(
        "div",
        tag(
            "table",
            tag("caption", caption) if caption else None,
            tag("thead", tag("tr", headings)),
            tag("tbody", [tag("tr", list(row)) for row in rows]),
        ),
        class_="scroll",
        tabindex="0",
        role="group",
        aria_label=caption or "table",
    )


def _is_cell(cell: Child) -> bool:
    return isinstance(cell, Markup) and cell.startswith("<th")


def left(words: str) -> Markup:
    """Return the heading cell of a left-aligned column."""
    return tag("th", words, scope="col", class_="left")


def swatch(look: MarkerStyle) -> Markup:
    """Return a model's chart marker as a small inline image."""
    return tag(
        "svg", marker(6, 6, look, 4.6), viewBox="0 0 12 12", class_="swatch", aria_hidden="true"
    )


def fold(title: str, *children: Child) -> Markup:
    """Return content that is folded under a title."""
    return tag("details", tag("summary", title), *children)


def fact(value: str, words: str, *, is_text: bool = False) -> Markup:
    """Return one of the large facts at the top of the page."""
    return tag(
        "div",
        tag("b", value, class_="words" if is_text else None),
        tag("span", words),
        class_="fact",
    )


def warning(*children: Child) -> Markup:
    """Return a highlighted warning."""
    return tag("p", *children, class_="warning")


def points(share: float | None, less: bool = False) -> str:
    """Return a score × 100 with two decimals; a loss (`less`) is not multiplied."""
    if share is None:
        return "–"
    return (f"{share:.3f}" if less else f"{100 * share:.2f}").replace("-", MINUS)


def signed(share: float, less: bool = False) -> str:
    """Return a difference of scores, ×100, or of losses, with its sign."""
    text = f"{share:+.3f}" if less else f"{100 * share:+.2f}"
    return text[1:] if float(text) == 0 else text.replace("-", MINUS)


def duration(seconds: Any) -> str:
    """Return a duration as text, such as `2 h 05 min`."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        return "–"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, seconds_left = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {seconds_left:02} s"


def plain(value: Any) -> str:
    """Return a value of an artifact as one line of YAML."""
    if value is None:
        return "–"
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {_format_inside(item)}" for key, item in value.items())
    if isinstance(value, Sequence):
        return ", ".join(_format_inside(item) for item in value)
    return json.dumps(value, default=str)


def _format_inside(value: Any) -> str:
    nested = isinstance(value, Mapping) or (
        isinstance(value, Sequence) and not isinstance(value, str)
    )
    return f"({plain(value)})" if nested else plain(value)
