"""Figures of steps, put into a page with their captions and tables."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from emberge import DataError

from emberge_report.charts.bar_chart import bar_chart
from emberge_report.charts.heat_map import heat_map
from emberge_report.charts.line_chart import Chart, Line, line_chart
from emberge_report.charts.markup import Markup, tag
from emberge_report.charts.point_chart import point_chart
from emberge_report.charts.svg import looks
from emberge_report.charts.tree_chart import tree_chart
from emberge_report.page.figure_data import FigureData, LinesData, TableData, figure_data
from emberge_report.page.tables import fold, left, table

if TYPE_CHECKING:
    from emberge import Artifact


_NUMBER = re.compile(r"[-+\N{MINUS SIGN}]?[\d.,]*(e[-+]\d+)?( ?%)?|–")


@dataclass(frozen=True)
class Figure:
    """Drawing with its heading, caption and table: a title, a head, and rows of text."""

    title: str
    drawing: Markup
    caption: str = ""
    table_title: str = ""
    head: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()


def read_figures(step: str, folder: Path, artifact: Artifact) -> list[Figure]:
    """Return the figures that a step's artifact has in `details["figures"]`, in order.

    A file uses the page's colours by the names of the style sheet: `var(--ink)`, `var(--c0)` and so on. If
    data has no table, one of its numbers is added.

    Raises:
        DataError: if a figure is invalid, or a drawing cannot be read.
    """
    entries = figure_data(step, artifact.details.get("figures", ()))
    try:
        return [figure_of(entry, folder) for entry in entries]
    except DataError as error:
        raise DataError(f"'{step}': figures: {error}") from None


def figure_of(entry: FigureData, folder: Path = Path()) -> Figure:
    """Return a figure drawn from its data, or from its file in the folder.

    Raises:
        DataError: if the file cannot be read.
    """
    drawing, data_table = _draw_figure(folder, entry)
    shown_table = entry.table or data_table
    return Figure(
        title=entry.title,
        drawing=drawing,
        caption=entry.caption,
        table_title=shown_table.title,
        head=shown_table.head,
        rows=[["–" if cell is None else str(cell) for cell in row] for row in shown_table.rows],
    )


def _draw_figure(folder: Path, entry: FigureData) -> tuple[Markup, TableData]:
    """Return a figure's drawing, and the table of its data."""
    if entry.heat_map is not None:
        heat_map_data = entry.heat_map
        return heat_map(
            heat_map_data.rows, heat_map_data.columns, heat_map_data.values
        ), heat_map_data.table
    if entry.points is not None:
        points_data = entry.points
        return point_chart(points_data.x, points_data.y, points_data.series), points_data.table
    if entry.lines is not None:
        return _draw_lines(entry.title, entry.lines), entry.lines.table
    if entry.bars is not None:
        bars = entry.bars
        return bar_chart(bars.x, bars.y, bars.labels, bars.series), bars.table
    if entry.tree is not None:
        tree = entry.tree
        return tree_chart(tree.x, tree.names, tree.unions, tree.label), tree.table
    return read_svg(folder / str(entry.file)), TableData()


def _draw_lines(title: str, lines_data: LinesData) -> Markup:
    """Return a line chart over labels; a label that is a word, such as E, is not joined to the others."""
    looks_by_name = looks(lines_data.series)
    lines = []
    for name, values in lines_data.series.items():
        value_points = [(i, value) for i, value in enumerate(values) if value is not None]
        numbered = [lines_data.labels[i].isdecimal() for i, _ in value_points]
        breaks = {i for i in range(1, len(value_points)) if not (numbered[i - 1] and numbered[i])}
        end = max((i for i, is_number in enumerate(numbered) if is_number), default=-1)
        points = [(float(i), value) for i, value in value_points]
        lines.append(
            Line(name, looks_by_name[name], points, breaks=frozenset(breaks), dots=True, end=end)
        )
    return line_chart(
        lines, Chart(label=title, x=lines_data.x, y=lines_data.y, labels=lines_data.labels)
    )


def figure_section(figures: Sequence[Figure]) -> Markup:
    """Return a section with all figures of a step."""
    return tag("div", [_show_figure(figure) for figure in figures])


def _show_figure(figure: Figure) -> Markup:
    caption = tag("figcaption", figure.caption) if figure.caption else None
    return tag(
        "div",
        tag("h3", figure.title) if figure.title else None,
        tag("figure", figure.drawing, caption),
        _draw_table(figure),
    )


def _draw_table(figure: Figure) -> Markup | None:
    if not figure.rows:
        return None
    rows = [
        [
            tag("th", first, scope="row"),
            *(tag("td", word, class_=_choose_cell_style(word)) for word in other_cells),
        ]
        for first, *other_cells in figure.rows
    ]
    head = [left(word) if _has_words(figure, i) else word for i, word in enumerate(figure.head)]
    return fold(figure.table_title, table(head, rows, figure.table_title))


def _has_words(figure: Figure, column: int) -> bool:
    return any(_choose_cell_style(row[column]) for row in figure.rows if column < len(row))


def _choose_cell_style(word: str) -> str | None:
    """Return the style of a cell: words to the left, numbers to the right."""
    return None if _NUMBER.fullmatch(word) else "words"


# Elements that a drawing may have: shapes and words, but no element that runs code or loads files.
_SHAPES = frozenset(
    {
        *("svg", "g", "title", "desc", "text", "tspan"),
        *("path", "line", "polyline", "polygon", "rect", "circle", "ellipse"),
    }
)


def read_svg(path: Path) -> Markup:
    """Return an SVG file as an element of the page.

    Raises:
        DataError: if the file is missing, or not an SVG.
    """
    try:
        root = ElementTree.fromstring(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, ElementTree.ParseError) as error:
        raise DataError(f"{path.name} is no drawing that a report can show: {error}") from None
    if _take_local_name(root) != "svg":
        raise DataError(f"{path.name} is no SVG: it begins with <{_take_local_name(root)}>")
    return _copy_element(root)


def _copy_element(element: ElementTree.Element) -> Markup:
    children: list[str | Markup | None] = [element.text]
    for child in element:
        if _take_local_name(child) in _SHAPES:
            children.append(_copy_element(child))
        children.append(child.tail)
    attributes = {
        _name_attribute(key): value
        for key, value in element.attrib.items()
        if _is_harmless(key, value)
    }
    return tag(_take_local_name(element), *_drop_spaces(children), **attributes)


def _drop_spaces(children: Sequence[str | Markup | None]) -> list[str | Markup | None]:
    return [child for child in children if child is not None and child.strip()]


def _take_local_name(element: ElementTree.Element) -> str:
    return str(element.tag).rpartition("}")[2]


def _name_attribute(name: str) -> str:
    # `tag` turns underscores into hyphens, and takes attributes that are words of Python with one behind.
    return name.rpartition("}")[2].replace("-", "_") + "_"


def _is_harmless(name: str, value: str) -> bool:
    local = name.rpartition("}")[2].lower()
    return not (local.startswith("on") or local in ("href", "src", "id") or "url(" in value.lower())
