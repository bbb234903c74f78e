"""Further pairs of models that a recipe compares: in the file, in the table, with seeds, and faults."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from emberge import ModelRef, RecipeError
from emberge.evaluating import read_scores
from emberge_evaluate.evaluate_step import Evaluate, EvaluatedModel

from tests.support.given_scores import (
    QUALITY,
    Given,
    GivenByArm,
    bench,
    bench_of_arms,
    run,
    step,
)
from tests.support.glance import Glance

PAIR = ((ModelRef("$worse"), ModelRef("$merged")),)


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
    result, table = scored(tmp_path / "pair", *names, compare=PAIR)
    found = {(c["model"], c["reference"], c["on"]): c for c in result["comparisons"]}
    pairs = list(dict.fromkeys((c["model"], c["reference"]) for c in result["comparisons"]))
    assert pairs == [("merged", "base"), ("worse", "base"), ("worse", "merged")]
    assert {on for *pair, on in found if pair == ["worse", "merged"]} == {
        on for *pair, on in found if pair == ["worse", "base"]
    }
    # As if the second were the first model of an evaluation.
    turned, _ = scored(tmp_path / "turned", "merged", "worse", "base")
    for other in turned["comparisons"]:
        if other["model"] == "worse":
            assert found["worse", "merged", other["on"]] == other
    first, second = (line for line in table.splitlines() if "Difference from" in line)
    assert first.startswith("Difference from base")
    assert second.startswith("Difference from merged in points")
    lines = table.partition(second)[2].splitlines()
    (row,) = [line for line in lines if line.startswith("| worse |")]
    whole = found["worse", "merged", "task"]
    assert f"| {100 * whole['difference']:+.1f} [{100 * whole['low']:+.1f}" in row
    scores = read_scores(tmp_path / "pair" / "out")
    assert scores.further_references == ("merged",)
    assert scores.compared_with("merged") == ("worse",)
    assert scores.difference("worse", "task", "merged").interval is not None  # type: ignore[union-attr]
    assert scores.difference("base", "task", "merged").interval is None  # type: ignore[union-attr]


def test_a_pair_that_is_compared_already_is_not_repeated(tmp_path: Path) -> None:
    plain, table = scored(tmp_path / "plain", "base", "merged")
    again, again_table = scored(
        tmp_path / "again", "base", "merged", compare=compare(("merged", "base"))
    )
    assert again["comparisons"] == plain["comparisons"]
    assert again_table == table
    turned, _ = scored(tmp_path / "turned", "base", "merged", compare=compare(("base", "merged")))
    one, other = (
        next(c for c in turned["comparisons"] if c["model"] == m and c["on"] == "code")
        for m in ("merged", "base")
    )
    assert one["difference"] == -other["difference"]
    assert (one["low"], one["high"]) == pytest.approx((-other["high"], -other["low"]))


def test_seeds_are_compared_as_arms_and_each_with_its_own(tmp_path: Path) -> None:
    steps = [f"{name}.seed={seed}" for name in ("bls", "boom", "bag") for seed in (1, 2)]
    workspace = bench_of_arms(tmp_path, *steps)
    Evaluate(
        models=tuple(EvaluatedModel(model=ModelRef(f"${name}")) for name in steps),
        evaluators=(GivenByArm(),),
        compare=compare(*((f"bag.seed={seed}", f"boom.seed={seed}") for seed in (1, 2))),
    ).run(workspace)
    result = json.loads((workspace.folder / "scores.json").read_text())
    arm_pairs = list(
        dict.fromkeys((c["model"], c["reference"]) for c in result["pooled"]["comparisons"])
    )
    assert arm_pairs == [("boom", "bls"), ("bag", "bls"), ("bag", "boom")]
    by_seed = [c["by_seed"] for c in result["pooled"]["comparisons"] if c["reference"] == "boom"]
    assert all(set(seeds) == {"seed=1", "seed=2"} for seeds in by_seed)
    pairs = {
        (c["model"], c["reference"]) for c in result["comparisons"] if "boom" in c["reference"]
    }
    assert pairs == {(f"bag.seed={seed}", f"boom.seed={seed}") for seed in (1, 2)}
    assert "Difference from boom" in (workspace.folder / "scores.md").read_text()


def test_a_model_that_is_not_scored_is_named_at_its_place(tmp_path: Path) -> None:
    evaluate = step(
        "base",
        "merged",
        evaluators=(Given(quality=QUALITY),),
        compare=compare(("merged", "base"), ("merged", "gone"), ("base", "base")),
    )
    problems = {(p.where, p.message) for p in evaluate.check(Glance()) if "compare" in p.where}
    assert problems == {
        ("compare.1.1", "'$gone' is compared but not among the models; add it there"),
        ("compare.2", "'$base' is compared with itself; name two models"),
    }
    with pytest.raises(RecipeError, match=r"'\$gone' is compared but not among the models"):
        evaluate.run(bench(tmp_path, "base", "merged"))


def test_the_base_may_be_compared_without_being_listed(tmp_path: Path) -> None:
    workspace = bench(tmp_path, "base", "merged", "worse")
    evaluate = step(
        "merged",
        "worse",
        evaluators=(Given(quality=QUALITY),),
        base=ModelRef("$base"),
        compare=compare(("worse", "base")),
    )
    assert not [p for p in evaluate.check(Glance()) if "compare" in p.where]
    _, result = run(evaluate, workspace)
    assert ("worse", "base") in {(c["model"], c["reference"]) for c in result["comparisons"]}
