"""Figures that are data: a heat map or a table; what is none is refused by the field."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
from emberge import Artifact
from emberge.contracts import Figure, HeatMap, MergeDetails
from emberge_report.charts import Line, assign_looks, can_draw, draw_lines
from emberge_report.formats import build_cells
from emberge_report.models_view import build_weight_map
from emberge_report.report_data import ReportedStep
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import finished_run as runs
from tests.support.finished_run import SCORES, FinishedRun, report

MAP = {"rows": ["a", "b"], "columns": ["x", "y", "z"], "values": [[1, -2.5, None], [0, 5.0, 0.25]]}
draws = pytest.mark.skipif(not can_draw(), reason="charts need matplotlib")


def cells(values: list[list[float | None]]) -> list[list[Any]]:
    rows, columns = [str(i) for i in range(len(values))], [str(i) for i in range(len(values[0]))]
    return build_cells(HeatMap(rows=rows, columns=columns, values=values))


def test_both_sides_of_zero_differ_in_colour_and_sign() -> None:
    assert cells(MAP["values"]) == [
        [("+1.00", "c0", 15.0), ("\N{MINUS SIGN}2.50", "c1", 30.0), None],
        [("0", "c0", 5.0), ("+5.00", "c0", 55.0), ("+0.25", "c0", 7.5)],
    ]
    # Numbers of one sign go from the lowest to the highest.
    assert cells([[0.45, 0.55]]) == [[("0.450", "c0", 5.0), ("0.550", "c0", 55.0)]]


numbers = st.none() | st.floats(allow_nan=False, allow_infinity=False) | st.integers(-9, 9)


@settings(max_examples=60, deadline=None)
@given(values=st.lists(st.lists(numbers, min_size=3, max_size=3), min_size=1, max_size=4))
def test_any_numbers_can_be_drawn(values: list[list[float | None]]) -> None:
    flat = [number for row in values for number in row]
    drawn = [cell for row in cells(values) for cell in row]
    assert [cell is None for cell in drawn] == [number is None for number in flat]
    assert all(5 <= cell[2] <= 55 for cell in drawn if cell is not None)


def flat(y: float) -> str:
    line = Line("a", assign_looks("a")["a"], [(0, 1.0), (1, y)], marked=True)
    return draw_lines([line], x="", y="", label=f"to {y}")


@draws
def test_a_chart_is_the_same_each_time_and_shares_no_id_with_another() -> None:
    assert flat(1.0) == flat(1.0)
    drawn = draw_lines(
        [Line("文档", assign_looks("a")["a"], [(0, 1.0)])], x="$a_b$", y="<b>&", label="<b>"
    )
    written = "".join(ElementTree.fromstring(drawn.partition("<p class")[0]).itertext())
    assert "$a_b$" in written, "no formula"
    assert "<b>&" in written
    assert "var(--c0)" in drawn
    first, second = (
        {e.get("id") for e in ElementTree.fromstring(svg.partition("<p class")[0]).iter("path")}
        for svg in (flat(1.0), flat(2.0))
    )
    assert len(first) == 2, "markers, and lines without an id"
    assert first & second == {None}


def test_without_matplotlib_a_page_has_tables_and_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("emberge_report.charts.find_spec", lambda _: None)
    assert flat(1.0) == ""
    runs.scored(tmp_path, SCORES)
    assert "emberge[report]" in report(FinishedRun(tmp_path), "scores", base=None)


# ── what is no figure ───────────────────────────────────────────────────────────────────────────

BAD: dict[str, tuple[Any, str]] = {
    "a short row": (
        {"heat_map": {**MAP, "values": [[1, 2, 3], [1]]}},
        r"\.0\.heat_map: .*'b'.* 1 .* 3",
    ),
    "a word for a number": (
        {"heat_map": {**MAP, "values": [[1, 2, 3], [1, "2", 3]]}},
        r"\.0\.heat_map\.values\.1\.1: .*number",
    ),
    "infinity": (
        {"heat_map": {**MAP, "values": [[1, 2, float("inf")], [1, 2, 3]]}},
        r"\.0\.heat_map\.values\.0\.2: .*finite",
    ),
    "a misspelt key": ({"heat_map": {**MAP, "value": 1}}, r"\.0\.heat_map\.value:"),
    "nothing to show": ({"title": "Loads"}, ".*a 'heat_map', a 'table' or both"),
    "no mapping": (5, r"\.0: .*object"),
    "a table of nonsense": ({"table": {"rows": [5]}, "heat_map": MAP}, r"\.0\.table\.rows\.0"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_figure_names_the_field(name: str) -> None:
    figure, place = BAD[name]
    with pytest.raises(ValueError, match=rf"^figures{place}") as caught:
        Artifact.of({"kind": "file", "figures": [figure]})
    assert "\n" not in str(caught.value)


def test_weights_that_a_strategy_computed_are_a_map_of_layers_by_labels() -> None:
    def draw(found: dict[str, dict[str, float]]) -> Figure | None:
        details = MergeDetails(strategy=["mine"], weights={}, weights_by_layer=found)
        return build_weight_map(ReportedStep("fused", Path(), Artifact("model", details=details)))

    figure = draw({"layers.0": {"a": 0.2, "b": 0.8}, "embeddings": {"a": 0.5, "c": 0.5}})
    assert figure is not None
    assert figure.heat_map is not None
    assert (figure.heat_map.rows, figure.heat_map.columns) == (["embeddings", "0"], ["a", "c", "b"])
    assert figure.heat_map.values == [[0.5, 0.5, None], [0.2, None, 0.8]]
    assert draw({"embeddings": {}}) is None
