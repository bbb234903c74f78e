"""Drawings that steps leave stand in a report's page, and bring nothing else with them."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
from emberge import Artifact, DataError
from emberge_report.page.figures import figure_section, read_figures

SVG = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 10 10" role="img" aria-label="A &amp; b">
<style>svg { --ink: red; }</style>
<script>alert(1)</script>
<g id="x" onclick="alert(1)"><rect width="3" height="4" rx="2" style="fill:var(--c0)"/>
<text x="1" y="2" text-anchor="end" class="tick">one &lt; two</text></g>
<image href="http://a.b/c.png"/><rect style="fill:url(#x)" width="1" height="1"/></svg>
"""


def section(folder: Path, drawing: str = SVG, **more: Any) -> str:
    (folder / "d.svg").write_text(drawing, encoding="utf-8")
    told = {"title": "What <it> is", "file": "d.svg", "caption": "So & so.", **more}
    artifact = Artifact("file", details={"figures": [told]})
    return str(figure_section(read_figures("study", folder, artifact)))


def test_a_drawing_is_an_element_of_the_page(tmp_path: Path) -> None:
    root = ElementTree.fromstring(section(tmp_path))
    svg = next(root.iter("svg"))
    assert svg.attrib == {"viewBox": "0 0 10 10", "role": "img", "aria-label": "A & b"}
    words = next(svg.iter("text"))
    assert words.attrib == {"x": "1", "y": "2", "text-anchor": "end", "class": "tick"}
    assert words.text == "one < two"
    assert next(svg.iter("rect")).get("style") == "fill:var(--c0)"
    assert next(root.iter("figcaption")).text == "So & so."
    assert next(root.iter("h3")).text == "What <it> is"


def test_a_drawing_brings_nothing_that_runs_or_loads_or_has_a_name(tmp_path: Path) -> None:
    page = section(tmp_path)
    tags = {element.tag for element in ElementTree.fromstring(page).iter()}
    assert not tags & {"script", "style", "image"}
    assert not re.search(r"alert|https?:|url\(|onclick|id=|--ink: red", page)


def test_a_table_stands_beside(tmp_path: Path) -> None:
    table = {"title": "Numbers", "head": ["Pair", "Loss", "Who"]}
    table["rows"] = [["a + b", "\N{MINUS SIGN}1.5 %", "1: a"], ["c", "2e-05", "2: b, c"]]  # type: ignore[assignment]
    root = ElementTree.fromstring(section(tmp_path, table=table))
    assert [cell.text for cell in root.iter("th")] == ["Pair", "Loss", "Who", "a + b", "c"]
    assert [cell.get("class") for cell in root.iter("td")] == [None, "words"] * 2
    assert next(root.iter("summary")).text == "Numbers"


@pytest.mark.parametrize("drawing", ["<svg", "<html/>", ""])
def test_what_is_no_drawing_is_refused_by_name(drawing: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"d\.svg is no"):
        section(tmp_path, drawing)


def test_a_step_without_figures_has_none(tmp_path: Path) -> None:
    assert read_figures("study", tmp_path, Artifact("file")) == []
