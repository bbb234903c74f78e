"""Models that differ in their seed alone are one arm: pooled, paired seed by seed, and judged together."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from emberge import Artifact, Model, ModelRef, TaskInfo, TaskScore, Units
from emberge.contracts import MergeDetails, TrainingCost
from emberge_evaluate.columns import Arm, Column, find_arms
from emberge_evaluate.comparison import ArmComparison
from emberge_evaluate.evaluate_step import Evaluate, EvaluatedModel
from emberge_evaluate.requirements import Requirement
from emberge_evaluate.scores import ColumnKey
from scipy.stats import t, ttest_ind, ttest_rel

from tests.support import given_scores
from tests.support.bench import Bench
from tests.support.given_scores import ARM_TASKS, SEEDS, GivenByArm, bench_of_arms, trained

RESAMPLES = 40_000
TASK = TaskInfo("only", "retrieval", "ndcg_at_10")


def alone(**scores: Sequence[float]) -> ArmComparison:
    """A judge of arms whose seeds have these scores, on one task whose examples all score alike."""
    arms = [
        Arm.of(ColumnKey(name), {f"seed={i}": f"{name}.seed={i}" for i in range(len(values))})
        for name, values in scores.items()
    ]
    by_model = {
        model: {TASK.name: TaskScore(TASK, value, Units("query", "mean", [value] * 5))}
        for arm, values in zip(arms, scores.values(), strict=True)
        for model, value in zip(arm.columns.values(), values, strict=True)
    }
    return ArmComparison([TASK], by_model, resamples=RESAMPLES, seed=0, arms=arms)


def column(name: str, reference: str, called: str | None = None, seed: int | None = None) -> Column:
    model = Model(name, Path(name.rpartition("/")[2]), "")
    return Column(ColumnKey(name, seed=seed), ModelRef(reference), model, called)


def test_an_arm_is_what_differs_in_seed_alone() -> None:
    ratios = [f"five.ratio={r},seed={s}" for r in (0.2, 1.0) for s in (1, 2)]
    columns = [
        column("pkg:base", "pkg:base"),
        *(column(step, f"${step}") for step in (*ratios, "bls.seed=7")),
        *(column(f"halves.seed={s}", f"$half.seed={s}", "halves") for s in (1, 2)),
        column("run/step-5", "$run.seed=1.checkpoints"),
    ]
    found = {arm.name: dict(arm.columns) for arm in find_arms(columns)}
    assert found == {
        "pkg:base": {"1": "pkg:base"},
        "five.ratio=0.2": {"seed=1": "five.ratio=0.2,seed=1", "seed=2": "five.ratio=0.2,seed=2"},
        "five.ratio=1.0": {"seed=1": "five.ratio=1.0,seed=1", "seed=2": "five.ratio=1.0,seed=2"},
        "bls.seed=7": {"seed=7": "bls.seed=7"},
        "halves": {"seed=1": "halves.seed=1", "seed=2": "halves.seed=2"},
        "run/step-5": {"1": "run/step-5"},
    }


def test_seeds_that_two_arms_share_are_paired() -> None:
    old, new = (0.50, 0.60, 0.40), (0.51, 0.62, 0.43)
    found = alone(old=old, new=new).compare("new", "old", "all")
    assert found.difference == pytest.approx(0.02)
    assert found.by_seed == pytest.approx({"seed=0": 0.01, "seed=1": 0.02, "seed=2": 0.03})
    wanted = ttest_rel(new, old).confidence_interval(0.95)
    assert found.interval == pytest.approx((wanted.low, wanted.high), abs=3e-3)
    half = t.ppf(0.975, 2) * 0.01 / np.sqrt(3)
    assert found.interval is not None
    assert found.interval[1] == pytest.approx(0.02 + half, abs=3e-3)
    opposite = alone(old=old, new=new).compare("old", "new", "all").interval
    assert opposite is not None
    assert found.interval == pytest.approx((-opposite[1], -opposite[0]), abs=1e-12)


def test_each_seed_is_compared_with_a_single_model() -> None:
    judge = alone(new=(0.51, 0.62, 0.43), base=(0.6,))
    wanted = {"seed=0": -0.09, "seed=1": 0.02, "seed=2": -0.17}
    assert judge.compare("new", "base", "all").by_seed == pytest.approx(wanted)
    half = t.ppf(0.975, 2) * np.std([*wanted.values()], ddof=1) / np.sqrt(3)
    assert judge.compare("new", "base", "all").interval == pytest.approx(
        (-0.08 - half, -0.08 + half), abs=0.01
    )


def test_seeds_that_are_not_shared_are_two_samples() -> None:
    old, new = (0.50, 0.52, 0.48, 0.51), (0.55, 0.58, 0.50)
    found = alone(old=old, new=new).compare("new", "old", "all")
    assert found.by_seed is None
    wanted = ttest_ind(new, old, equal_var=False).confidence_interval(0.95)
    assert found.interval == pytest.approx((wanted.low, wanted.high), abs=6e-3)


# ── the step ────────────────────────────────────────────────────────────────────────────────────


def evaluate(workspace: Bench, **options: Any) -> tuple[dict[str, Any], str, Artifact]:
    entries = tuple(EvaluatedModel(model=ModelRef(name)) for name in workspace.many)
    artifact = Evaluate(models=entries, evaluators=(GivenByArm(),), **options).run(workspace)
    result = json.loads((workspace.folder / "scores.json").read_text())
    return result, (workspace.folder / "scores.md").read_text(), artifact


def test_costs_on_other_data_are_not_compared(tmp_path: Path) -> None:
    bls, boom = trained(rows=10, of=10), trained(rows=5, of=5)
    boom = replace(boom, datasets={"texts": boom.datasets["faq"]})
    known = {"bls": {"details": bls}, "boom": {"details": boom}}
    assert "training cost" not in evaluate(bench_of_arms(tmp_path, *SEEDS, **known))[1]


@pytest.mark.parametrize(
    ("sets", "of"), [("code", ""), ("code", "x"), ("faq", ""), ("code topics", "")]
)
def test_sets_in_domain_that_no_model_was_trained_on_are_named(
    sets: str, of: str, tmp_path: Path
) -> None:
    faq = trained(rows=10, of=10)
    data = dict.fromkeys(sets.split(), faq.datasets["faq"])
    workspace = bench_of_arms(tmp_path, "bls", bls={"details": replace(faq, datasets=data)})
    evaluator = given_scores.Given(in_domain_of=tuple(of))
    given_scores.step("bls", evaluators=(evaluator,)).run(workspace)
    is_warned = (sets, of) == ("code", "")
    assert bool(workspace.warnings) == is_warned
    assert ("- topics: in domain" in (workspace.folder / "scores.md").read_text()) == is_warned


def test_the_table_tells_arms_before_models(tmp_path: Path) -> None:
    cost = TrainingCost(1.8, 18, 10)
    merged = MergeDetails(strategy=["linear"], weights={}, training_cost=cost)
    known = {"bls": {"details": trained(rows=10, of=10)}, "boom": {"details": merged}}
    workspace = bench_of_arms(tmp_path, *SEEDS, "base", **known)
    result, text, artifact = evaluate(workspace)
    lines = text.splitlines()
    pooled = result["pooled"]
    assert [*pooled["values"]] == ["bls", "boom", "base"]
    means, spreads = pooled["means"]["boom"], pooled["spreads"]["boom"]
    scores = [result["means"][f"boom.seed={seed}"]["out"] for seed in (1, 2, 3)]
    assert means["out"] == pytest.approx(np.mean(scores))
    assert spreads["out"] == pytest.approx(np.std(scores, ddof=1))
    assert spreads["kind:retrieval"] == pytest.approx(np.std([0, 0.01, -0.004], ddof=1))
    assert [*pooled["members"]["boom"]] == ["seed=1", "seed=2", "seed=3"]
    assert lines[2] == "| task | boom (3 seeds) | base (1 model) |"
    assert "| task | bls (3 seeds) | boom (3 seeds) | base (1 model) |" in lines
    assert f"**{100 * means['out']:.1f}** ± 0.7" in text
    assert lines.index(
        "| *training cost (1: one training on 10 rows)* | 1 | 1.8 | – |"
    ) < lines.index("Each model:")
    assert "Difference from bls in points, with 95% intervals of a bootstrap" in text
    assert "In domain (1): code." in lines
    assert "Out of domain (2): papers, pairs." in lines
    assert artifact.details["in_domain"] == ["code"]
    # Arms are compared seed by seed: the same gain on every example and seed.
    found = {c["task_or_mean"]: c for c in result["pooled"]["comparisons"] if c["model"] == "boom"}
    assert (found["out"]["difference"], found["out"]["interval"][0]) == pytest.approx((0.05, 0.05))
    for task_or_mean in ("kind:retrieval", "out"):
        assert list(found[task_or_mean]["by_seed"].values()) == pytest.approx([0.05, 0.05, 0.05])
    assert "(+5.0, +5.0, +5.0)" in text
    # The mean over kinds of task weighs papers and code by a quarter, pairs by half.
    spread = {
        task.name: np.std(np.random.default_rng(len(task.name)).random(80) * 0.4) / np.sqrt(80)
        for task in ARM_TASKS
    }
    weights = {"code": 0.25, "papers": 0.25, "pairs": 0.5}
    half = 1.96 * np.sqrt(sum((weights[name] * s) ** 2 for name, s in spread.items()))
    low, high = result["intervals"]["bls.seed=1"]["type"]
    assert (high - low) / 2 == pytest.approx(half, rel=0.05)


def test_a_claim_about_seeds_is_judged_once_of_the_arm(tmp_path: Path) -> None:
    require = tuple(
        Requirement(
            model=ModelRef(f"$boom.seed={seed}"),
            better_than=(ModelRef(f"$bls.seed={seed}"),),
            tasks="ood",
            margin=4.0,
        )
        for seed in (1, 2, 3)
    )
    result, text, artifact = evaluate(bench_of_arms(tmp_path, *SEEDS), require=require)
    (judged,) = result["requirements"]
    assert (judged["model"], judged["other"], judged["met"]) == ("boom", "bls", True)
    assert "better than bls (3 seeds) by more than 4 points on ood" in text
    assert artifact.unmet == ()


def test_a_recipe_may_name_the_arm(tmp_path: Path) -> None:
    workspace = bench_of_arms(tmp_path, "bls.seed=1", "bls.seed=2", "bag.draw=1")
    entries = [EvaluatedModel(model=ModelRef(f"$bls.seed={s}"), name="BLS") for s in (1, 2)]
    entries += [EvaluatedModel(model=ModelRef("$bag.draw=1"))]
    Evaluate(models=tuple(entries), evaluators=(GivenByArm(),)).run(workspace)
    result = json.loads((workspace.folder / "scores.json").read_text())
    assert list(result["values"]) == ["BLS.seed=1", "BLS.seed=2", "bag.draw=1"]
    assert [*result["pooled"]["members"]] == ["BLS", "bag.draw=1"]
    assert [*result["pooled"]["members"]["BLS"]] == ["seed=1", "seed=2"]


def test_seeds_of_an_evaluation_are_an_arm_and_no_draws_inside_trainings_seeds() -> None:
    one = [column("base", "./base", seed=s) for s in (1, 2)]
    trained = [column(f"m.seed={t}", f"$m.seed={t}", seed=s) for t in (7, 8) for s in (1, 2)]
    base, made = find_arms([*one, *trained])
    assert (base.name, dict(base.columns)) == ("base", {"#1": "base#1", "#2": "base#2"})
    assert base.columns_by_draw == {"#1": ("base#1",), "#2": ("base#2",)}
    assert made.name == "m"
    assert made.columns_by_draw == {
        "seed=7": ("m.seed=7#1", "m.seed=7#2"),
        "seed=8": ("m.seed=8#1", "m.seed=8#2"),
    }
    values = {"m.seed=7#1": 0.1, "m.seed=7#2": 0.3, "m.seed=8#1": 0.4, "m.seed=8#2": 0.8}
    scores = {name: {TASK.name: TaskScore(TASK, value)} for name, value in values.items()}
    judge = ArmComparison([TASK], scores, resamples=RESAMPLES, seed=0, arms=[made])
    found = judge.estimate("m", TASK.name)
    assert found.mean == pytest.approx(0.4)
    assert found.spread == pytest.approx(np.std([0.2, 0.6], ddof=1)), "a model counts once"
