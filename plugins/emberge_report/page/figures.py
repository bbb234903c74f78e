"""Drawings that steps leave, put into a page with their captions and tables."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from emberge import DataError

from emberge_report.charts.markup import Markup, tag
from emberge_report.page.tables import fold, left, table

if TYPE_CHECKING:
    from emberge import Artifact

__all__ = ["Figure", "figure_section", "read_figures"]

_NUMBER = re.compile(r"[-+\N{MINUS SIGN}]?[\d.,]*(e[-+]\d+)?( ?%)?|–")
# What a drawing may be made of: shapes and words, nothing that runs or loads.
_SHAPES = frozenset(
    {
        *("svg", "g", "title", "desc", "text", "tspan"),
        *("path", "line", "polyline", "polygon", "rect", "circle", "ellipse"),
    }
)


@dataclass(frozen=True)
class Figure:
    """Drawing with its heading, its caption, and a table beside: a title, a head, and rows of text."""

    title: str
    drawing: Markup
    caption: str = ""
    table_title: str = ""
    head: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()


def read_figures(folder: Path, artifact: Artifact) -> list[Figure]:
    """Return the figures that an artifact names in `details["figures"]`, in order.

    Each is a mapping with the `file` of an SVG beside the artifact, `title`, `caption`, and a `table` of
    `title`, `head` and `rows`. A page's colours are the style sheet's: `var(--ink)`, `var(--c0)` and so on.

    Raises:
        DataError: for a drawing that cannot be read.
    """
    entries = artifact.details.get("figures", ())
    return [_figure(folder, one) for one in entries if isinstance(one, Mapping) and "file" in one]


def _figure(folder: Path, entry: Mapping[str, Any]) -> Figure:
    beside = entry.get("table") or {}
    return Figure(
        title=str(entry.get("title", "")),
        drawing=_drawing(folder / str(entry["file"])),
        caption=str(entry.get("caption", "")),
        table_title=str(beside.get("title", "The numbers behind the figure")),
        head=[str(word) for word in beside.get("head", ())],
        rows=[[str(word) for word in row] for row in beside.get("rows", ())],
    )


def _drawing(path: Path) -> Markup:
    """Return an SVG file as an element of the page, without names of its own for colours."""
    try:
        root = ElementTree.fromstring(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, ElementTree.ParseError) as error:
        raise DataError(f"{path.name} is no drawing that a report can show: {error}") from None
    if _local(root) != "svg":
        raise DataError(f"{path.name} is no SVG: it begins with <{_local(root)}>")
    return _element(root)


def _element(found: ElementTree.Element) -> Markup:
    inside: list[str | Markup | None] = [found.text]
    for child in found:
        if _local(child) in _SHAPES:
            inside.append(_element(child))
        inside.append(child.tail)
    attributes = {_word(key): value for key, value in found.attrib.items() if _harmless(key, value)}
    return tag(_local(found), *_spaceless(inside), **attributes)


def _spaceless(children: Sequence[str | Markup | None]) -> list[str | Markup | None]:
    return [child for child in children if child is not None and child.strip()]


def _local(element: ElementTree.Element) -> str:
    return str(element.tag).rpartition("}")[2]


def _word(name: str) -> str:
    # `tag` turns underscores into hyphens, and takes attributes that are words of Python with one behind.
    return name.rpartition("}")[2].replace("-", "_") + "_"


def _harmless(name: str, value: str) -> bool:
    local = name.rpartition("}")[2].lower()
    return not (local.startswith("on") or local in ("href", "src", "id") or "url(" in value.lower())


def figure_section(figures: Sequence[Figure]) -> Markup:
    """Return a step's figures under one another."""
    return tag("div", [_shown(figure) for figure in figures])


def _shown(figure: Figure) -> Markup:
    caption = tag("figcaption", figure.caption) if figure.caption else None
    return tag(
        "div",
        tag("h3", figure.title) if figure.title else None,
        tag("figure", figure.drawing, caption),
        _table(figure),
    )


def _table(figure: Figure) -> Markup | None:
    if not figure.rows:
        return None
    rows = [
        [tag("th", first, scope="row"), *(tag("td", word, class_=_class(word)) for word in rest)]
        for first, *rest in figure.rows
    ]
    head = [left(word) if _wordy(figure, i) else word for i, word in enumerate(figure.head)]
    return fold(figure.table_title, table(head, rows, figure.table_title))


def _wordy(figure: Figure, column: int) -> bool:
    return any(_class(row[column]) for row in figure.rows if column < len(row))


def _class(word: str) -> str | None:
    """Return the style of a cell: words to the left, numbers to the right."""
    return None if _NUMBER.fullmatch(word) else "words"
