"""A report plots scores over time, megabytes and parameters, with the front of the best models."""

from __future__ import annotations

import shutil
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from emberge import Artifact, Model, ModelRef
from emberge.contracts import ParameterCount
from emberge.documents import TextTable
from emberge.evaluating import EncodingCost, Estimate, Scores, Task, read_scores
from emberge_evaluate import Evaluate, EvaluatedModel
from emberge_report.card.card_scores import cost_section
from emberge_report.charts.svg import LogScale, looks
from emberge_report.page.quality_section import front_of, quality_section

from tests.support import finished_run as runs
from tests.support.bench import Bench
from tests.support.finished_run import FinishedRun, parsed, report
from tests.support.headers_alone import Shapes, folder_of
from tests.support.seed_arms import Given

TABLE = {"embeddings.word_embeddings.weight": (100, 8)}
EXPERTS = {f"layers.0.mlp.experts.{e}.up.weight": (8, 8) for e in range(4)}
SHAPES: dict[str, Shapes] = {
    "base": TABLE,
    "bls": {**TABLE, "layers.0.mlp.up.weight": (8, 8)},
    "boom.seed=1": {**TABLE, **EXPERTS},
    "boom.seed=2": {**TABLE, **EXPERTS},
}
MOE = {"num_experts": 4, "num_experts_per_tok": 1}


def finished(root: Path, *names: str) -> FinishedRun:
    """A run whose evaluation scored models of these shapes, of which boom is best."""
    bench = Bench(root / "evaluation")
    for name in names:
        folder = root / name
        folder.mkdir(parents=True)
        folder_of(folder, MOE if name.startswith("boom") else {}, SHAPES[name])
        bench.many[f"${name}"] = [Model(name, folder, f"hash-{name}", Artifact(kind="model"))]
    entries = tuple(EvaluatedModel(model=ModelRef(text)) for text in bench.many)
    Evaluate(models=entries, evaluators=(Given(),)).run(bench)
    out = root / "out"
    out.mkdir()
    folder = runs.publish(out, "scores", Artifact(kind="scores"))
    shutil.copy(bench.folder / "scores.json", folder)
    return FinishedRun(out)


def test_scores_are_plotted_over_all_and_over_active_parameters(tmp_path: Path) -> None:
    run = finished(tmp_path, *SHAPES)
    found = read_scores(run.out / "scores")
    assert found.parameters["boom.seed=1"] == ParameterCount(800 + 4 * 64, 800 + 64, 64)
    assert found.pooled is not None
    assert found.pooled.parameters["boom"] == found.parameters["boom.seed=1"]
    page = report(run, "scores", base=None)
    labels = [s.get("aria-label", "") for s in parsed(page).iter("svg")]
    drawn = [label.partition(",")[0] for label in labels if "parameters" in label]
    assert drawn == [
        "in-domain mean ×100 over parameters",
        "out-of-domain mean ×100 over parameters",
        "in-domain mean ×100 over active parameters",
        "out-of-domain mean ×100 over active parameters",
    ]
    rows = {
        "".join(row[0].itertext()): [cell.text for cell in row[1:4]]
        for table in parsed(page).iter("table")
        if table.findtext("caption") == "Quality and cost of each model"
        for row in table.findall("tbody/tr")
    }
    assert rows == {
        "base": ["800", "800", "0"],
        "bls": ["864", "864", "64"],
        "boom": ["1,056", "864", "64"],
    }


def test_the_front_is_drawn_through_its_models(tmp_path: Path) -> None:
    page = report(finished(tmp_path, *SHAPES), "scores", base=None)
    corners = {}
    for svg in parsed(page).iter("svg"):
        label = svg.get("aria-label", "")
        if "parameters" in label and label.startswith("in-domain"):
            (line,) = (p for p in svg.iter("path") if p.get("class") == "level neutral")
            corners["active" in label] = line.get("d", "").count("L") + 1
    assert corners == {False: 3, True: 2}  # of as many active parameters boom scores above bls


def test_models_of_one_size_have_no_such_figure(tmp_path: Path) -> None:
    page = report(finished(tmp_path, "boom.seed=1", "boom.seed=2"), "scores", base=None)
    assert "Quality and cost" not in page


def test_dense_models_have_one_axis(tmp_path: Path) -> None:
    page = report(finished(tmp_path, "base", "bls"), "scores", base=None)
    assert "Quality and cost" in page
    assert not any("active parameters" in s.get("aria-label", "") for s in parsed(page).iter("svg"))


def test_the_front_leaves_out_what_a_model_as_small_beats() -> None:
    places = {
        "a": (10.0, 50.0),
        "b": (10.0, 60.0),
        "c": (20.0, 60.0),
        "d": (30.0, 61.0),
        "e": (5.0, 1.0),
    }
    assert front_of(places) == ["e", "b", "d"]
    assert front_of({}) == []
    assert front_of(
        {name: (size, -score) for name, (size, score) in places.items()}, less=True
    ) == [*("e", "b", "d")]


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (20, 700, (20, 50, 100, 200, 500)),
        (100, 130, (100, 110, 120, 130)),
        (0.03, 0.8, (0.05, 0.1, 0.2, 0.5)),
    ],
)
def test_a_logarithmic_axis_has_round_numbers(
    low: float, high: float, ticks: tuple[float, ...]
) -> None:
    scale = LogScale(low, high, 0, 100)
    assert scale.ticks(4) == pytest.approx(ticks)
    assert scale(low) == 0
    assert scale((low * high) ** 0.5) == pytest.approx(50)
    assert scale(high) == pytest.approx(100)


# ── given scores and costs ──────────────────────────────────────────────────────────────────────────

