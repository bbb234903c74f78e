"""Figures that steps leave stand in a report's page, each with its words and its table."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from typing import Any

from emberge import Artifact
from emberge_report.page.figures import figure_section, read_figures

MAP = {"rows": ["a"], "columns": ["x"], "values": [[1.0]]}


def section(**more: Any) -> str:
    figure = {"title": "What <it> is", "heat_map": MAP, "caption": "So & so.", **more}
    artifact = Artifact("file", details={"figures": [figure]})
    return str(figure_section(read_figures("study", artifact)))


def test_a_figure_has_its_heading_and_caption() -> None:
    root = ElementTree.fromstring(section())
    assert next(root.iter("figcaption")).text == "So & so."
    assert next(root.iter("h3")).text == "What <it> is"


def test_a_table_stands_beside() -> None:
    table = {"title": "Numbers", "head": ["Pair", "Loss", "Who"]}
    table["rows"] = [["a + b", "\N{MINUS SIGN}1.5 %", "1: a"], ["c", "2e-05", "2: b, c"]]  # type: ignore[assignment]
    root = ElementTree.fromstring(section(table=table))
    assert [cell.text for cell in root.iter("th")] == ["Pair", "Loss", "Who", "a + b", "c"]
    assert [cell.get("class") for cell in root.iter("td")] == [None, "words"] * 2
    assert next(root.iter("summary")).text == "Numbers"


def test_a_step_without_figures_has_none() -> None:
    assert read_figures("study", Artifact("file")) == []
