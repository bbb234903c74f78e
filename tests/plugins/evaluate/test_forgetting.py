"""What models forgot of their base: found by name or by descent, measured elsewhere, and judged."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from emberge import Artifact, Model, ModelRef, RecipeError, TaskInfo
from emberge.evaluating import Comparison, Scores, read_scores
from emberge_evaluate.evaluate_step import Evaluate
from emberge_evaluate.requirements import Requirement

from tests.support.bench import Bench
from tests.support.given_scores import QUALITY, TASKS, Given, bench, run, step
from tests.support.glance import Glance

BASE = ModelRef("$base")
FAR = TaskInfo("licences", "retrieval", "ndcg_at_10", ("en",), "elsewhere", fingerprint="e")
# On tasks elsewhere `worse` loses a tenth of a score, and `merged` gains a twentieth.
given = pytest.fixture(lambda: Given(quality=QUALITY, wanted=(*TASKS, FAR)))


def scores_of(wanted: Evaluate, workspace: Bench) -> tuple[Artifact, Scores, str]:
    artifact, _ = run(wanted, workspace)
    text = (workspace.folder / "scores.md").read_text()
    return artifact, read_scores(workspace.folder), text


def test_a_named_base_is_scored_and_compared_on_tasks_elsewhere(
    given: Given, tmp_path: Path
) -> None:
    workspace = bench(tmp_path, "base", "merged", "worse")
    _, scores, text = scores_of(step("worse", "merged", base=BASE, evaluators=(given,)), workspace)
    assert scores.models == ("worse", "merged", "base")
    assert {one.on for one in scores.forgetting} == {"elsewhere"}
    lost = scores.forgotten("worse")
    assert lost is not None
    assert lost.interval is not None
    low, high = lost.interval
    values = scores.values
    assert lost.mean == pytest.approx(values["base"]["licences"] - values["worse"]["licences"])
    assert 0 < low < lost.mean < high
    assert scores.forgotten("base") is None
    (row,) = (line for line in text.splitlines() if line.startswith("| *forgetting, elsewhere"))
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[1].startswith(f"+{100 * lost.mean:.1f} [+")
    assert cells[2].startswith("-")
    assert cells[3] == "–"


def test_the_interval_is_the_paired_one_of_all_comparisons(given: Given, tmp_path: Path) -> None:
    workspace = bench(tmp_path, "base", "worse")
    _, scores, _ = scores_of(step("base", "worse", base=BASE, evaluators=(given,)), workspace)
    (lost,) = scores.forgetting
    turned = scores.difference("worse", "elsewhere")
    assert turned is not None
    expected = (-(turned.high or 0), -(turned.low or 0))
    assert (lost.low, lost.high) == pytest.approx(expected, rel=1e-12)


def test_the_base_is_the_model_that_others_were_trained_from(given: Given, tmp_path: Path) -> None:
    workspace = bench(tmp_path, "other", "base", "merged")
    trained = Artifact("model", details={"base_fingerprint": "hash-base"})
    workspace.many["$merged"] = [Model("merged", tmp_path, "hash-merged", trained)]
    wanted = step("other", "merged", "base", evaluators=(given,))
    _, scores, _ = scores_of(wanted, workspace)
    assert {one.model for one in scores.forgetting} == {"base"}
    workspace.many["$other"] = [
        Model("other", tmp_path, "hash-other", replace(trained, details={"base_fingerprint": "x"}))
    ]
    _, scores, _ = scores_of(wanted, workspace)
    assert {one.model for one in scores.forgetting} == {"base"}  # the other base is not here
    chained = replace(trained, details={"base_fingerprint": "hash-merged"})
    workspace.many["$other"] = [Model("other", tmp_path, "hash-other", chained)]
    _, scores, _ = scores_of(wanted, workspace)
    assert not scores.forgetting  # which of two bases is meant is for the recipe to name


def test_a_recipe_names_the_tasks_elsewhere_or_those_out_of_domain_serve(tmp_path: Path) -> None:
    workspace = bench(tmp_path, "base", "worse")
    near = Given(quality=QUALITY)
    _, scores, text = scores_of(step("base", "worse", base=BASE, evaluators=(near,)), workspace)
    assert {one.on for one in scores.forgetting} == {"out"}
    assert "| *forgetting, out of domain (less is better)* | – | +" in text
    wanted = step("base", "worse", base=BASE, elsewhere=("papers",), evaluators=(near,))
    _, scores, _ = scores_of(wanted, workspace)
    assert [task.domain for task in scores.tasks] == ["in", "elsewhere", "out", "in"]
    assert {one.on for one in scores.forgetting} == {"elsewhere"}
    near = Given(quality=QUALITY)
    with pytest.raises(RecipeError, match="paper"):
        run(replace(wanted, elsewhere=("paper",), evaluators=(near,)), workspace)
    assert not near.asked


@pytest.mark.parametrize(("points", "met"), [(20.0, True), (2.0, False)])
def test_a_requirement_on_forgetting_is_judged_at_the_bound(
    points: float, met: bool, given: Given, tmp_path: Path
) -> None:
    workspace = bench(tmp_path, "base", "merged", "worse")
    wanted = step(
        *("base", "merged", "worse"),
        base=BASE,
        evaluators=(given,),
        require=(Requirement(forgetting=points),),
    )
    artifact, scores, text = scores_of(wanted, workspace)
    verdicts = {one.model: one for one in scores.requirements}
    assert {name: one.met for name, one in verdicts.items()} == {"merged": True, "worse": met}
    assert all(one.other == "base" and one.margin == points for one in verdicts.values())
    assert verdicts["worse"].lower_bound < verdicts["worse"].difference < 0
    assert artifact.details["unmet"] == ([] if met else [verdicts["worse"].text])
    assert verdicts["worse"].text in text
    one = (Requirement(model=ModelRef("$merged"), forgetting=2.0),)
    _, scores, _ = scores_of(replace(wanted, require=one), workspace)
    assert [verdict.model for verdict in scores.requirements] == ["merged"]


def test_a_requirement_needs_a_base_and_tasks_that_would_show_it(tmp_path: Path) -> None:
    inside = Given(quality=QUALITY, wanted=TASKS[:1])
    wanted = step("base", "worse", evaluators=(inside,), require=(Requirement(forgetting=1.0),))
    found = [str(problem) for problem in wanted.check(Glance())]  # type: ignore[arg-type]
    assert any("under 'base'" in one for one in found)
    (none,) = Requirement().problems()
    assert "not_worse_than, better_than, forgetting" in none
    both = Requirement(forgetting=1.0, better_than=(BASE,)).problems()
    assert any("under 'model'" in one for one in both)
    workspace = bench(tmp_path, "base", "worse")
    with pytest.raises(RecipeError, match="such tasks under 'elsewhere'"):
        run(replace(wanted, base=BASE), workspace)
    assert not inside.asked


def test_of_losses_forgetting_is_more_loss() -> None:
    lost = Comparison("base", "m", "out", -0.2, -0.3, -0.1, less=True)
    scores = Scores(fingerprints={"base": "", "m": ""}, tasks=(), values={}, forgetting=(lost,))
    found = scores.forgotten("m")
    assert found is not None
    assert (found.mean, found.interval) == (0.2, (0.1, 0.3))
