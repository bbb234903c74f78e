"""A report plots scores over all and active parameters, with the front of the best models."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from emberge import Artifact, Model, ModelRef
from emberge.contracts import ParameterCount
from emberge.evaluating import read_scores
from emberge_evaluate import Evaluate, EvaluatedModel
from emberge_report.charts.svg import LogScale
from emberge_report.page.quality_section import front_of

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
