"""An evaluator whose scores are given by a model's group, ratio and seed, and models to score with it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from emberge import Artifact, Evaluator, Model, Problem, TaskInfo, TaskScore, Units
from emberge_evaluate import read_variables

from tests.support.bench import Bench

TASKS = (
    TaskInfo("code", "retrieval", "ndcg_at_10", domain="in", fingerprint="a"),
    TaskInfo("papers", "retrieval", "ndcg_at_10", domain="out", fingerprint="b"),
    TaskInfo("pairs", "sts", "cosine_spearman", domain="out", fingerprint="c"),
)


QUALITY = {"bls": 0.0, "boom": 0.05, "bag": 0.01, "base": -0.2}


@dataclass(frozen=True, kw_only=True)
class Given(Evaluator):
    """Scores by a model's group, its ratio and its seed."""

    noise: Mapping[str, float] = field(default_factory=lambda: {"1": 0.0, "2": 0.01, "3": -0.004})

    def plan(self, workspace: Any) -> Sequence[TaskInfo]:
        return TASKS

    def check(self, context: Any) -> Iterator[Problem]:
        yield from ()

    def evaluate(
        self, model: Model, tasks: Sequence[TaskInfo], workspace: Any
    ) -> Iterator[TaskScore]:
        variables = read_variables(model.name)
        gain = QUALITY[model.name.partition(".")[0]] + self.noise[variables.get("seed", "1")]
        gain += 0.1 * float(variables.get("ratio", 0))
        for task in tasks:
            values = np.random.default_rng(len(task.name)).random(80) * 0.4 + 0.4 + gain
            yield TaskScore(task, float(values.mean()), Units("query", "mean", values.tolist()))


def bench(root: Path, *steps: str, **details: Mapping[str, Any]) -> Bench:
    made = Bench(root)
    for step in steps:
        artifact = Artifact(kind="model", details=details.get(step.partition(".")[0], {}))
        made.many[f"${step}"] = [Model(step, root, f"hash-{step}", artifact)]
    return made


SEEDS = [f"{arm}.seed={seed}" for arm in ("bls", "boom") for seed in (1, 2, 3)]
