"""Figures of steps, put into a page with their captions and tables."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from emberge_report.charts.heat_map import heat_map
from emberge_report.charts.line_chart import Chart, Line, line_chart
from emberge_report.charts.markup import Markup, tag
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


def read_figures(step: str, artifact: Artifact) -> list[Figure]:
    """Return the figures that a step's artifact has in `details["figures"]`, in order.

    If data has no table, one of its numbers is added.

    Raises:
        DataError: if a figure is invalid.
    """
    entries = figure_data(step, artifact.details.get("figures", ()))
    return [figure_of(entry) for entry in entries]


def figure_of(entry: FigureData) -> Figure:
    """Return a figure drawn from its data."""
    drawing, data_table = _draw_figure(entry)
    shown_table = entry.table or data_table
    return Figure(
        title=entry.title,
        drawing=drawing,
        caption=entry.caption,
        table_title=shown_table.title,
        head=shown_table.head,
        rows=[["–" if cell is None else str(cell) for cell in row] for row in shown_table.rows],
    )


def _draw_figure(entry: FigureData) -> tuple[Markup, TableData]:
    """Return a figure's drawing, and the table of its data."""
    if entry.heat_map is not None:
        heat_map_data = entry.heat_map
        return heat_map(
            heat_map_data.rows, heat_map_data.columns, heat_map_data.values
        ), heat_map_data.table
    if entry.lines is not None:
        return _draw_lines(entry.title, entry.lines), entry.lines.table
    tree = entry.tree
    assert tree is not None  # a figure is one kind of data
    return tree_chart(tree.x, tree.names, tree.unions, tree.label), tree.table


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
