"""The screen that an adaptation ends with: gain, forgetting, size, the model, and what to do next."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from emberge.evaluating import Comparison, Scores, Task, Verdict
from emberge.merging import FoundWeights
from emberge_adapt import AdaptOutcome

from tests.support.adapt_plans import FACTS, PLAN, STUDENT

BASE, MODEL, FIRST, REST = "me/base", "model", "bag.draw=1", "bag.draw=2"
GAIN = Comparison(MODEL, BASE, "in", 0.056, 0.037, 0.077)
LOSS = Comparison(BASE, MODEL, "elsewhere", 0.004, -0.005, 0.012)
SCORES = Scores(
    fingerprints={name: name[::-1] for name in (BASE, MODEL, FIRST, REST)},
    tasks=(
        Task("pairs", "retrieval", "ndcg_at_10", domain="in", unit="query", units=300),
        Task("papers", "retrieval", "ndcg_at_10", domain="elsewhere", unit="query", units=50),
    ),
    values={},
    means={
        BASE: {"in": 0.674, "elsewhere": 0.8},
        MODEL: {"in": 0.73, "elsewhere": 0.796},
        FIRST: {"in": 0.721, "elsewhere": 0.79},
        REST: {"in": 0.719, "elsewhere": 0.79},
    },
    comparisons=(GAIN, Comparison(MODEL, FIRST, "in", 0.009, -0.002, 0.021)),
    forgetting=(LOSS,),
    requirements=(Verdict("model is better than me/base in domain", True),),
)


@pytest.fixture
def out(bert: Path, tmp_path: Path) -> Path:
    shutil.copytree(bert, tmp_path / "model")
    (tmp_path / "found").mkdir()
    FoundWeights(
        weights={"a": 0.5, "b": 0.3, "c": 0.2},
        names={"a": FIRST, "b": REST, "c": BASE},
        facts={"clear": True},
    ).write(tmp_path / "found")
    return tmp_path


def outcome_of(out: Path, scores: Scores = SCORES) -> AdaptOutcome:
    return AdaptOutcome(out, scores, PLAN, FACTS)


def screen_of(outcome: AdaptOutcome) -> dict[str, str]:
    """The screen's texts by title; lines without a title belong to the one above."""
    texts: dict[str, str] = {}
    title = ""
    for line in filter(None, outcome.lines()):
        title = line[:12].strip() or title
        texts[title] = f"{texts.get(title, '')} {line[12:]}".strip()
    return texts


def test_the_screen_has_the_gain_with_its_interval_beside_the_best_training(out: Path) -> None:
    screen = screen_of(outcome_of(out))
    assert screen["gain"] == (
        "+5.6 [+3.7, +7.7] points of nDCG@10 on 300 queries: base 67.4, model 73.0"
    )
    assert screen["elsewhere"] == "-0.4 [-1.2, +0.5] points on 1 set of other domains"
    assert screen["single"] == "bag.draw=1 alone 72.1, the model +0.9 [-0.2, +2.1]"


def test_weights_are_named_and_it_is_said_if_nothing_tells_others_apart(out: Path) -> None:
    text = "bag.draw=1 0.50, bag.draw=2 0.30, me/base 0.20"
    assert screen_of(outcome_of(out))["weights"] == text
    FoundWeights(weights={"a": 1.0}, names={"a": FIRST}, facts={"clear": False}).write(
        out / "found"
    )
    text = "bag.draw=1 1.00 (nothing else is clearly better)"
    assert screen_of(outcome_of(out))["weights"] == text
    # Weights need not sum to 1.
    FoundWeights(
        weights={"a": 1.0, "b": 3.0}, names={"a": FIRST, "b": BASE}, facts={"clear": True}
    ).write(out / "found")
    assert screen_of(outcome_of(out))["weights"] == "bag.draw=1 0.25, me/base 0.75"


def test_the_model_is_where_the_line_that_loads_it_says(out: Path) -> None:
    screen = screen_of(outcome_of(out))
    assert screen["model"] == str(out / "model")
    assert screen["load it"] == (
        "from sentence_transformers import SentenceTransformer "
        f'model = SentenceTransformer("{out / "model"}")'
    )
    assert screen["tables"] == str(out / "scores" / "scores.md")
    assert str(out / "model") in screen["next"]
    assert "no gain" not in screen


