"""The screen that an adaptation ends with: gain, forgetting, the model, and what to do next."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from emberge import Artifact
from emberge.contracts import DataDetails, Figure, FigureTable, MergeDetails, RowCounts
from emberge_adapt import AdaptOutcome
from emberge_evaluate import Comparison, ScoredTask, Scores, Verdict

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
    requirements=(Verdict("model is better than me/base in domain", True),),
)


CHANGES = {"a": RowCounts(rows=200, kept=160, dropped=40), "b": RowCounts(rows=150, kept=141)}
MERGE = MergeDetails(strategy=["linear"], weights={"$bag": 0.45, "$full": 0.45, BASE: 0.1})
FIGURE = Figure(caption="The equal weights stay.", table=FigureTable())
ARTIFACTS = {
    "clean": Artifact(kind="data", details=DataDetails(changes=CHANGES)),
    "model": Artifact(kind="model", details=MERGE),
    "found": Artifact(kind="file", figures=(FIGURE,)),
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
    assert screen["gain"] == "+5.6 [+3.7, +7.7] points on 300 queries: base 67.4, model 73.0"
    assert screen["elsewhere"] == "-0.4 [-1.2, +0.5] points on 1 set of other domains"
    alone = "bag.draw=1 alone 72.1, the model +0.9 [-0.2, +2.1]"
    assert screen["single"] == f"{alone}; its model without the merge: out/bag.draw=1"
    equal = "10% of the merge; with equal weights it is 10%. The equal weights stay."
    assert screen["base share"] == equal
    assert screen["left out"] == (
        "40 of 350 rows to train on: those that contain a query of the test or of the rows to choose by"
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
        comparisons=(replace(GAIN, interval=(-0.01, 0.077)),),
        tasks=(few, SCORES.tasks[1]),
        requirements=(Verdict("model is better than me/base in domain", False),),
    )
    outcome = outcome_of(scores)
    advice = screen_of(outcome)["no gain"]
    assert outcome.unmet
    assert [
        one for one in ("60 queries", "--effort thorough", "--model") if one not in advice
    ] == []
    assert "next" not in screen_of(outcome)


def test_forgetting_beyond_the_limit_is_shown_with_the_remedy() -> None:
    unmet = Verdict("model forgets less than 3 points", False, demand="forgetting")
    forgotten = screen_of(outcome_of(replace(SCORES, requirements=(unmet,))))["forgotten"]
    assert "merge: {models: [$trained], base: *base, keep: 0.7}" in forgotten
