"""What a requirement says of a measured figure: the claim, whether it is met, and how certain that is."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from emberge import Evaluator, Model, ModelRef, RecipeError, TaskInfo, TaskScore, Units, Workspace
from emberge_evaluate.evaluate_step import Evaluate, EvaluatedModel
from emberge_evaluate.requirements import Requirement

from tests.support.bench import Bench

QUERIES = np.random.default_rng(0).uniform(0.2, 1.0, 200)
NOISE = np.random.default_rng(1).normal(0, 0.1, len(QUERIES))
NOISE -= NOISE.mean()


@dataclass(frozen=True, kw_only=True)
class Given(Evaluator):
    """Evaluator whose scores by query are given by model, the same on two tasks."""

    values: Mapping[str, Any]
    metric: str = "ndcg_at_10"

    def plan(self, workspace: Workspace) -> Sequence[TaskInfo]:
        return [
            TaskInfo(name, "retrieval", self.metric, domain="elsewhere", fingerprint=name)
            for name in ("code", "papers")
        ]

    def evaluate(
        self, model: Model, tasks: Sequence[TaskInfo], workspace: Workspace
    ) -> Iterator[TaskScore]:
        for task in tasks:
            values = self.values[model.name]
            yield TaskScore(task, float(values.mean()), Units("query", "mean", values.tolist()))


def judged(folder: Path, given: Given, require: Requirement, base: str | None = None) -> Any:
    """The one verdict on models that steps of these names made."""
    bench = Bench(folder)
    for name in given.values:
        bench.many[f"${name}"] = [Model(name, folder, f"hash-{name}")]
    step = Evaluate(
        models=tuple(EvaluatedModel(model=ModelRef(text)) for text in bench.many),
        evaluators=(given,),
        base=ModelRef(base) if base else None,
        require=(require,),
    )
    artifact = step.run(bench)
    (verdict,) = json.loads((bench.folder / "scores.json").read_text())["requirements"]
    assert artifact.details["unmet"] == ([] if verdict["met"] else [verdict["text"]])
    word = "met" if verdict["met"] else "NOT MET"
    assert f"- {word}: {verdict['text']}\n" in (bench.folder / "scores.md").read_text()
    return verdict


BETTER = "new is to be better than old"
LOSE = "new is to lose at most {} points against old on tasks elsewhere"
SURE = "(lower bound {} at 95%, must be {})"


@pytest.mark.parametrize(
    ("gain", "options", "met", "text"),
    [
        (
            0.005 + NOISE,
            {"better_than": "$old", "tasks": "retrieval"},
            False,
            f"{BETTER} on retrieval: +0.50 points may be chance {SURE.format('-…', 'above 0')}",
        ),
        (
            0.005,
            {"better_than": "$old", "margin": 1.0},
            False,
            f"{BETTER} by more than 1 points on all: +0.50 points {SURE.format('+0.50', 'above +1')}",
        ),
        (
            0.02,
            {"better_than": "$old"},
            True,
            f"{BETTER} on all: +2.00 points {SURE.format('+2.00', 'above 0')}",
        ),
        (
            0.005 + NOISE,
            {"not_worse_than": "$old", "margin": 0.1},
            False,
            "new is to be at most 0.1 points worse than old on all: +0.50 points is too uncertain "
            f"{SURE.format('-…', 'at least -0.1')}",
        ),
        (
            -0.02,
            {"not_worse_than": "$old"},
            False,
            "new is to be not worse than old on all: -2.00 points "
            f"{SURE.format('-2.00', 'at least 0')}",
        ),
        (
            0.0033 + NOISE,
            {"forgetting": 0.1},
            False,
            f"{LOSE.format(0.1)}: it gained 0.33 points, but may have lost … (at 95%)",
        ),
        (
            -0.02,
            {"forgetting": 3.0},
            True,
            f"{LOSE.format(3)}: it lost 2.00 points, at worst it lost 2.00 (at 95%)",
        ),
    ],
)
def test_a_claim_reads_as_what_is_wanted_and_what_was_found(
    tmp_path: Path, gain: Any, options: dict[str, Any], met: bool, text: str
) -> None:
    for key in {"better_than", "not_worse_than"} & {*options}:
        options = {**options, key: (ModelRef(options[key]),)}
    given = Given(values={"old": QUERIES, "new": QUERIES + gain})
    base = "$old" if "forgetting" in options else None
    verdict = judged(tmp_path, given, Requirement(model=ModelRef("$new"), **options), base)
    assert verdict["met"] is met
    expected = re.escape(text).replace("…", r"\d\.\d\d")
    assert re.fullmatch(expected, verdict["text"]), verdict["text"]


def share(folder: Path, share: float, metric: str = "ndcg_at_10", **values: Any) -> Any:
    """The verdict on the share that the first of the models keeps of `large`."""
    first = next(iter(values))
    require = Requirement(model=ModelRef(f"${first}"), keeps=share, of=ModelRef("$large"))
    return judged(folder, Given(values=values, metric=metric), require)


@pytest.mark.parametrize(("wanted", "met"), [(0.949, True), (0.951, False)])
def test_an_even_share_has_no_width(wanted: float, met: bool, tmp_path: Path) -> None:
    verdict = share(tmp_path, wanted, small=0.95 * QUERIES, large=QUERIES)
    assert (verdict["met"], verdict["difference"]) == (met, pytest.approx(0.95))
    claim = f"small is to keep at least {100 * wanted:.1f}% of large on all"
    assert verdict["text"] == f"{claim}: it keeps 95.0%, at worst 95.0% (at 95%)"


def test_the_bound_of_a_share_is_that_of_the_ratio_over_drawn_queries(tmp_path: Path) -> None:
    """By the delta method: the deviation of the ratio is that of small - share * large, over large."""
    small = 0.95 * QUERIES + np.random.default_rng(1).normal(0, 0.2, len(QUERIES))
    verdict = share(tmp_path, 0.9, small=small, large=QUERIES)
    kept = small.mean() / QUERIES.mean()
    # Two tasks of the same queries are drawn apart, which halves the variance.
    error = (small - kept * QUERIES).std() / np.sqrt(2 * len(QUERIES)) / QUERIES.mean()
    assert verdict["difference"] == pytest.approx(kept)
    assert verdict["lower_bound"] == pytest.approx(kept - 1.645 * error, abs=0.15 * error)


def test_seeds_are_pooled_and_their_spread_lowers_the_bound(tmp_path: Path) -> None:
    """Two seeds of the small model with shares of 0.95 and 0.85: a mean of 0.9, known by two points alone."""
    values = {"small.seed=1": 0.95 * QUERIES, "small.seed=2": 0.85 * QUERIES, "large": QUERIES}
    verdict = share(tmp_path, 0.8, **values)
    assert (verdict["model"], verdict["difference"]) == ("small", pytest.approx(0.9))
    # The standard error is 0.05, and Student's t with one degree of freedom has 6.31 at 95 %.
    assert verdict["lower_bound"] == pytest.approx(0.9 - 6.31 * 0.05, abs=0.08)
    assert verdict["met"] is False


@pytest.mark.parametrize(
    ("small", "large", "words"),
    [
        (QUERIES[:49], QUERIES[:49], "cannot be told with 98 queries; take 100 or more"),
        (QUERIES, 0 * QUERIES, "the score of large may be 0"),
    ],
)
def test_a_share_that_cannot_be_told_is_not_met(
    small: Any, large: Any, words: str, tmp_path: Path
) -> None:
    verdict = share(tmp_path, 0.5, small=small, large=large)
    assert verdict["met"] is False
    assert words in verdict["text"]
    enough = share(tmp_path / "enough", 0.5, small=QUERIES[:50], large=QUERIES[:50])
    assert enough["met"] is True


def test_losses_have_no_share(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="these tasks are losses"):
        share(tmp_path, 0.5, "loss", small=QUERIES, large=QUERIES)


SMALL, LARGE = ModelRef("$small"), ModelRef("$large")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "needs not_worse_than, better_than, forgetting, or keeps with of"),
        ({"forgetting": 1.0, "better_than": (LARGE,)}, "name it under 'model'"),
        ({"model": SMALL, "of": LARGE}, "both, keeps and of"),
        ({"model": SMALL, "keeps": 0.9, "forgetting": 1.0}, "both, keeps and of"),
        ({"model": SMALL, "keeps": 0.9, "of": SMALL}, "name the larger model"),
        ({"keeps": 0.9, "of": LARGE}, "needs the model"),
    ],
)
def test_options_that_contradict_each_other_are_named(options: dict[str, Any], words: str) -> None:
    (problem,) = Requirement(**options).find_problems()
    assert words in problem