def test_no_gain_beyond_chance_is_told_with_what_would_help(out: Path) -> None:
    few = replace(SCORES.tasks[0], units=60)
    scores = replace(
        SCORES,
        comparisons=(replace(GAIN, low=-0.01),),
        tasks=(few, SCORES.tasks[1]),
        requirements=(Verdict("model is better than me/base in domain", False),),
    )
    outcome = outcome_of(out, scores)
    advice = screen_of(outcome)["no gain"]
    assert outcome.unmet
    assert "60 queries" in advice
    assert "more than 64 tokens" in advice
    assert "--effort thorough" in advice
    assert "--model" in advice
    assert "next" not in screen_of(outcome)


def test_a_base_that_finds_nearly_all_is_told(out: Path) -> None:
    means = {**SCORES.means, BASE: {"in": 0.97}}
    outcome = outcome_of(out, replace(SCORES, comparisons=(), means=means))
    assert any("97.0" in line for line in outcome.advise())


def test_forgetting_beyond_the_limit_is_told_with_the_remedy(out: Path) -> None:
    unmet = Verdict("model forgets less than 3 points", False, demand="forgetting")
    outcome = outcome_of(out, replace(SCORES, requirements=(unmet,)))
    assert "keep" in screen_of(outcome)["forgotten"]


KEPT = Verdict(
    "small is to keep at least 90% of model on ind",
    True,
    model="small",
    other=MODEL,
    demand="keeps",
    margin=0.9,
    difference=0.962,
    lower_bound=0.931,
)


def with_student(out: Path, kept: Verdict = KEPT, **changes: object) -> AdaptOutcome:
    """An outcome with a student of three of six layers."""
    shutil.copytree(out / "model", out / "small", dirs_exist_ok=True)
    scores = replace(
        SCORES,
        fingerprints={**SCORES.fingerprints, "small": "llams"},
        means={**SCORES.means, "small": {"in": 0.702, "elsewhere": 0.78}},
        comparisons=(*SCORES.comparisons, Comparison("small", MODEL, "in", -0.028, -0.05, -0.01)),
        forgetting=(LOSS, Comparison(BASE, "small", "elsewhere", 0.02, 0.01, 0.03)),
        requirements=(*SCORES.requirements, kept),
    )
    plan = replace(PLAN, small=STUDENT, **changes)  # type: ignore[arg-type]
    return replace(outcome_of(out, scores), plan=plan)


def test_the_student_has_its_size_share_and_folder_below_the_models(out: Path) -> None:
    screen = screen_of(with_student(out))
    text = screen["small"]
    assert text.startswith("3 of 6 layers: ")
    assert "keeps 96.2% of the model's nDCG@10, at least 93.1% (with 95% confidence)" in text
    assert "-2.8 [-5.0, -1.0] points" in text
    assert "-2.0 elsewhere, against the base" in text
    assert text.endswith(str(out / "small"))
    assert "too small" not in screen
    assert with_student(out).members == (FIRST, REST), "the student is no part of the merge"


def test_a_student_that_keeps_too_little_is_told_with_the_next_larger_one(out: Path) -> None:
    outcome = with_student(out, replace(KEPT, met=False, lower_bound=0.85))
    assert outcome.unmet == (KEPT.text,)
    text = screen_of(outcome)["too small"]
    assert "less than 90%" in text
    assert "--small 4" in text
    assert "--documents" in text


def test_a_share_that_few_queries_cannot_tell_asks_for_more_of_them(out: Path) -> None:
    outcome = with_student(out, replace(KEPT, met=False, lower_bound=0.0))
    few = tuple(replace(task, units=60) for task in SCORES.tasks)
    screen = screen_of(replace(outcome, scores=replace(outcome.scores, tasks=few)))
    assert "60 queries cannot show" in screen["small"]
    assert "at least" not in screen["small"]
    assert "too small" not in screen
