"""What models forgot of their base: found by name or by descent, and measured elsewhere."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from emberge import Artifact, Model, ModelRef, RecipeError, TaskInfo
from emberge.contracts import BaseFacts
from emberge_evaluate import Comparison, Scores, read_scores
from emberge_evaluate.evaluate_step import Evaluate
from emberge_evaluate.requirements import Requirement

from tests.support.bench import Bench
from tests.support.given_scores import QUALITY, TASKS, Given, bench, run, step
from tests.support.glance import Glance

BASE = ModelRef("$base")
FAR = TaskInfo("licences", "retrieval", "ndcg_at_10", ("en",), "elsewhere", fingerprint="e")
# On tasks elsewhere `worse` loses a tenth of a score, and `merged` gains a twentieth.
given = pytest.fixture(lambda: Given(quality=QUALITY, wanted=(*TASKS, FAR)))


def scores_of(wanted: Evaluate, workspace: Bench) -> tuple[Scores, str]:
    run(wanted, workspace)
    return read_scores(workspace.folder), (workspace.folder / "scores.md").read_text()


def test_a_named_base_is_scored_and_compared_on_tasks_elsewhere(
    given: Given, tmp_path: Path
) -> None:
    workspace = bench(tmp_path, "base", "merged", "worse")
    scores, text = scores_of(step("worse", "merged", base=BASE, evaluators=(given,)), workspace)
    assert scores.models == ("worse", "merged", "base")
    assert {one.task_or_mean for one in scores.forgetting} == {"elsewhere"}
    lost = scores.find_forgotten("worse")
    assert lost is not None
    values = scores.values
    assert lost.mean == pytest.approx(values["base"]["licences"] - values["worse"]["licences"])
    assert scores.find_forgotten("base") is None
    (row,) = (line for line in text.splitlines() if line.startswith("| *forgetting, elsewhere"))
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[1].startswith(f"+{100 * lost.mean:.1f} [+")
    assert cells[2].startswith("-")
    assert cells[3] == "–"
    # The interval is the paired one of all comparisons.
    scores, _ = scores_of(step("base", "worse", base=BASE, evaluators=(given,)), workspace)
    turned = scores.find_difference("worse", "elsewhere")
    assert turned is not None
    assert turned.interval is not None
    assert lost.interval == pytest.approx([-end for end in turned.interval[::-1]], rel=1e-12)


def test_the_base_is_the_model_that_others_were_trained_from(given: Given, tmp_path: Path) -> None:
    workspace = bench(tmp_path, "other", "base", "merged")

    def find_bases(merged: str, other: str = "") -> set[str]:
        for name, base in (("merged", merged), ("other", other)):
            trained = Artifact("model", base=BaseFacts(fingerprint=base))
            workspace.many[f"${name}"] = [Model(name, tmp_path, f"hash-{name}", trained)]
        wanted = step("other", "merged", "base", evaluators=(given,))
        return {one.model for one in scores_of(wanted, workspace)[0].forgetting}

    assert find_bases("hash-base") == {"base"}
    assert find_bases("hash-base", "hash of a model that is not scored") == {"base"}
    # Which of two bases is meant is for the recipe to name.
    assert find_bases("hash-base", "hash-merged") == set()


def test_without_tasks_elsewhere_those_out_of_domain_serve(tmp_path: Path) -> None:
    workspace, near = bench(tmp_path, "base", "worse"), Given(quality=QUALITY)
    scores, text = scores_of(step("base", "worse", base=BASE, evaluators=(near,)), workspace)
    assert {one.task_or_mean for one in scores.forgetting} == {"out"}
    assert "| *forgetting, out of domain (less is better)* | – | +" in text


def test_a_requirement_is_judged_of_each_model_or_the_named_one(
    given: Given, tmp_path: Path
) -> None:
    workspace = bench(tmp_path, "base", "merged", "worse")
    options = {"base": BASE, "evaluators": (given,)}
    wanted = step(*("base", "merged", "worse"), **options, require=(Requirement(forgetting=2.0),))
    scores, _ = scores_of(wanted, workspace)
    assert {one.model: one.met for one in scores.requirements} == {"merged": True, "worse": False}
    one = (Requirement(model=ModelRef("$merged"), forgetting=2.0),)
    scores, _ = scores_of(replace(wanted, require=one), workspace)
    assert [verdict.model for verdict in scores.requirements] == ["merged"]


def test_a_requirement_needs_a_base_and_tasks_that_would_show_it(tmp_path: Path) -> None:
    inside = Given(quality=QUALITY, wanted=TASKS[:1])
    wanted = step("base", "worse", evaluators=(inside,), require=(Requirement(forgetting=1.0),))
    found = [str(problem) for problem in wanted.check(Glance())]  # type: ignore[arg-type]
    assert any("under 'base'" in one for one in found)
    with pytest.raises(RecipeError, match="`domain: elsewhere` in the catalogue"):
        run(replace(wanted, base=BASE), bench(tmp_path, "base", "worse"))
    assert not inside.asked


def test_of_losses_forgetting_is_more_loss() -> None:
    lost = Comparison("base", "m", "out", -0.2, (-0.3, -0.1), less_is_better=True)
    scores = Scores(fingerprints={"base": "", "m": ""}, tasks=(), values={}, forgetting=(lost,))
    found = scores.find_forgotten("m")
    assert found is not None
    assert (found.mean, found.interval) == (0.2, (0.1, 0.3))
