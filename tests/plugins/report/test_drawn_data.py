"""Figures that are data: a heat map, lines or a tree, drawn by the report in its own colours."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from itertools import pairwise
from typing import Any

import pytest
from emberge import Artifact, DataError
from emberge_report.page.figure_data import figure_data
from emberge_report.page.figures import figure_of, figure_section, read_figures
from hypothesis import given, settings
from hypothesis import strategies as st

MAP = {"rows": ["a", "b"], "columns": ["x", "y", "z"], "values": [[1, -2.5, None], [0, 5.0, 0.25]]}


def section(**figure: Any) -> ElementTree.Element:
    artifact = Artifact("file", details={"figures": [figure]})
    return ElementTree.fromstring(figure_section(read_figures("study", artifact)))


def drawn(**figure: Any) -> ElementTree.Element:
    return next(section(**figure).iter("svg"))


def cells(svg: ElementTree.Element) -> dict[str, ElementTree.Element]:
    """The groups of a drawing by their titles."""
    return {str(g.findtext("title")): g for g in svg.iter("g") if g.find("title") is not None}


def words(root: ElementTree.Element) -> list[str]:
    return ["".join(text.itertext()) for text in root.iter("text")]


# ── heat maps ───────────────────────────────────────────────────────────────────────────────────


def test_every_number_has_a_cell_with_its_names_and_a_missing_one_an_empty_cell() -> None:
    found = cells(drawn(heat_map=MAP))
    assert found.keys() == {
        "a, x: +1.000",
        "a, y: \N{MINUS SIGN}2.500",
        "a, z: no number",
        "b, x: 0",
        "b, y: +5.000",
        "b, z: +0.250",
    }
    empty = found["a, z: no number"]
    assert [(e.tag, e.get("class")) for e in empty] == [("title", None), ("rect", "empty")]
    assert words(found["b, y: +5.000"]) == ["+5.00"]
    svg = drawn(heat_map=MAP)
    assert not re.search(r"#[0-9a-f]{3,6}|rgb", ElementTree.tostring(svg, "unicode"))
    assert svg.get("role") == "img"
    label = str(svg.get("aria-label"))
    assert "+5.00 (b, y)" in label
    assert "\N{MINUS SIGN}2.50 (a, y)" in label


def opacity(cell: ElementTree.Element) -> float:
    style = str(next(cell.iter("rect")).get("style"))
    return float(style.rpartition(":")[2])


def test_both_sides_of_zero_differ_in_colour_and_sign() -> None:
    found = cells(drawn(heat_map=MAP))
    styles = {title: str(next(g.iter("rect")).get("style")) for title, g in found.items()}
    assert styles["b, y: +5.000"].startswith("fill:var(--c0)")
    assert styles["a, y: \N{MINUS SIGN}2.500"].startswith("fill:var(--c1)")
    shades = [
        opacity(found[k]) for k in ("b, x: 0", "b, z: +0.250", "a, x: +1.000", "b, y: +5.000")
    ]
    assert shades == sorted(shades)
    assert len(set(shades)) == 4


def test_numbers_of_one_sign_go_from_the_lowest_to_the_highest() -> None:
    svg = drawn(heat_map={"rows": ["w"], "columns": ["1", "2"], "values": [[0.45, 0.55]]})
    low, high = cells(svg).values()
    assert opacity(low) < 0.2 < opacity(high)
    assert {"0.450", "0.550"} <= set(words(svg))
    assert "+" not in "".join(words(svg))


@pytest.mark.parametrize(
    ("rows", "columns"), [(1, 1), (1, 300), (3, 30), (3, 60), (40, 300), (150, 1), (150, 60)]
)
def test_maps_of_any_size_stay_in_their_box_and_names_apart(rows: int, columns: int) -> None:
    names = [f"a rather long name of a dataset {i}" for i in range(columns)]
    values = [[(i * j) % 7 / 7 for j in range(columns)] for i in range(rows)]
    svg = drawn(
        heat_map={"rows": [str(i) for i in range(rows)], "columns": names, "values": values}
    )
    width, height = (float(v) for v in str(svg.get("viewBox")).split()[2:])
    for rect in svg.iter("rect"):
        x, y, w, h = (float(str(rect.get(k))) for k in ("x", "y", "width", "height"))
        assert w > 0
        assert h >= 12
        assert 0 <= x <= x + w <= width + 0.1
        assert 0 <= y <= y + h <= height
    slanted = [t for t in svg.iter("text") if t.get("transform")]
    places = [float(str(t.get("x"))) for t in slanted]
    assert slanted
    assert all(b - a >= 13.9 for a, b in pairwise(places))
    # A name of 24 letters at 45 degrees ends inside.
    assert all(float(str(t.get("y"))) >= 0.71 * 24 * 6.8 for t in slanted)
    assert max(places) + 0.71 * 24 * 6.8 <= width + 0.1


def test_numbers_are_left_out_where_cells_are_too_small_and_are_in_the_table() -> None:
    columns = [str(i) for i in range(60)]
    values = [[i / 60 for i in range(60)]]
    root = section(heat_map={"rows": ["w"], "columns": columns, "values": values})
    assert not [t for t in root.iter("text") if t.get("class") == "number"]
    rows = [[c.text for c in row] for row in root.iter("tr")]
    assert rows[:3] == [[None, "w"], ["0", "0"], ["1", "0.0167"]]
    assert len(rows) == 61


def test_a_table_that_is_given_takes_the_place_of_the_numbers() -> None:
    root = section(heat_map=MAP, table={"head": ["A", "B"], "rows": [["one", 2], ["three", None]]})
    assert [[c.text for c in row] for row in root.iter("tr")] == [
        ["A", "B"],
        ["one", "2"],
        ["three", "–"],
    ]


def test_a_figure_has_its_heading_its_caption_and_a_table_beside() -> None:
    rows = [["a + b", "\N{MINUS SIGN}1.5 %", "1: a"], ["c", "2e-05", "2: b, c"]]
    table = {"title": "Numbers", "head": ["Pair", "Loss", "Who"], "rows": rows}
    root = section(heat_map=MAP, title="What <it> is", caption="So & so.", table=table)
    assert next(root.iter("figcaption")).text == "So & so."
    assert next(root.iter("h3")).text == "What <it> is"
    assert [cell.text for cell in root.iter("th")] == ["Pair", "Loss", "Who", "a + b", "c"]
    assert [cell.get("class") for cell in root.iter("td")] == [None, "words"] * 2
    assert next(root.iter("summary")).text == "Numbers"
    assert read_figures("study", Artifact("file")) == []


numbers = st.none() | st.floats(allow_nan=False, allow_infinity=False) | st.integers(-9, 9)
rows_of_numbers = st.integers(1, 5).flatmap(
    lambda count: st.lists(
        st.lists(numbers, min_size=count, max_size=count), min_size=1, max_size=4
    )
)


@settings(max_examples=60, deadline=None)
@given(values=rows_of_numbers)
def test_any_numbers_can_be_drawn(values: list[list[float | None]]) -> None:
    rows, columns = [str(i) for i in range(len(values))], [str(i) for i in range(len(values[0]))]
    svg = drawn(heat_map={"rows": rows, "columns": columns, "values": values})
    shades = [opacity(cell) for title, cell in cells(svg).items() if "no number" not in title]
    assert all(0 <= shade <= 0.551 for shade in shades)
    assert len(shades) == sum(v is not None for row in values for v in row)


TREE = {"x": "distance", "names": ["a", "b", "c"], "unions": [[0, 1, 0.1], [3, 2, 0.2]]}


def test_a_tree_without_a_table_has_one_of_its_unions() -> None:
    artifact = Artifact("file", details={"figures": [{"tree": TREE}]})
    (drawn,) = read_figures("study", artifact)
    assert drawn.head == ["Union of", "distance"]
    assert drawn.rows == [["a, b", "0.1"], ["a, b, c", "0.2"]]
    assert drawn.drawing.count("<path") == 2


# ── what is no figure ───────────────────────────────────────────────────────────────────────────

BAD: dict[str, tuple[Any, str]] = {
    "a short row": (
        {"heat_map": {**MAP, "values": [[1, 2, 3], [1]]}},
        r"\.heat_map: .*'b'.* 1 .* 3",
    ),
    "a missing row": ({"heat_map": {**MAP, "values": [[1, 2, 3]]}}, r"\.heat_map: .* 2 rows"),
    "no rows": ({"heat_map": {"rows": [], "columns": ["x"], "values": []}}, r"\.heat_map\.rows"),
    "a word for a number": (
        {"heat_map": {**MAP, "values": [[1, 2, 3], [1, "2", 3]]}},
        r"\.heat_map\.values\[1\]\[1\].*'2'",
    ),
    "a flag for a number": (
        {"heat_map": {**MAP, "values": [[1, 2, True], [1, 2, 3]]}},
        r"\.heat_map\.values\[0\]\[2\]",
    ),
    "infinity": (
        {"heat_map": {**MAP, "values": [[1, 2, float("inf")], [1, 2, 3]]}},
        r"\.heat_map\.values\[0\]\[2\]",
    ),
    "nothing but rows": ({"heat_map": {"rows": ["a"]}}, r"\.heat_map\.columns.*\.heat_map\.values"),
    "a misspelt key": ({"heat_map": {**MAP, "value": 1}}, r"\.heat_map\.value:"),
    "two at once": (
        {"heat_map": MAP, "tree": TREE},
        "one of 'heat_map', 'lines', 'tree'",
    ),
    "none": ({"title": "So"}, "one of 'heat_map', 'lines', 'tree'"),
    "another kind": ({"heatmap": MAP}, r"\.heatmap"),
    "no mapping": (5, r"\[0\]: must be a mapping, not 5"),
    "a title of numbers": ({"title": 5, "heat_map": MAP}, r"\.title"),
    "no table": ({"table": "numbers", "heat_map": MAP}, r"\.table"),
    "a table of nonsense": ({"table": {"rows": [5]}, "heat_map": MAP}, r"\.table\.rows\[0\]"),
    "a union of what is not yet": (
        {"tree": {**TREE, "unions": [[0, 4, 0.1], [2, 1, 0.2]]}},
        r"\.tree: .*one tree of 3",
    ),
    "a node that unites twice": (
        {"tree": {**TREE, "unions": [[0, 1, 0.1], [1, 2, 0.2]]}},
        r"\.tree: .*one tree of 3",
    ),
    "too few unions": ({"tree": {**TREE, "unions": [[0, 1, 0.1]]}}, r"\.tree: .*one tree of 3"),
    "a union of a word": (
        {"tree": {**TREE, "unions": [[0, 1, "low"], [3, 2, 0.2]]}},
        r"\.tree\.unions\[0\]\[2\]",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_figure_names_the_step_and_the_field(name: str) -> None:
    figure, place = BAD[name]
    artifact = Artifact("file", details={"figures": [figure]})
    with pytest.raises(DataError, match=rf"'the\.study': figures.*{place}") as caught:
        read_figures("the.study", artifact)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("figures", [5, "a map", {"heat_map": MAP}])
def test_figures_are_a_list(figures: Any) -> None:
    with pytest.raises(DataError, match="'study': figures must be a list"):
        read_figures("study", Artifact("file", details={"figures": figures}))


def test_lines_over_named_places_are_drawn_with_gaps_and_a_table() -> None:
    entry = {
        "title": "Cosines",
        "lines": {
            "x": "layer",
            "y": "cosine",
            "labels": ["E", "0", "1"],
            "series": {"total": [0.5, 0.25, 0.125], "MLP": [None, 0.75, 0.5]},
        },
    }
    (data,) = figure_data("diff", [entry])
    drawn = figure_of(data)
    assert [row[0] for row in drawn.rows] == ["E", "0", "1"]
    assert drawn.rows[0][2] == "–"
    # The embeddings' point is on no line with layers: each series is one stroke from layer 0 on.
    strokes = [part for part in drawn.drawing.split("<path") if 'class="line ' in part]
    assert [part.count("L") for part in strokes] == [1, 1]


def test_lines_with_too_few_values_are_refused_by_name() -> None:
    lines = {"x": "layer", "y": "cosine", "labels": ["E", "0"], "series": {"total": [0.5]}}
    with pytest.raises(
        DataError, match=r"'diff': figures\[0\].lines: the series 'total' has 1 values"
    ):
        figure_data("diff", [{"lines": lines}])
