"""A report tells arms of seeds as one, draws scores over bag ratios, and says what is in domain."""

from __future__ import annotations

import dataclasses
import shutil
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from emberge import Artifact, Evaluator, ModelRef, TaskInfo
from emberge.evaluating import read_scores
from emberge_evaluate import Evaluate, EvaluatedModel

from tests.support import finished_run as runs
from tests.support.finished_run import BASE, FinishedRun, parsed, report, words
from tests.support.given_scores import SEEDS, GivenByArm, bench_of_arms

RATIOS = [f"bag.ratio={r},seed={s}" for r in (0.2, 0.6, 1.0) for s in (1, 2, 3)]


class GivenLosses(GivenByArm):
    """The same numbers as losses."""

    def plan(self, workspace: Any) -> Sequence[TaskInfo]:
        return [dataclasses.replace(task, metric="nats/token") for task in super().plan(workspace)]


def scored(
    root: Path, out: Path, *steps: str, by: Evaluator | None = None, **options: Any
) -> FinishedRun:
    """A run whose evaluation scored models of these names."""
    used = {"faq": {"task": "retrieval", "rows": 12, "of": 10}}
    workspace = bench_of_arms(root / "evaluation", *steps, boom={"datasets": used})
    entries = tuple(EvaluatedModel(model=ModelRef(f"${step}")) for step in steps)
    Evaluate(models=entries, evaluators=(by or GivenByArm(),), **options).run(workspace)
    folder = runs.publish(out, "scores", Artifact(kind="scores"))
    shutil.copy(workspace.folder / "scores.json", folder)
    return FinishedRun(out)


@pytest.fixture(scope="module")
def run(bert: Path, berts: list[Path], tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    root = tmp_path_factory.mktemp("run")
    out = root / "out"
    out.mkdir()
    made = scored(root, out, *SEEDS, "base", *RATIOS)
    for seed in (1, 2, 3):
        runs.trained(out, f"bls.seed={seed}", berts[0], seed=seed)
        runs.merged(out, f"boom.seed={seed}", berts[1], {f"$bls.seed={seed}": 1.0})
    return FinishedRun(out, outside={**made.outside, BASE: bert})


@pytest.fixture(scope="module")
def page(run: FinishedRun) -> str:
    steps = [step for step in SEEDS if step.startswith(("bls", "boom"))]
    return report(run, *steps, "scores", base=None)


def tables(page: str, caption: str) -> list[ElementTree.Element]:
    found = parsed(page).iter("table")
    return [t for t in found if (t.findtext("caption") or "").startswith(caption)]


def test_scores_are_told_by_arm_first_and_by_model_folded_away(page: str) -> None:
    by_arm, by_model = tables(page, "Scores ×100")
    names = ["".join(row[0].itertext()) for row in by_arm.findall("tbody/tr")]
    assert names == ["bls", "boom", "base", "bag.ratio=0.2", "bag.ratio=0.6", "bag.ratio=1.0"]
    assert len(by_model.findall("tbody/tr")) == len(SEEDS) + 1 + len(RATIOS)
    boom = "".join(by_arm.findall("tbody/tr")[1].itertext())
    assert "± 0.72" in boom
    folded = next(d for d in parsed(page).iter("details") if d.find("summary") is not None)
    assert folded.findtext("summary") == "Each model by itself"
    assert [h.text for h in by_arm.findall("thead/tr/th")][:2] == ["Model", "Training cost"]
    costs = {"".join(r[0].itertext()): r[1].text for r in by_arm.findall("tbody/tr")}
    assert (costs["boom"], costs["base"]) == ("1.2", "–")


def test_differences_of_arms_show_every_seed(page: str) -> None:
    first = tables(page, "Differences in points")[0]
    boom = "".join(first.findall("tbody/tr")[0].itertext())
    assert "seeds +5.00, +5.00, +5.00" in boom
    text = words(page)
    assert "Out of domain: bag.ratio=1.0 scores highest" in text
    assert "; boom scores" in text
    assert "the intervals above cover them" in text
    assert "In domain (1): code" in text
    assert "Out of domain (2): papers, pairs" in text


def test_a_page_of_losses_marks_the_lowest_and_shows_them_as_they_are(tmp_path: Path) -> None:
    (out := tmp_path / "out").mkdir()
    run = scored(tmp_path, out, *SEEDS, "base", *RATIOS, by=GivenLosses())
    page = report(run, "scores", base=None)
    (by_arm, _), text = tables(page, "Losses, of which less is better"), words(page)
    scores = read_scores(out / "scores").pooled
    assert scores is not None
    starred = {
        "".join(row[0].itertext())
        for row in by_arm.findall("tbody/tr")
        if row.find("td[@class='best']") is not None
    }
    least = {
        m
        for on in scores.columns()
        for m in scores.models
        if scores.value(m, on) == scores.best(on)
    }
    assert starred == least
    assert "Scores ×100" not in text
    assert "has the least loss" in text
    assert f"{scores.best('in'):.3f}" in text
    worse = scores.difference("boom", "in", "bls")
    assert worse is not None
    assert worse.difference > 0
    assert worse.verdict == "worse"


def test_scores_over_ratios_are_drawn_with_their_intervals(page: str) -> None:
    charts = [c for c in parsed(page).iter("svg") if "by ratio, %" in c.get("aria-label", "")]
    assert [c.get("aria-label", "").partition(" by ")[0] for c in charts] == [
        "in-domain mean",
        "out-of-domain mean",
    ]
    for chart in charts:
        strokes = [e.get("style", "") for e in chart.iter("path")]
        assert sum("stroke-opacity: 0.55" in style for style in strokes) == 3, "intervals"
        # One level, the merge; models that no merge made are no levels.
        assert sum("stroke-dasharray" in style for style in strokes) == 1
    numbers = next(t for t in parsed(page).iter("table") if "ratio, %" in "".join(t.itertext()))
    rows = [[c.text for c in r][1:3] for r in numbers.findall("tbody/tr")]
    assert rows == [["20", "3"], ["60", "3"], ["100", "3"]]


def test_without_seeds_or_numbers_nothing_of_them_is_said(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    run = scored(tmp_path, out, "bls", "boom")
    assert read_scores(out / "scores").pooled is None
    text = words(report(run, "scores", base=None))
    for absent in ("Each model by itself", "ratio, %", "seeds (Student", "±"):
        assert absent not in text


@pytest.mark.parametrize("seeds", [("",), (".seed=1", ".seed=2")])
def test_a_pair_that_the_recipe_compares_has_its_table_and_its_sentence(
    tmp_path: Path, seeds: Sequence[str]
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    steps = [f"{name}{seed}" for name in ("base", "boom", "bls") for seed in seeds]
    pairs = [(ModelRef(f"$bls{seed}"), ModelRef(f"$boom{seed}")) for seed in seeds]
    run = scored(tmp_path, out, *steps, compare=tuple(pairs))
    page = report(run, "scores", base=None)
    titles = [heading.text for heading in parsed(page).iter("h3")]
    assert titles.count("Differences from base") == 1
    assert titles.count("Differences from boom") == 1
    grid = tables(page, "Differences in")[1]
    (row,) = grid.findall("tbody/tr")
    assert "".join(row[0].itertext()) == "bls"
    assert "-5.00" in "".join(row.itertext()).replace("−", "-")
    assert "In domain: bls −5.00 against boom" in words(page)
