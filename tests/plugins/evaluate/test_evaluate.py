"""The evaluate step with a small evaluator of its own: no mteb, known scores, known units."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from emberge import Model, ModelRef, RecipeError, TaskInfo, TaskScore
from emberge_evaluate import read_scores
from emberge_evaluate.evaluate_step import Evaluate, EvaluatedModel
from emberge_evaluate.requirements import Requirement
from emberge_evaluate.task_groups import average_scores

from tests.support.given_scores import QUALITY, TASKS, Given, bench, run, step
from tests.support.glance import Glance


@pytest.fixture
def given() -> Given:
    return Given(quality=QUALITY)


def test_scores_json_has_scores_intervals_means_and_units(given: Given, tmp_path: Path) -> None:
    workspace = bench(tmp_path, "base", "merged")
    artifact, result = run(step("base", "merged", evaluators=(given,)), workspace)
    assert result["fingerprints"] == {"base": "hash-base", "merged": "hash-merged"}
    assert result["tasks"][1] == {
        "name": "papers",
        "kind": "retrieval",
        "metric": "ndcg_at_10",
        "languages": ["en"],
        "domain": "out",
        "note": "at most 50 queries",
        "unit": "query",
        "units": 100,
    }
    assert set(result["values"]["merged"]) == {task.name for task in TASKS}
    means = {"task", "type", "in", "out", "kind:retrieval", "kind:sts"}
    assert set(result["means"]["base"]) == {*means, "kind:clustering"}
    # One score of clusters is all that there is of them.
    known = {"code", "papers", "pairs", *means}
    for model, by_name in result["intervals"].items():
        assert set(by_name) == known
        for name, (low, high) in by_name.items():
            assert low < {**result["values"][model], **result["means"][model]}[name] < high
    assert result["pooled"] is None
    assert (artifact.kind, artifact.parents) == ("scores", ("hash-base", "hash-merged"))
    assert artifact.table == "scores.md"
    own = json.loads((workspace.folder / "results/merged/code.json").read_text())
    assert own == {"mteb": "code"}
    assert workspace.metrics["score/code/base"] == result["values"]["base"]["code"]


def test_differences_are_from_the_first_model(given: Given, tmp_path: Path) -> None:
    workspace = bench(tmp_path, "base", "merged", "worse")
    _, result = run(step("base", "merged", "worse", evaluators=(given,)), workspace)
    found = {(c["model"], c["task_or_mean"]): c for c in result["comparisons"]}
    assert {c["reference"] for c in result["comparisons"]} == {"base"}
    groups = {"task", "type", "in", "out", "kind:retrieval", "kind:sts", "kind:clustering"}
    assert {tasks for _, tasks in found} == {*groups, *(task.name for task in TASKS)}
    for (model, tasks), comparison in found.items():
        if tasks in ("topics", "kind:clustering"):  # one score a model and no test examples
            assert comparison["interval"] is None
            continue
        low, high = comparison["interval"]
        assert low <= comparison["difference"] + 1e-9
        assert comparison["difference"] <= high + 1e-9
        if tasks == "out":
            gap = result["means"][model]["out"] - result["means"]["base"]["out"]
            assert comparison["difference"] == pytest.approx(gap)
    assert found["merged", "code"]["interval"][0] > 0
    assert found["worse", "task"]["interval"][1] < 0


def test_a_killed_evaluation_continues_after_the_scores_it_has(tmp_path: Path) -> None:
    killed = Given(quality=QUALITY, fails_at="merged papers")
    workspace = bench(tmp_path, "base", "merged")
    with pytest.raises(KeyboardInterrupt):
        step("base", "merged", evaluators=(killed,)).run(workspace)
    assert not (workspace.folder / "scores.json").exists()
    again = Given(quality=QUALITY)
    _, resumed = run(step("base", "merged", evaluators=(again,)), workspace)
    assert again.asked == [("merged", "papers"), ("merged", "pairs"), ("merged", "topics")]
    undisturbed = bench(tmp_path / "other", "base", "merged")
    _, whole = run(step("base", "merged", evaluators=(Given(quality=QUALITY),)), undisturbed)
    assert resumed == whole


def test_a_score_of_another_task_or_a_damaged_file_is_computed_again(
    given: Given, tmp_path: Path
) -> None:
    workspace = bench(tmp_path, "base")
    run(step("base", evaluators=(given,)), workspace)
    changed = (TaskInfo("code", "retrieval", "ndcg_at_10", fingerprint="new"), *TASKS[1:])
    again = Given(quality=QUALITY, wanted=changed)
    run(step("base", evaluators=(again,)), bench(tmp_path, "base"))
    assert again.asked == [("base", "code")]
    (kept,) = (workspace.store / "scores" / "hash-base").glob("papers-*.json")
    kept.write_text(kept.read_text()[:-20])
    run(step("base", evaluators=(given,)), workspace)
    assert given.asked[4:] == [("base", "papers")]


def test_models_of_one_name_or_reference_are_told_apart(given: Given, tmp_path: Path) -> None:
    workspace = bench(tmp_path)
    models = [Model(f"run/{i}", tmp_path, f"hash{i}") for i in range(3)]
    workspace.many["$run.checkpoints"] = models
    entry = EvaluatedModel(model=ModelRef("$run.checkpoints"), name="kept")
    _, result = run(Evaluate(models=(entry,), evaluators=(given,)), workspace)
    assert list(result["values"]) == ["kept.1", "kept.2", "kept.3"]


def test_equal_models_are_not_worse_and_not_better(tmp_path: Path) -> None:
    workspace = bench(tmp_path, "base")
    workspace.many["$twin"] = [Model("base", tmp_path, "hash-base")]
    refs = {"model": ModelRef("$twin")}
    require = (
        Requirement(**refs, not_worse_than=(ModelRef("$base"),)),
        Requirement(**refs, better_than=(ModelRef("$base"),)),
    )
    _, result = run(step("base", "twin", evaluators=(Given(),), require=require), workspace)
    assert [r["met"] for r in result["requirements"]] == [True, False]
    assert [r["lower_bound"] for r in result["requirements"]] == [0.0, 0.0]
    assert list(result["values"]) == ["base", "base ($twin)"]


def test_a_requirement_about_no_task_is_refused_before_any_work(
    given: Given, tmp_path: Path
) -> None:
    workspace = bench(tmp_path, "base", "merged")
    refs = {"model": ModelRef("$merged"), "better_than": (ModelRef("$base"),)}
    for tasks, message in (("paper", "did you mean 'papers'"), ("ood", "none of the tasks is out")):
        evaluator = given if tasks == "paper" else Given(wanted=TASKS[:1])
        require = (Requirement(**refs, tasks=tasks),)
        with pytest.raises(RecipeError, match=message):
            step("base", "merged", evaluators=(evaluator,), require=require).run(workspace)
        assert evaluator.asked == []


def test_two_evaluators_with_one_task_are_refused(given: Given, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="2 evaluators give a task called 'code'"):
        step("base", evaluators=(given, Given())).run(bench(tmp_path, "base"))


def test_the_table_shows_models_side_by_side_and_progress_runs_once(
    given: Given, tmp_path: Path
) -> None:
    workspace = bench(tmp_path, "base", "merged")
    _, result = run(step("base", "merged", evaluators=(given,)), workspace)
    done = [told[0] for told in workspace.told]
    assert done == sorted(done)
    assert workspace.told[0] == (0, 2, "models", "model 1 of 2: base")
    assert (0.25, 2, "models", "model 1 of 2: base · code") in workspace.told
    assert workspace.told[-1][:3] == (2.0, 2, "models")
    text = (workspace.folder / "scores.md").read_text()
    lines = text.splitlines()
    assert lines[0].startswith("Difference from base in points, with 95% intervals")
    assert "| task | base | merged |" in lines
    first, best = (100 * result["values"][model]["code"] for model in ("base", "merged"))
    assert f"| code (ndcg_at_10, in) | {first:.1f} | **{best:.1f}** |" in lines
    assert "- papers: at most 50 queries" in lines
    for model in ("base", "merged"):
        own = result["values"][model]
        mean = result["means"][model]["kind:retrieval"]
        assert mean == pytest.approx((own["code"] + own["papers"]) / 2)
    low, high = (100 * one for one in result["intervals"]["base"]["kind:retrieval"])
    mean = result["means"]["base"]["kind:retrieval"]
    assert f"| *mean of retrieval (2)* | {100 * mean:.1f} [{low:.1f}, {high:.1f}] " in text
    assert read_scores(workspace.folder).find_value("base", "kind:retrieval") == pytest.approx(mean)


# T-A12: means of the kinds of task of MTEB(eng, v2), and how many tasks each has.
COUNTS = {
    "classification": 8,
    "clustering": 8,
    "pair_classification": 3,
    "reranking": 2,
    "retrieval": 10,
    "sts": 9,
    "summarization": 1,
}


@pytest.mark.parametrize(
    ("by_kind", "task", "kind"),
    [
        ((86.01, 54.68, 81.20, 45.81, 50.60, 78.34, 31.70), 65.94, 61.19),
        ((87.28, 59.05, 82.69, 49.46, 55.03, 81.10, 35.29), 69.10, 64.27),
    ],
)
def test_means_by_task_and_by_kind_are_mtebs(
    by_kind: tuple[float, ...], task: float, kind: float
) -> None:
    tasks: list[TaskInfo] = []
    scores: dict[str, TaskScore] = {}
    for (name, count), mean in zip(COUNTS.items(), by_kind, strict=True):
        for number in range(count):
            tasks.append(TaskInfo(f"{name}{number}", name, "m", domain="in" if number else "out"))
            scores[f"{name}{number}"] = TaskScore(tasks[-1], mean)
    assert average_scores(tasks, scores, "all") == pytest.approx(task, abs=0.006)
    assert average_scores(tasks, scores, "type") == pytest.approx(kind, abs=0.006)
    assert average_scores(tasks, scores, "out") == pytest.approx(sum(by_kind) / 7)
    assert average_scores(tasks, scores, "kind:sts") == pytest.approx(by_kind[5])


def test_check_finds_every_problem_at_once(given: Given) -> None:
    require = (
        Requirement(model=ModelRef("$stray"), better_than=(ModelRef("$base"),)),
        Requirement(model=ModelRef("$base")),
    )
    context = Glance()
    faulty = step("base", "base", evaluators=(given,), require=require)
    found = [str(problem) for problem in faulty.check(context)]
    assert set(context.looked) == {"$base"}
    for message in (
        "models: model '$base' is named 2 times",
        "require: '$stray' is in a requirement but not among the models; add it there",
        "require: a requirement needs not_worse_than, better_than or forgetting",
        "the evaluator was asked",
    ):
        assert message in found
    empty = [str(problem) for problem in Evaluate(models=(), evaluators=()).check(context)]
    assert empty == ["models: there is no model to score", "evaluators: there is no evaluator"]
