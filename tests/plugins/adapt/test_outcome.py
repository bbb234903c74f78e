"""The screen that an adaptation ends with: gain, forgetting, the model, and what to do next."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from emberge import Artifact
from emberge.contracts import DataDetails, MergeDetails, RowCounts
from emberge_adapt import AdaptOutcome
from emberge_evaluate import Comparison, ScoredTask, Scores, Verdict, build_difference_tables

from tests.support.adapt_plans import PLAN

BASE, MODEL, FIRST, REST = "me/base", "model", "bag.draw=1", "bag.draw=2"
OUT = Path("out")
GAIN = Comparison(MODEL, BASE, "in", 0.056, (0.037, 0.077))
LOSS = Comparison(BASE, MODEL, "elsewhere", 0.004, (-0.005, 0.012))
SCORES = Scores(
    fingerprints={name: name[::-1] for name in (BASE, MODEL, FIRST, REST)},
    tasks=(
        ScoredTask("pairs", "retrieval", "ndcg_at_10", domain="in", unit="query", units=300),
        ScoredTask("papers", "retrieval", "ndcg_at_10", domain="elsewhere", unit="query", units=50),
    ),
    values={},
    means={
        BASE: {"in": 0.674, "elsewhere": 0.8},
        MODEL: {"in": 0.73, "elsewhere": 0.796},
        FIRST: {"in": 0.721, "elsewhere": 0.79},
        REST: {"in": 0.719, "elsewhere": 0.79},
    },
    comparisons=(GAIN, Comparison(MODEL, FIRST, "in", 0.009, (-0.002, 0.021))),
    forgetting=(LOSS,),
    requirements=(
        Verdict("a", True, MODEL, BASE, "better_than", difference=0.056, lower_bound=2e-4),
    ),
)


CHANGES = {"a": RowCounts(rows=200, kept=160, dropped=40), "b": RowCounts(rows=150, kept=141)}
MERGE = MergeDetails(strategy=["linear"], weights={"$bag": 0.45, "$full": 0.45, BASE: 0.1})
ARTIFACTS = {
    "clean": Artifact(kind="data", details=DataDetails(changes=CHANGES)),
    "model": Artifact(kind="model", details=MERGE),
    "found": Artifact(kind="file", details={"gain": {"low": -0.01}, "alone": {BASE: 0.9}}),
}


def outcome_of(scores: Scores = SCORES) -> AdaptOutcome:
    return AdaptOutcome(OUT, scores, PLAN, ARTIFACTS)


def screen_of(outcome: AdaptOutcome) -> dict[str, str]:
    """The screen's texts by title; lines without a title belong to the one above."""
    texts: dict[str, str] = {}
    title = ""
    for line in filter(None, outcome.format_lines()):
        title = line[:12].strip() or title
        texts[title] = f"{texts.get(title, '')} {line[12:]}".strip()
    return texts


def test_the_screen_has_the_gain_with_its_interval_beside_the_best_training() -> None:
    screen = screen_of(outcome_of())
    measure = "points on 300 queries of the test (nDCG@10 × 100, 95 %): base 67.4, model 73.0"
    assert screen["gain"] == f"+5.6 [+3.7, +7.7] {measure}"
    assert screen["elsewhere"] == "-0.4 [-1.2, +0.5] points on 1 set of other domains"
    alone = "bag.draw=1 alone 72.1, the model +0.9 [-0.2, +2.1]"
    assert screen["single"] == f"{alone}; its model without the merge: out/bag.draw=1"
    assert screen["left out"] == (
        "40 of 350 rows to train on: those that repeat, or nearly repeat, a query of the test or of the dev "
        "rows"
    )
    assert screen["model"] == "out/model"
    assert screen["tables"] == "out/scores/scores.md"
    assert "out/model" in screen["next"]
    assert "no gain" not in screen
    second = Comparison(MODEL, BASE, "faq", -0.01, (-0.02, -0.001))
    tasks = (replace(SCORES.tasks[0], name="faq"), *SCORES.tasks)
    scores = replace(SCORES, tasks=tasks, comparisons=(*SCORES.comparisons, second))
    assert screen_of(outcome_of(scores))["gain"].endswith("model 73.0 faq -1.0 [-2.0, -0.1]")


def test_no_gain_beyond_chance_is_shown_with_what_would_help() -> None:
    few = replace(SCORES.tasks[0], units=60)
    scores = replace(
        SCORES,
        means={**SCORES.means, BASE: {"in": 0.96}},
        tasks=(few, SCORES.tasks[1]),
        requirements=(replace(SCORES.requirements[0], met=False),),
    )
    outcome = outcome_of(scores)
    advice = screen_of(outcome)["no gain"]
    assert outcome.unmet
    for word in ("60 queries", "already has 96 of 100", "--effort thorough", "--model"):
        assert word in advice
    assert "next" not in screen_of(outcome)
    low = replace(scores, means={**SCORES.means, BASE: {"in": 0.05}})
    assert "see that each query has its own" in screen_of(outcome_of(low))["no gain"]


def test_screen_and_tables_conclude_what_the_exit_code_does() -> None:
    unsure = replace(GAIN, interval=(-0.001, 0.077))
    scores = replace(SCORES, comparisons=(unsure, replace(unsure, task_or_mean="pairs")))
    screen, verdict = screen_of(outcome_of(scores)), "barely better: the one-sided bound is +0.02"
    assert screen["gain"].endswith(f"model 73.0; {verdict}")
    assert "no gain" not in screen
    assert next(build_difference_tables(scores)).rows[0].cells[MODEL].verdict == verdict


def test_the_share_of_the_base_has_its_reason_in_one_sentence() -> None:
    for low, base, share, reason in (
        (0.01, 0.9, 0.3, "chosen weights gain +2.0 points over equal weights"),
        (-0.01, 0.9, 0.1, "no other weights are clearly better"),
        (-0.01, 0.9, 0.5, "the trainings are not clearly better than the base"),
        (-0.01, 0.97, 0.5, "the base alone has 97 of 100, so no gain can be seen there"),
    ):
        details = {"gain": {"difference": 0.02, "low": low}, "alone": {BASE: base}}
        merge = replace(ARTIFACTS["model"], details=replace(MERGE, weights={BASE: share}))
        artifacts = {**ARTIFACTS, "model": merge, "found": Artifact(kind="file", details=details)}
        text = screen_of(AdaptOutcome(OUT, SCORES, PLAN, artifacts))["base share"]
        assert text == f"{share:.0%} of the merge; on 200 dev rows, {reason}"


def test_forgetting_beyond_the_limit_is_shown_with_the_remedy() -> None:
    unmet = Verdict("model forgets less than 3 points", False, demand="forgetting")
    forgotten = screen_of(outcome_of(replace(SCORES, requirements=(unmet,))))["forgotten"]
    assert "merge: {models: [$trained], base: *base, keep: 0.7}" in forgotten
