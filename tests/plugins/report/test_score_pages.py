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
from emberge_evaluate import (
    Evaluate,
    EvaluatedModel,
    build_table,
    leave_out_parts,
    read_scores,
)
from emberge_report import add_scores

from tests.support import finished_run as runs
from tests.support.finished_run import BASE, FinishedRun, parsed, report, words
from tests.support.given_scores import SEEDS, GivenByArm, bench_of_arms, trained

RATIOS = [f"bag.ratio={r},seed={s}" for r in (0.2, 0.6, 1.0) for s in (1, 2, 3)]


class GivenLosses(GivenByArm):
    """The same numbers as losses."""

    def plan(self, workspace: Any) -> Sequence[TaskInfo]:
        return [dataclasses.replace(task, metric="nats/token") for task in super().plan(workspace)]


def scored(
    root: Path, out: Path, *steps: str, by: Evaluator | None = None, **options: Any
) -> FinishedRun:
    """A run whose evaluation scored models of these names."""
    used = {"details": trained(rows=12, of=10)}
    workspace = bench_of_arms(root / "evaluation", *steps, boom=used)
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
    names = ["".join(cell.itertext()) for cell in by_arm.findall("thead/tr/th")][1:]
    assert names == ["bls", "boom", "base", "bag.ratio=0.2", "bag.ratio=0.6", "bag.ratio=1.0"]
    assert len(by_model.findall("thead/tr/th")) == 1 + len(SEEDS) + 1 + len(RATIOS)
    *rows, costs = by_arm.findall("tbody/tr")
    assert "± 0.72" in "".join(rows[0][2].itertext())
    folded = next(d for d in parsed(page).iter("details") if d.find("summary") is not None)
    assert folded.findtext("summary") == "Each model by itself"
    assert [cell.text for cell in costs][:4] == [
        "Training cost (1: one training on 10 rows)",
        "–",
        "1.2",
        "–",
    ]


def test_a_page_and_a_card_have_the_rows_of_the_table(run: FinishedRun, page: str) -> None:
    scores = read_scores(run.root / "scores")
    titles = [row.title for row in build_table(scores).rows]
    _, by_model = tables(page, "Scores ×100")
    drawn = [row.findtext("th") for row in by_model.findall("tbody/tr")]
    assert drawn[: len(titles)] == titles
    card = add_scores("---\n---\n", [("base", scores)])
    firsts = [line.split(" |")[0].strip("| *") for line in card.splitlines() if line[:2] == "| "][
        2:
    ]
    assert [
        first.removesuffix(" (in domain)").removesuffix(" (out of domain)") for first in firsts
    ] == titles
    part = dataclasses.replace(scores, tasks=scores.tasks[:1])
    assert leave_out_parts([("a", part), ("b", scores)]) == [("b", scores)]
    both = add_scores("---\n---\n", [("base", part), ("base", scores)])
    assert both.count("## Scores") == 1


def test_differences_of_arms_show_every_seed(page: str) -> None:
    first = tables(page, "Differences in points")[0]
    assert "seeds +5.00, +5.00, +5.00" in "".join(first.findall("tbody/tr")[0].itertext())
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
    rows = build_table(scores).rows
    for row, drawn in zip(rows, by_arm.findall("tbody/tr")[: len(rows)], strict=True):
        lowest = min(cell.value for cell in row.cells.values() if cell.value is not None)
        starred = [cell.get("class") == "best" for cell in drawn.findall("td")]
        assert starred == [cell.value == lowest for cell in row.cells.values()]
        assert f"{lowest:.3f}" in "".join(drawn.itertext())
    assert "Scores ×100" not in text
    assert "has the least loss" in text
    worse = scores.find_difference("boom", "in", "bls")
    assert worse is not None
    assert worse.difference > 0
    assert worse.verdict == "worse"


@pytest.mark.parametrize("seeds", [("",), (".seed=1", ".seed=2")])
def test_a_pair_that_the_recipe_compares_has_its_table(
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
    assert ["".join(cell.itertext()) for cell in grid.findall("thead/tr/th")][1:] == ["bls"]
    assert "−5.00" in "".join(grid.itertext())