COSTS = {"teacher": 40.0, "three": 20.0, "one": 9.0, "static": 0.4}
VALUES = {
    "teacher": 0.70,
    "three": 0.66,
    "one": 0.60,
    "static": 0.52,
}


def _cost(milliseconds: float) -> EncodingCost:
    return EncodingCost(
        dimension=384,
        index_bytes=1536.0,
        milliseconds=milliseconds,
        cpu_milliseconds=2 * milliseconds,
        texts_per_second=1000 / milliseconds,
        texts_per_cpu_second=500 / milliseconds,
        machine="Processor <9>",
        threads=2,
        queries=64,
        texts=256,
        rounds=5,
    )


def _given(**changes: Any) -> Scores:
    sizes = {"teacher": 90, "three": 70, "one": 55, "static": 47}
    scores = Scores(
        fingerprints={name: name for name in VALUES},
        tasks=(Task("a"), Task("b")),
        values={name: {"a": value, "b": value} for name, value in VALUES.items()},
        means={name: {"task": value} for name, value in VALUES.items()},
        intervals={name: {"task": (value - 0.02, value + 0.03)} for name, value in VALUES.items()},
        parameters={name: ParameterCount(*3 * (1_000_000 * sizes[name] // 4,)) for name in VALUES},
        weight_bytes={name: 1_000_000 * sizes[name] for name in VALUES},
        shares={"three": {"task": Estimate(0.9429, None, 0.92, 0.961)}},
        encoding_costs={name: _cost(COSTS[name]) for name in VALUES},
    )
    return replace(scores, **changes)


LOOKS = looks(COSTS)


def _drawn(scores: Scores) -> ElementTree.Element:
    section = quality_section(scores, LOOKS)
    assert section is not None
    return ElementTree.fromstring(section)


def _charts(section: ElementTree.Element) -> dict[str, ElementTree.Element]:
    """The charts by the label of their x axis."""
    charts = (svg for svg in section.iter("svg") if svg.get("class") == "points")
    return {svg.get("aria-label", "").rpartition(" over ")[2].split(",")[0]: svg for svg in charts}


def test_each_cost_has_a_chart_with_every_models_name() -> None:
    section = _drawn(_given())
    charts = _charts(section)
    assert [*charts] == ["ms a query", "MB of weights", "parameters"]
    assert "ms a query, 2 threads of Processor <9>" in [t.text for t in section.iter("text")]
    for svg in charts.values():
        words = ["".join(text.itertext()) for text in svg.iter("text")]
        assert {*VALUES} <= {*words}
    twins = section.find("figure/div[@class='twins']")
    assert twins is not None
    assert len(twins) == 2


def test_names_in_a_chart_overlap_no_names() -> None:
    for svg in _charts(_drawn(_given())).values():
        boxes = []
        for text in svg.iter("text"):
            if text.text in VALUES:
                width = 6.8 * len(text.text)
                anchor = {"middle": 0.5, "end": 1.0}.get(text.get("text-anchor", ""), 0.0)
                left, y = float(text.get("x", "nan")) - anchor * width, float(text.get("y", "nan"))
                boxes.append((left, y - 10, left + width, y + 3))
        assert len(boxes) == len(VALUES)
        for one, other in combinations(boxes, 2):
            across = one[2] <= other[0] or other[2] <= one[0]
            assert across or one[3] <= other[1] or other[3] <= one[1], (one, other)


def test_intervals_are_drawn_at_their_points_and_within_the_chart() -> None:
    svg = _charts(_drawn(_given()))["ms a query"]
    whiskers = [line for line in svg.iter("line") if "whisker" in line.get("class", "")]
    assert len(whiskers) == len(VALUES)
    for line in whiskers:
        assert line.get("x1") == line.get("x2")
        assert 24 < float(line.get("y1", "nan")) < float(line.get("y2", "nan")) < 400 - 44


def test_the_table_has_costs_scores_and_shares() -> None:
    section = _drawn(_given())
    (table,) = section.iter("table")
    head = ["".join(cell.itertext()) for cell in table.findall("thead/tr/th")]
    rows = {
        "".join(row[0].itertext()): ["".join(cell.itertext()) for cell in row]
        for row in table.findall("tbody/tr")
    }
    three = dict(zip(head, rows["three"], strict=True))
    assert three == {
        "Model": "three",
        "Parameters": "17,500,000",
        "Active without the word embedding": "17,500,000",
        "MB": "70.0",
        "Index bytes a document": "1,536",
        "ms a query": "20",
        "CPU ms": "40",
        "texts/s": "50",
        "Mean over tasks": "66.00",
        "Share of teacher’s mean over tasks": "94.3 % [92.0, 96.1]",
    }
    assert rows["teacher"][-1] == "–"
    explanation = section.findall("p")[-1].text or ""
    assert "on Processor <9> with 2 threads of torch: medians of 5 rounds" in explanation


def test_without_costs_there_is_no_axis_of_time() -> None:
    section = _drawn(_given(encoding_costs={}))
    assert [*_charts(section)] == ["MB of weights", "parameters"]
    head = ["".join(cell.itertext()) for cell in section.findall(".//thead/tr/th")]
    assert "ms a query" not in head
    equal = _given(encoding_costs={}, parameters={}, weight_bytes={})
    assert quality_section(equal, LOOKS) is None


def test_a_card_has_the_table_with_its_model_in_bold() -> None:
    section = cost_section("three", _given())
    assert section is not None
    table = section.passages[0]
    assert isinstance(table, TextTable)
    names = [row[0] for row in table.rows]
    assert names == [f"**{n}**" if n == "three" else n for n in VALUES]
    assert cost_section("three", _given(encoding_costs={})) is None
