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
from emberge import Evaluator, Model, ModelRef, TaskInfo, TaskScore, Units, Workspace
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
    assert artifact.unmet == (() if verdict["met"] else (verdict["text"],))
    word = "met" if verdict["met"] else "NOT MET"
    assert (bench.folder / "scores.md").read_text().startswith(f"- {word}: {verdict['text']}\n\n")
    return verdict


BETTER = "new must be better than old"
LOSE = "new must lose at most {} points against old on tasks elsewhere: it {} (one-sided, at 95%)"
AT = " (one-sided lower bound {} at 95%, must be {})"
CHANCE = f"{BETTER} on retrieval: +0.50 points may be chance{AT.format('-…', 'above 0')}"
UNSURE = f"{BETTER} by more than 0.1 points on all: +0.50 points is too uncertain"
UNSURE += AT.format("-…", "above +0.1")
TOO_LITTLE = f"{BETTER} by more than 1 point on all: +0.50 points{AT.format('+0.50', 'above +1')}"
ENOUGH = f"{BETTER} on all: +2.00 points{AT.format('+2.00', 'above 0')}"
UNCERTAIN = "new must be at most 0.1 points worse than old on all: +0.50 points is too uncertain"
UNCERTAIN += AT.format("-…", "at least -0.1")
WORSE = "new must not be worse than old on all: -2.00 points" + AT.format("-2.00", "at least 0")
MAY_HAVE_LOST = LOSE.format(0.1, "gained 0.33 points, but may have lost …")
HAS_LOST = LOSE.format(3, "lost 2.00 points, at worst it lost 2.00")


@pytest.mark.parametrize(
    ("gain", "options", "met", "text"),
    [
        (0.005 + NOISE, {"better_than": "$old", "tasks": "retrieval"}, False, CHANCE),
        (0.005 + NOISE, {"better_than": "$old", "margin": 0.1}, False, UNSURE),
        (0.005, {"better_than": "$old", "margin": 1.0}, False, TOO_LITTLE),
        (0.02, {"better_than": "$old"}, True, ENOUGH),
        (0.005 + NOISE, {"not_worse_than": "$old", "margin": 0.1}, False, UNCERTAIN),
        (-0.02, {"not_worse_than": "$old"}, False, WORSE),
        (0.0033 + NOISE, {"forgetting": 0.1}, False, MAY_HAVE_LOST),
        (-0.02, {"forgetting": 3.0}, True, HAS_LOST),
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


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "needs not_worse_than, better_than or forgetting"),
        ({"forgetting": 1.0, "better_than": (ModelRef("$old"),)}, "name it under 'model'"),
        ({"forgetting": 1.0, "margin": 1.0}, "margin has no effect"),
    ],
)
def test_options_that_contradict_each_other_are_named(options: dict[str, Any], words: str) -> None:
    (problem,) = Requirement(**options).find_problems()
    assert words in problem
