"""A smaller model keeps a share of a larger one's score: the lower bound of a ratio decides."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from emberge import Evaluator, Model, ModelRef, RecipeError, TaskInfo, TaskScore, Units, Workspace
from emberge_evaluate.evaluate_step import Evaluate, EvaluatedModel
from emberge_evaluate.requirements import Requirement

from tests.support.bench import Bench

QUERIES = np.random.default_rng(0).uniform(0.2, 1.0, 200)


@dataclass(frozen=True, kw_only=True)
class Given(Evaluator):
    """Evaluator whose scores by query are given by model, the same on two tasks."""

    values: Mapping[str, Any] = field(default_factory=dict)
    queries: int = 200
    less: bool = False

    def plan(self, workspace: Workspace) -> Sequence[TaskInfo]:
        return [
            TaskInfo(name, "retrieval", "loss" if self.less else "ndcg_at_10", fingerprint=name)
            for name in ("code", "papers")
        ]

    def evaluate(
        self, model: Model, tasks: Sequence[TaskInfo], workspace: Workspace
    ) -> Iterator[TaskScore]:
        for task in tasks:
            values = self.values[model.name][: self.queries]
            yield TaskScore(task, float(values.mean()), Units("query", "mean", values.tolist()))


def verdicts(tmp_path: Path, given: Given, share: float, *names: str) -> Any:
    """Score the models that these steps made, and require that the first keeps a share of `large`."""
    bench = Bench(tmp_path)
    models = []
    for name in names:
        bench.many[f"${name}"] = [Model(name, tmp_path, f"hash-{name}")]
        models.append(EvaluatedModel(model=ModelRef(f"${name}")))
    require = Requirement(model=ModelRef(f"${names[0]}"), keeps=share, of=ModelRef("$large"))
    step = Evaluate(models=tuple(models), evaluators=(given,), require=(require,))
    made = step.run(bench)
    found = json.loads((bench.folder / "scores.json").read_text())
    return found["requirements"], made.details["unmet"]


@pytest.mark.parametrize(("share", "met"), [(0.949, True), (0.951, False)])
def test_an_even_share_has_no_width(share: float, met: bool, tmp_path: Path) -> None:
    given = Given(values={"small": 0.95 * QUERIES, "large": QUERIES})
    (verdict,), unmet = verdicts(tmp_path, given, share, "small", "large")
    assert (verdict["met"], verdict["demand"], verdict["other"]) == (met, "keeps", "large")
    assert verdict["difference"] == pytest.approx(0.95)
    assert verdict["lower_bound"] == pytest.approx(0.95)
    assert len(unmet) == (not met)
    claim = f"small is to keep at least {100 * share:.1f}% of large on all"
    assert verdict["text"] == f"{claim}: it keeps 95.0%, at worst 95.0% (at 95%)"


def test_the_bound_is_that_of_the_ratio_over_drawn_queries(tmp_path: Path) -> None:
    """By the delta method: the deviation of the ratio is that of small - share * large, over large."""
    small = 0.95 * QUERIES + np.random.default_rng(1).normal(0, 0.2, len(QUERIES))
    given = Given(values={"small": small, "large": QUERIES})
    (verdict,), _ = verdicts(tmp_path, given, 0.9, "small", "large")
    share = small.mean() / QUERIES.mean()
    # Two tasks of the same queries are drawn apart, which halves the variance.
    error = (small - share * QUERIES).std() / np.sqrt(2 * len(QUERIES)) / QUERIES.mean()
    assert verdict["difference"] == pytest.approx(share)
    assert verdict["lower_bound"] == pytest.approx(share - 1.645 * error, abs=0.15 * error)
    assert verdict["met"] is bool(verdict["lower_bound"] >= 0.9)


def test_seeds_are_pooled_and_their_spread_lowers_the_bound(tmp_path: Path) -> None:
    """Two seeds of the small model with shares of 0.95 and 0.85: a mean of 0.9, known by two points alone."""
    values = {"small.seed=1": 0.95 * QUERIES, "small.seed=2": 0.85 * QUERIES, "large": QUERIES}
    (verdict,), _ = verdicts(tmp_path, Given(values=values), 0.8, *values)
    assert verdict["model"] == "small"
    assert verdict["difference"] == pytest.approx(0.9)
    # The standard error is 0.05, and Student's t with one degree of freedom has 6.31 at 95 %.
    assert verdict["lower_bound"] == pytest.approx(0.9 - 6.31 * 0.05, abs=0.08)
    assert verdict["met"] is False


def test_too_few_queries_tell_nothing(tmp_path: Path) -> None:
    given = Given(values={"small": QUERIES, "large": QUERIES}, queries=49)
    (verdict,), (text,) = verdicts(tmp_path, given, 0.5, "small", "large")
    assert verdict["met"] is False
    assert "cannot be told with 98 queries" in text
    assert "take 100 or more" in text
    enough = Given(values={"small": QUERIES, "large": QUERIES}, queries=50)
    (verdict,), unmet = verdicts(tmp_path / "enough", enough, 0.5, "small", "large")
    assert verdict["met"] is True
    assert not unmet


def test_a_model_without_a_score_has_no_share(tmp_path: Path) -> None:
    given = Given(values={"small": QUERIES, "large": 0 * QUERIES})
    (verdict,), (text,) = verdicts(tmp_path, given, 0.5, "small", "large")
    assert verdict["met"] is False
    assert "the score of large may be 0" in text


def test_losses_have_no_share(tmp_path: Path) -> None:
    given = Given(values={"small": QUERIES, "large": QUERIES}, less=True)
    with pytest.raises(RecipeError, match="these tasks are losses"):
        verdicts(tmp_path, given, 0.5, "small", "large")


def test_both_options_are_needed_and_two_models() -> None:
    small, large = ModelRef("$small"), ModelRef("$large")
    (fault,) = Requirement(model=small, of=large).problems()
    assert "both, keeps and of" in fault
    assert "both, keeps and of" in next(
        fault for fault in Requirement(model=small, keeps=0.9).problems() if "both" in fault
    )
    (fault,) = Requirement(model=small, keeps=0.9, of=small).problems()
    assert "name the larger model" in fault
    (fault,) = Requirement(keeps=0.9, of=large).problems()
    assert "needs the model" in fault
    assert not [*Requirement(model=small, keeps=0.9, of=large).problems()]
