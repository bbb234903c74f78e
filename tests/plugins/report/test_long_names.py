"""Names of models in charts are whole, however long, and what is drawn of few places stays small."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from importlib.resources import files
from typing import Any
from xml.etree import ElementTree

import pytest
from emberge_report.charts.dot_chart import Dot, dot_chart
from emberge_report.charts.heat_map import heat_map
from emberge_report.charts.line_chart import Chart, Line, line_chart
from emberge_report.charts.svg import looks, name_lines
from emberge_report.charts.tree_chart import tree_chart

STEM = "sentence-transformers/paraphrase-multilingual-MiniLM-L12-v2-merged-with-legal-and-"
NAMES = [f"{STEM}faq", f"{STEM}code", "short"]
LETTER = 6.8  # pixels of a letter, about


def dots(names: list[str]) -> Any:
    rows = [
        Dot(n, look, 50.0 + i, 49.0, 52.0, label="50.00")
        for i, (n, look) in enumerate(looks(names).items())
    ]
    return dot_chart(rows, label="faq", span=3.0)


def lines(names: list[str]) -> Any:
    drawn = [Line(n, look, [(0, 1.0), (9, 1.0)]) for n, look in looks(names).items()]
    return line_chart(drawn, Chart("loss", "step", "loss"))


CHARTS: dict[str, Callable[[list[str]], Any]] = {
    "dots": dots,
    "lines": lines,
    "map": lambda names: heat_map(names, names, [[1.0, 2.0, 3.0]] * 3),
    "tree": lambda names: tree_chart("d", names, [(0, 1, 0.5), (3, 2, 0.9)], "tree"),
}


def written(svg: ElementTree.Element) -> dict[str, list[tuple[float, float, str, str]]]:
    """The lines of each text: (x, y, words, where x is), by the whole text."""
    found: dict[str, list[tuple[float, float, str, str]]] = {}
    for element in svg.iter("text"):
        anchor = element.get("text-anchor", "start")
        placed = list(element.iter("tspan")) or [element]
        found["".join(element.itertext())] = [
            (float(e.get("x", 0)), float(e.get("y", 0)), e.text or "", anchor)
            for e in placed
            if not element.get("transform")
        ]
    return found


@pytest.mark.parametrize("chart", CHARTS)
def test_a_name_is_written_whole_and_inside_its_chart(chart: str) -> None:
    svg = ElementTree.fromstring(str(CHARTS[chart](NAMES)))
    width, height = (float(n) for n in str(svg.get("viewBox")).split()[2:])
    texts = written(svg)
    assert texts.keys() >= set(NAMES)
    for name in NAMES:
        for x, y, words, anchor in texts[name]:
            assert 0 < y <= height
            long = LETTER * len(words)
            left = {"start": x, "middle": x - long / 2, "end": x - long}[anchor]
            assert left >= -1
            assert left + long <= width + 4


@pytest.mark.parametrize("chart", ["dots", "lines", "tree"])
def test_lines_of_names_do_not_meet(chart: str) -> None:
    texts = written(ElementTree.fromstring(str(CHARTS[chart](NAMES))))
    heights = sorted(y for name in NAMES for _, y, _, _ in texts[name])
    assert min(b - a for a, b in itertools.pairwise(heights)) >= 12.9


def test_a_long_name_is_above_its_dot_and_a_short_one_beside_it() -> None:
    for names, above in ((NAMES, True), (["short", "shorter"], False)):
        svg = ElementTree.fromstring(str(dots(names)))
        texts, markers = written(svg), [g for g in svg.iter("g") if g.find("title") is not None]
        for name, group in zip(names, markers, strict=True):
            whisker = next(e for e in group.iter("line"))
            lowest = max(y for _, y, _, _ in texts[name])
            assert (lowest < float(str(whisker.get("y1"))) - 4) == above


def test_a_name_is_broken_after_a_separator_and_nothing_of_it_is_lost() -> None:
    for name in (*NAMES, "x" * 100, "", "a/" * 50):
        for width in (5, 24, 40):
            found = name_lines(name, width)
            assert "".join(found) == name
            assert max(map(len, found)) <= width
    assert name_lines(NAMES[0], 50) == [
        "sentence-transformers/paraphrase-multilingual-",
        "MiniLM-L12-v2-merged-with-legal-and-faq",
    ]


def test_a_table_is_as_wide_as_what_it_has() -> None:
    style = files("emberge_report").joinpath("page/style.css").read_text("utf-8")
    (rule,) = re.findall(r"^table \{(.*)\}", style, re.MULTILINE)
    assert "width" not in rule
