"""What a model forgot comes after its scores: among the conclusions of a page, and in its card."""

from __future__ import annotations

import re
from dataclasses import replace

from emberge_evaluate import Comparison, ScoredTask, Scores
from emberge_report.card_scores import describe_forgetting
from emberge_report.conclusions import write_conclusions

TASKS = (
    ScoredTask("code", domain="in"),
    ScoredTask("licences", domain="elsewhere"),
    ScoredTask("words", domain="elsewhere"),
)
SCORES = Scores(
    fingerprints={"base": "", "full": "", "half": ""},
    tasks=TASKS,
    values={
        "base": {"code": 0.5, "licences": 0.5, "words": 0.5},
        "full": {"code": 0.6, "licences": 0.4, "words": 0.5},
        "half": {"code": 0.58, "licences": 0.49, "words": 0.5},
    },
    means={
        "base": {"in": 0.5, "elsewhere": 0.5},
        "full": {"in": 0.6, "elsewhere": 0.45},
        "half": {"in": 0.58, "elsewhere": 0.495},
    },
    forgetting=(
        Comparison("base", "full", "elsewhere", 0.05, (0.02, 0.08)),
        Comparison("base", "half", "elsewhere", 0.005, (-0.01, 0.02)),
    ),
)


def words(scores: Scores) -> list[str]:
    return [re.sub("<[^>]*>", "", line) for line in write_conclusions(scores, ())]


def test_conclusions_begin_in_domain_and_end_with_what_was_forgotten() -> None:
    *scored, last = words(SCORES)
    assert last.startswith("Forgetting, on 2 tasks of domains that no training had, against base")
    assert "full loses 5.00 [2.00, 8.00]" in last
    assert "half loses 0.50 [-1.00, +2.00], which may be chance" in last.replace("−", "-")
    assert [line.partition(":")[0] for line in scored] == ["In domain", "Elsewhere"]
    assert "base scores highest, 50.00; half scores 49.50 (−0.50 against base" in scored[1]


def test_conclusions_begin_with_the_pairs_that_the_recipe_compares() -> None:
    ends = {"in": (0.02, (-0.01, 0.05)), "elsewhere": (-0.045, (-0.08, -0.01))}
    compared = tuple(Comparison("full", "half", mean, *numbers) for mean, numbers in ends.items())
    pair, other, first, *_ = words(replace(SCORES, comparisons=compared))
    assert pair == "In domain: full and half cannot be told apart, +2.00 [−1.00, +5.00]."
    assert other == "Elsewhere: full is worse than half, −4.50 [−8.00, −1.00]."
    assert first.startswith("In domain: full scores highest, 60.00 (+10.00 against base")
    assert first.endswith("and cannot be told apart from half.")


def test_a_gain_elsewhere_is_called_one() -> None:
    gained = (Comparison("base", "full", "elsewhere", -0.05, (-0.08, -0.02)),)
    assert "full gains 5.00 [2.00, 8.00]" in words(replace(SCORES, forgetting=gained))[-1]
    perhaps = (Comparison("base", "half", "elsewhere", -0.005, (-0.02, 0.01)),)
    last = words(replace(SCORES, forgetting=perhaps))[-1].replace("−", "-")
    assert "half gains 0.50 [-1.00, +2.00], which may be chance" in last


def test_a_card_says_what_its_own_model_forgot() -> None:
    line = describe_forgetting("full", SCORES)
    assert "against base" in line
    assert "it loses 5.00 [2.00, 8.00]" in line
    assert describe_forgetting("base", SCORES) == ""
