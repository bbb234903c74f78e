"""SVG files that steps leave, as elements of a page."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from pathlib import Path

from emberge import DataError

from emberge_report.charts.markup import Markup, tag

# What a drawing may be made of: shapes and words, nothing that runs or loads.
_SHAPES = frozenset(
    {
        *("svg", "g", "title", "desc", "text", "tspan"),
        *("path", "line", "polyline", "polygon", "rect", "circle", "ellipse"),
    }
)


def read_svg(path: Path) -> Markup:
    """Return an SVG file as an element of the page, without names of its own for colours.

    Raises:
        DataError: for a file that is missing, or no SVG.
    """
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
