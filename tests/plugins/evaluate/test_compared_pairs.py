"""Further pairs of models that a recipe compares: in the file, in the table, with seeds, and faults."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from emberge import ModelRef
from emberge_evaluate import read_scores
from emberge_evaluate.evaluate_step import Evaluate, EvaluatedModel

from tests.support.given_scores import QUALITY, Given, GivenByArm, bench, bench_of_arms, run, step
from tests.support.glance import Glance


def compare(*names: tuple[str, str]) -> tuple[tuple[ModelRef, ModelRef], ...]:
    return tuple((ModelRef(f"${one}"), ModelRef(f"${other}")) for one, other in names)


def scored(tmp_path: Path, *names: str, **options: Any) -> tuple[Any, str]:
    """The content of scores.json, and the table."""
    workspace = bench(tmp_path, *names)
    _, result = run(step(*names, evaluators=(Given(quality=QUALITY),), **options), workspace)
    return result, (workspace.folder / "scores.md").read_text()


def test_a_pair_is_compared_on_the_draws_of_all_comparisons_and_has_its_table(
    tmp_path: Path,
) -> None:
    names = ("base", "merged", "worse")
    # The second pair is compared already, and so not repeated.
    pairs = compare(("worse", "merged"), ("merged", "base"))
    result, table = scored(tmp_path / "pair", *names, compare=pairs)
    found = {(c["model"], c["reference"], c["task_or_mean"]): c for c in result["comparisons"]}
    assert len(found) == len(result["comparisons"])
    # As if the second were the first model of an evaluation.
    turned, _ = scored(tmp_path / "turned", "merged", "worse", "base")
    for other in turned["comparisons"]:
        if other["model"] == "worse":
            assert found["worse", "merged", other["task_or_mean"]] == other
    first, second = (line for line in table.splitlines() if "Difference from" in line)
    assert first.startswith("Difference from base")
    assert second.startswith("Difference from merged in points")
    lines = table.partition(second)[2].splitlines()
    row = next(line for line in lines if line.startswith("| *mean over tasks* |"))
    whole = found["worse", "merged", "task"]
    assert f"| {100 * whole['difference']:+.1f} [{100 * whole['interval'][0]:+.1f}" in row
    scores = read_scores(tmp_path / "pair" / "out")
    assert scores.further_references == ("merged",)
    assert scores.list_compared("merged") == ("worse",)
    assert scores.find_difference("base", "task", "merged").interval is None  # type: ignore[union-attr]


def test_seeds_are_compared_as_arms_and_each_with_its_own(tmp_path: Path) -> None:
    steps = [f"{name}.seed={seed}" for name in ("bls", "boom", "bag") for seed in (1, 2)]
    workspace = bench_of_arms(tmp_path, *steps)
    Evaluate(
        models=tuple(EvaluatedModel(model=ModelRef(f"${name}")) for name in steps),
        evaluators=(GivenByArm(),),
        compare=compare(*((f"bag.seed={seed}", f"boom.seed={seed}") for seed in (1, 2))),
    ).run(workspace)
    result = json.loads((workspace.folder / "scores.json").read_text())
    by_seed = [c["by_seed"] for c in result["pooled"]["comparisons"] if c["reference"] == "boom"]
    assert by_seed
    assert all(set(seeds) == {"seed=1", "seed=2"} for seeds in by_seed)
    pairs = {
        (c["model"], c["reference"]) for c in result["comparisons"] if "boom" in c["reference"]
    }
    assert pairs == {(f"bag.seed={seed}", f"boom.seed={seed}") for seed in (1, 2)}
    assert "Difference from boom" in (workspace.folder / "scores.md").read_text()


def test_a_model_that_is_not_scored_is_named_at_its_place() -> None:
    evaluate = step(
        "merged",
        base=ModelRef("$base"),  # which is scored without being listed
        evaluators=(Given(quality=QUALITY),),
        compare=compare(("merged", "base"), ("merged", "gone"), ("base", "base")),
    )
    problems = {(p.where, p.message) for p in evaluate.check(Glance()) if "compare" in p.where}
    assert problems == {
        ("compare.1.1", "'$gone' is compared but not among the models; add it there"),
        ("compare.2", "'$base' is compared with itself; name two models"),
    }
